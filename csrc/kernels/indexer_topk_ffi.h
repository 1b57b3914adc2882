// Owns the Python binding of indexer_topk: which tensors it takes.
#pragma once

#include <glm53/ffi.h>

#include <bit>
#include <kernels/indexer_topk.cuh>

namespace glm53 {

// logits: float32 or bf16 [rows, width], rows at multiples of 16 bytes. The rest is int32: lengths,
// counts, row_to_request, row_starts and out_offsets [rows], page_table [requests, pages], slots
// and positions [rows, k]. page_size: a power of two, of the page table's pages.
inline void indexer_topk(ffi::TensorView logits, ffi::TensorView lengths,
                         ffi::MaybeTensor page_table, ffi::MaybeTensor row_to_request,
                         ffi::MaybeTensor row_starts, ffi::MaybeTensor out_offsets,
                         std::int64_t page_size, ffi::TensorView slots, ffi::TensorView counts,
                         ffi::MaybeTensor positions) {
  using namespace sglang::host;
  constexpr std::int64_t kRowAlignment = 16;
  SymbolicSize rows{"rows"}, width{"width"}, k{"k"}, requests{"requests"}, pages{"pages"};
  SymbolicDevice device;
  device.set_options<ffi::kDevice>();
  const bool bf16 = logits.dtype() == ffi::kBf16;
  TensorMatcher({rows, width})
      .with_strides({-1, 1})
      .with_dtype(bf16 ? ffi::kBf16 : ffi::kFp32)
      .with_device<ffi::kDevice>(device)
      .ensure_alignment(kRowAlignment)
      .verify(logits);
  const auto match_rows = [&](const ffi::TensorView& tensor) {
    TensorMatcher({rows})
        .with_dtype(ffi::kInt32)
        .with_device<ffi::kDevice>(device)
        .verify(tensor);
  };
  const auto match = [&](const ffi::TensorView& tensor, SymbolicSize& tall, SymbolicSize& wide) {
    TensorMatcher({tall, wide})
        .with_strides({-1, 1})
        .with_dtype(ffi::kInt32)
        .with_device<ffi::kDevice>(device)
        .verify(tensor);
  };
  match_rows(lengths);
  match_rows(counts);
  for (const auto* tensor : {&row_to_request, &row_starts, &out_offsets}) {
    if (tensor->has_value()) match_rows(tensor->value());
  }
  match(slots, rows, k);
  if (positions.has_value()) match(positions.value(), rows, k);
  if (page_table.has_value()) match(page_table.value(), requests, pages);
  const std::int64_t selected = k.unwrap(), lines = page_table.has_value() ? requests.unwrap() : 0;
  CHECK_HOST(0 < selected && selected <= kMaxTopk)
      << "k is " << selected << ": use 1 to " << kMaxTopk;
  CHECK_HOST(page_size > 0 && std::has_single_bit(static_cast<std::uint64_t>(page_size)))
      << "page_size is " << page_size << ": use a power of two";
  CHECK_HOST(!(page_table.has_value() && out_offsets.has_value()))
      << "page_table and out_offsets both make the slots: give one";
  CHECK_HOST(!row_to_request.has_value() || page_table.has_value())
      << "row_to_request without a page_table";
  CHECK_HOST(!page_table.has_value() || row_to_request.has_value() || lines >= rows.unwrap())
      << "page_table has " << lines << " lines for " << rows.unwrap()
      << " rows: give row_to_request";

  if (rows.unwrap() == 0) return;
  const int page_bits = std::countr_zero(static_cast<std::uint64_t>(page_size));
  const auto tall = static_cast<std::uint32_t>(rows.unwrap());
  const auto wide = static_cast<std::uint32_t>(width.unwrap());
  const IndexerTopkPlan plan = plan_indexer_topk(tall, wide, bf16);
  const IndexerTopkParams params{
      .logits = logits.data_ptr(),
      .lengths = static_cast<const std::int32_t*>(lengths.data_ptr()),
      .row_starts = ffi::data_of<std::int32_t>(row_starts),
      .out_offsets = ffi::data_of<std::int32_t>(out_offsets),
      .page_table = ffi::data_of<std::int32_t>(page_table),
      .row_to_request = ffi::data_of<std::int32_t>(row_to_request),
      .slots = static_cast<std::int32_t*>(slots.data_ptr()),
      .positions = ffi::data_of<std::int32_t>(positions),
      .counts = static_cast<std::int32_t*>(counts.data_ptr()),
      .logits_stride = logits.stride(0),
      .page_table_stride = ffi::stride_of(page_table, 0),
      .slots_stride = slots.stride(0),
      .positions_stride = ffi::stride_of(positions, 0),
      .rows = tall,
      .width = wide,
      .k = static_cast<std::uint32_t>(selected),
      .requests = static_cast<std::uint32_t>(lines),
      .pages = page_table.has_value() ? static_cast<std::uint32_t>(pages.unwrap()) : 0,
      .page_bits = static_cast<std::uint32_t>(page_bits),
      .cache_words = plan.cache_words,
      .bf16 = bf16,
  };
  ffi::launch(indexer_topk_shape(params, plan), indexer_topk_entry(params, plan), params,
              device.unwrap());
}

}  // namespace glm53
