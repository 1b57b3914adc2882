// Owns the Python binding of add_rmsnorm_quant: which tensors it takes.
#pragma once

#include <glm53/ffi.h>

#include <kernels/add_rmsnorm_quant.cuh>

namespace glm53 {

// x, residual, y: bf16 [rows, hidden]; q: e4m3 [rows, hidden]; weight: bf16 [hidden]. The columns
// are contiguous, rows start at multiples of 16 bytes. scale: float32 [rows, hidden / 128] or int32
// [rows, ceil(hidden / 512)], with any strides. q and scale are both there or both absent; so that
// nothing is computed in vain, y or q is there.
inline void add_rmsnorm_quant(ffi::TensorView x, ffi::MaybeTensor residual, ffi::TensorView weight,
                              ffi::MaybeTensor y, ffi::MaybeTensor q, ffi::MaybeTensor scale,
                              double eps) {
  using namespace sglang::host;
  constexpr std::int64_t kRowAlignment = 16;
  SymbolicSize rows{"rows"}, hidden{"hidden"};
  SymbolicDevice device;
  device.set_options<ffi::kDevice>();
  const auto match = [&](const ffi::TensorView& tensor, DLDataType dtype) {
    TensorMatcher({rows, hidden})
        .with_strides({-1, 1})
        .with_dtype(dtype)
        .with_device<ffi::kDevice>(device)
        .ensure_alignment(kRowAlignment)
        .verify(tensor);
  };
  match(x, ffi::kBf16);
  if (residual.has_value()) match(residual.value(), ffi::kBf16);
  if (y.has_value()) match(y.value(), ffi::kBf16);
  if (q.has_value()) match(q.value(), ffi::kE4m3);
  TensorMatcher({hidden})
      .with_dtype(ffi::kBf16)
      .with_device<ffi::kDevice>(device)
      .ensure_alignment(kRowAlignment)
      .verify(weight);
  const std::int64_t channels = hidden.unwrap();
  CHECK_HOST(channels > 0 && channels <= kMaxHidden && channels % kGroup == 0)
      << "hidden is " << channels << ": use a multiple of " << kGroup << " up to " << kMaxHidden;
  CHECK_HOST(q.has_value() == scale.has_value()) << "q and scale come together";
  CHECK_HOST(y.has_value() || q.has_value()) << "neither y nor q is asked for";

  Scales scales = Scales::kNone;
  if (scale.has_value()) {
    const bool packed = scale.value().dtype() == ffi::kInt32;
    scales = packed ? Scales::kPackedUe8m0 : Scales::kFp32;
    const std::int64_t groups = channels / kGroup;
    TensorMatcher({rows, packed ? (groups + 3) / 4 : groups})
        .with_strides({-1, -1})
        .with_dtype(packed ? ffi::kInt32 : ffi::kFp32)
        .with_device<ffi::kDevice>(device)
        .verify(scale.value());
  }
  if (rows.unwrap() == 0) return;
  const AddRmsNormQuantParams params{
      .x = static_cast<const Bf16*>(x.data_ptr()),
      .residual = ffi::data_of<Bf16>(residual),
      .weight = static_cast<const Bf16*>(weight.data_ptr()),
      .y = ffi::data_of<Bf16>(y),
      .q = ffi::data_of<E4m3>(q),
      .scale = ffi::data_of<void>(scale),
      .x_stride = x.stride(0),
      .residual_stride = ffi::stride_of(residual, 0),
      .y_stride = ffi::stride_of(y, 0),
      .q_stride = ffi::stride_of(q, 0),
      .scale_row_stride = ffi::stride_of(scale, 0),
      .scale_group_stride = ffi::stride_of(scale, 1),
      .rows = static_cast<std::uint32_t>(rows.unwrap()),
      .hidden = static_cast<std::uint32_t>(channels),
      .eps = static_cast<float>(eps),
      .scales = scales,
  };
  ffi::launch(add_rmsnorm_quant_shape(params), add_rmsnorm_quant_entry(scales), params,
              device.unwrap());
}

}  // namespace glm53
