// Owns add_rmsnorm_quant: residual += x; y = rmsnorm(residual) * weight; q, scale = y in FP8.
// One block a row, one warp for 512 channels: a lane holds two 16-byte words of the row, so a
// warp's accesses are contiguous, 16 lanes hold one group of 128 channels, and a warp holds the
// four groups that share a word of packed scales. The sum of squares crosses warps; nothing else
// does. The norm is taken of the FP32 sum, as SGLang's is; q is quantised from y after its rounding
// to bf16, so that q is what a separate quantiser would make of y.
#pragma once

#include <glm53/device.cuh>
#include <glm53/pack.cuh>
#include <glm53/quantise.cuh>
#include <glm53/reduce.cuh>

namespace glm53 {

// kFp32: [rows, groups] FP32, any strides. kPackedUe8m0: [rows, ceil(groups / 4)] int32, four
// exponents in each, the lowest group in the lowest byte, zero past the last group.
enum class Scales : std::uint8_t { kNone, kFp32, kPackedUe8m0 };

// Strides are in elements. x, residual, y and q have 16-byte aligned rows, q's may be 8-byte
// aligned.
struct AddRmsNormQuantParams {
  const Bf16* x;       // [rows, hidden]
  Bf16* residual;      // [rows, hidden], updated in place; null: y is the norm of x
  const Bf16* weight;  // [hidden]
  Bf16* y;             // [rows, hidden], or null
  E4m3* q;             // [rows, hidden], null exactly when scale is
  void* scale;         // as `scales` says
  std::int64_t x_stride, residual_stride, y_stride, q_stride;
  std::int64_t scale_row_stride, scale_group_stride;
  std::uint32_t rows, hidden;  // hidden: a multiple of 128, up to 8192
  float eps;
  Scales scales;

  template <class Visit>
  void each_buffer(const Visit& visit) const {
    const std::uint64_t bytes = std::uint64_t{hidden} * sizeof(Bf16);
    visit("x", x, rows, bytes, x_stride * sizeof(Bf16), Access::kRead);
    visit("residual", residual, rows, bytes, residual_stride * sizeof(Bf16), Access::kReadWrite);
    visit("weight", weight, 1, bytes, bytes, Access::kConstant);
    visit("y", y, rows, bytes, y_stride * sizeof(Bf16), Access::kWrite);
    visit("q", q, rows, hidden * sizeof(E4m3), q_stride * sizeof(E4m3), Access::kWrite);
    const std::uint64_t groups = hidden / kGroup;
    const std::uint64_t columns = scales == Scales::kFp32 ? groups : (groups + 3) / 4;
    const bool by_row = scale_group_stride == 1;
    visit("scale", scale, by_row ? rows : columns, (by_row ? columns : rows) * 4,
          (by_row ? scale_row_stride : scale_group_stride) * 4, Access::kWrite);
  }
};

inline constexpr std::uint32_t kLaneWords = 2;
inline constexpr std::uint32_t kWarpChannels = kLaneWords * kWarpThreads * kBf16InWord;
inline constexpr std::uint32_t kGroupLanes = kGroup / kBf16InWord;
inline constexpr std::uint32_t kMaxHidden = 8192;
inline constexpr std::uint32_t kMaxWarps = kMaxHidden / kWarpChannels;
static_assert(kWarpChannels == 4 * kGroup, "a warp writes whole words of packed scales");
static_assert(kGroupLanes * 2 == kWarpThreads, "half of a warp holds a group");

template <Scales kScales>
__global__ void __launch_bounds__(kMaxWarps* kWarpThreads)
    add_rmsnorm_quant_kernel(const __grid_constant__ AddRmsNormQuantParams params) {
  struct Shared {
    float partial[kMaxWarps];
  };
  GLM53_SHARED(Shared, shared);
  const std::uint32_t warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const std::int64_t row = blockIdx.x;
  std::uint32_t channel[kLaneWords];
  bool inside[kLaneWords];  // the same for the 16 lanes of a group
#pragma unroll
  for (std::uint32_t i = 0; i < kLaneWords; ++i) {
    channel[i] = warp * kWarpChannels + (i * kWarpThreads + lane) * kBf16InWord;
    inside[i] = channel[i] < params.hidden;
  }

  // Load the weight: no kernel ahead writes it.
  uint4 weight[kLaneWords] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kLaneWords; ++i) {
    if (inside[i]) weight[i] = load_global<uint4>(params.weight + channel[i]);
  }
  pdl_wait();

