// Owns a program that runs indexer_topk on cases from a file, each buffer a heap block of its own.
// Usage: indexer_topk CASES RESULTS ORDER SEED. A case is a Header and logits, lengths and, where
// the header says so, row_starts, out_offsets, page_table and row_to_request; its result is slots,
// positions, counts, and the bytes read of the logits.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include <kernels/indexer_topk.cuh>

#include "program.h"

using namespace glm53;

namespace {

struct Header {
  std::int64_t rows, width, k, bf16, stride;
  std::int64_t has_starts, has_offsets, requests, pages, page_bits, has_map;
  // A launch that differs from the planned one, or zeros.
  std::int64_t threads, cluster, cache_words;
};

// Exactly as long as needed, so that AddressSanitizer guards its end.
template <class Element>
struct Tensor {
  explicit Tensor(std::int64_t elements) : bytes(elements * sizeof(Element)) {
    if (!bytes) return;
    data = static_cast<Element*>(::operator new(bytes, std::align_val_t(16)));
    std::memset(static_cast<void*>(data), 0xa5, bytes);
  }
  ~Tensor() { ::operator delete(static_cast<void*>(data), std::align_val_t(16)); }
  void read(std::FILE* file) {
    if (bytes && std::fread(static_cast<void*>(data), 1, bytes, file) != bytes) {
      throw std::runtime_error("the case is cut short");
    }
  }
  void write(std::FILE* file) const { std::fwrite(data, 1, bytes, file); }

  Element* data = nullptr;
  std::size_t bytes;
};

void run(const Header& header, std::FILE* cases, std::FILE* results) {
  const std::int64_t rows = header.rows, last = (rows - 1) * header.stride + header.width;
  Tensor<std::uint8_t> logits(last * (header.bf16 ? 2 : 4));
  Tensor<std::int32_t> lengths(rows), starts(header.has_starts ? rows : 0);
  Tensor<std::int32_t> offsets(header.has_offsets ? rows : 0);
  Tensor<std::int32_t> table(header.requests * header.pages), map(header.has_map ? rows : 0);
  Tensor<std::int32_t> slots(rows * header.k), positions(rows * header.k), counts(rows);
  logits.read(cases);
  for (auto* tensor : {&lengths, &starts, &offsets, &table, &map}) tensor->read(cases);
  IndexerTopkPlan plan = plan_indexer_topk(static_cast<std::uint32_t>(rows),
                                           static_cast<std::uint32_t>(header.width), header.bf16);
  if (header.threads) {
    plan = {static_cast<std::uint32_t>(header.threads), static_cast<std::uint32_t>(header.cluster),
            static_cast<std::uint32_t>(header.cache_words)};
  }
  const IndexerTopkParams params{
      .logits = logits.data,
      .lengths = lengths.data,
      .row_starts = starts.data,
      .out_offsets = offsets.data,
      .page_table = table.data,
      .row_to_request = map.data,
      .slots = slots.data,
      .positions = positions.data,
      .counts = counts.data,
      .logits_stride = header.stride,
      .page_table_stride = header.pages,
      .slots_stride = header.k,
      .positions_stride = header.k,
      .rows = static_cast<std::uint32_t>(rows),
      .width = static_cast<std::uint32_t>(header.width),
      .k = static_cast<std::uint32_t>(header.k),
      .requests = static_cast<std::uint32_t>(header.requests),
      .pages = static_cast<std::uint32_t>(header.pages),
      .page_bits = static_cast<std::uint32_t>(header.page_bits),
      .cache_words = plan.cache_words,
      .bf16 = header.bf16 != 0,
  };
  emulation::launch(indexer_topk_shape(params, plan), indexer_topk_entry(params, plan), params);
  for (const auto* tensor : {&slots, &positions, &counts}) tensor->write(results);
  std::fwrite(&emulation::traffic.at(0).bytes_read, sizeof(std::uint64_t), 1, results);
}

}  // namespace

int main(int, char** arguments) { return program::run_cases<Header>(run, arguments); }