  // Load the row and the residual, all words before the first use.
  uint4 word[kLaneWords] = {}, residual[kLaneWords] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kLaneWords; ++i) {
    if (!inside[i]) continue;
    word[i] = load_global<uint4>(params.x + row * params.x_stride + channel[i]);
    if (params.residual) {
      residual[i] = load_global<uint4>(params.residual + row * params.residual_stride + channel[i]);
    }
  }

  // Add, store the rounded sum, keep the exact one.
  float values[kLaneWords][kBf16InWord];
  float squares = 0.0f;
#pragma unroll
  for (std::uint32_t i = 0; i < kLaneWords; ++i) {
    unpack_bf16x8(word[i], values[i]);
    if (params.residual) {
      float addend[kBf16InWord];
      unpack_bf16x8(residual[i], addend);
#pragma unroll
      for (std::uint32_t j = 0; j < kBf16InWord; ++j) values[i][j] += addend[j];
      if (inside[i]) {
        store_global(params.residual + row * params.residual_stride + channel[i],
                     pack_bf16x8(values[i]));
      }
    }
#pragma unroll
    for (std::uint32_t j = 0; j < kBf16InWord; ++j) {
      squares = fmaf(values[i][j], values[i][j], squares);
    }
  }
  const float mean = block_sum(squares, shared.partial) / static_cast<float>(params.hidden);
  const float inverse = __frsqrt_rn(mean + params.eps);

  // Scale by the norm and the weight, round to bf16, store y, find each group's largest magnitude.
  float amax[kLaneWords];
#pragma unroll
  for (std::uint32_t i = 0; i < kLaneWords; ++i) {
    float gain[kBf16InWord];
    unpack_bf16x8(weight[i], gain);
#pragma unroll
    for (std::uint32_t j = 0; j < kBf16InWord; ++j) values[i][j] = values[i][j] * inverse * gain[j];
    const uint4 rounded = pack_bf16x8(values[i]);
    if (params.y && inside[i]) {
      store_global(params.y + row * params.y_stride + channel[i], rounded);
    }
    if constexpr (kScales != Scales::kNone) {
      unpack_bf16x8(rounded, values[i]);
      amax[i] = 0.0f;
#pragma unroll
      for (std::uint32_t j = 0; j < kBf16InWord; ++j) amax[i] = fmaxf(amax[i], fabsf(values[i][j]));
      amax[i] = lanes_max<kGroupLanes>(amax[i]);
    }
  }

  // Quantise each group and store its scale.
  if constexpr (kScales != Scales::kNone) {
    std::uint32_t exponents = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kLaneWords; ++i) {
      const std::uint32_t group = channel[i] / kGroup;
      float multiplier;
      if constexpr (kScales == Scales::kFp32) {
        const GroupScale found = group_scale(amax[i]);
        multiplier = found.multiplier;
        if (inside[i] && lane % kGroupLanes == 0) {
          store_global(static_cast<float*>(params.scale) + row * params.scale_row_stride +
                           group * params.scale_group_stride,
                       found.scale);
        }
      } else {
        const GroupExponent found = group_exponent(amax[i]);
        multiplier = found.multiplier;
        if (inside[i]) exponents |= found.exponent << group % 4 * 8;
      }
      if (inside[i]) {
        store_global(params.q + row * params.q_stride + channel[i],
                     quantise_x8(values[i], multiplier));
      }
    }
    if constexpr (kScales == Scales::kPackedUe8m0) {
      exponents |= __shfl_down_sync(kAllLanes, exponents, kGroupLanes);
      if (lane == 0) {
        store_global(static_cast<std::uint32_t*>(params.scale) + row * params.scale_row_stride +
                         warp * params.scale_group_stride,
                     exponents);
      }
    }
  }
  pdl_trigger();
}

inline LaunchShape add_rmsnorm_quant_shape(const AddRmsNormQuantParams& params) {
  const std::uint32_t warps = (params.hidden + kWarpChannels - 1) / kWarpChannels;
  return {.grid = dim3{params.rows, 1, 1}, .block = dim3{warps * kWarpThreads, 1, 1}, .pdl = true};
}

inline auto add_rmsnorm_quant_entry(Scales scales) -> void (*)(AddRmsNormQuantParams) {
  switch (scales) {
    case Scales::kFp32:
      return add_rmsnorm_quant_kernel<Scales::kFp32>;
    case Scales::kPackedUe8m0:
      return add_rmsnorm_quant_kernel<Scales::kPackedUe8m0>;
    default:
      return add_rmsnorm_quant_kernel<Scales::kNone>;
  }
}

}  // namespace glm53
