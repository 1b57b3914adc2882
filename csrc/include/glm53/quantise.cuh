// Owns the arithmetic of one FP8 group: 128 channels, one scale, e4m3 values.
// For the same input, the bits of SGLang 0.5.23's quantiser,
// kernels/jit/csrc/gemm/per_token_group_quant.cuh, infinities and NaN included.
#pragma once

#include <glm53/pack.cuh>

namespace glm53 {

inline constexpr std::uint32_t kGroup = 128;
inline constexpr float kE4m3Max = 448.0f;
// Keeps the scale of a group of zeros finite and above zero.
inline constexpr float kAmaxFloor = 1e-10f;

// The scale as the GEMM reads it, and what the values are multiplied with.
struct GroupScale {
  float scale;
  float multiplier;
};
struct GroupExponent {
  std::uint32_t exponent;
  float multiplier;
};

// 448 / amax as --use_fast_math makes it there: 448 times a reciprocal, 0 where that is denormal.
__device__ __forceinline__ float multiplier_of(float amax) {
#if defined(__CUDACC__)
  float quotient = 0.0f;
#if defined(__CUDA_ARCH__)
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(kE4m3Max), "f"(amax));
#endif
  return quotient;
#else
  return amax > 0x1p126f ? 0.0f : kE4m3Max * (1.0f / amax);
#endif
}

// FP32 scale. amax: the group's largest magnitude, NaN left out. An infinite amax gives an infinite
// scale and a multiplier of 0.
__device__ __forceinline__ GroupScale group_scale(float amax) {
  const float floored = fmaxf(amax, kAmaxFloor);
  return {floored * (1.0f / kE4m3Max), multiplier_of(floored)};
}

// Power-of-two scale, rounded up: 2^(exponent - 127). An infinite amax gives exponent 255, which is
// NaN in UE8M0, and a multiplier of minus infinity.
__device__ __forceinline__ GroupExponent group_exponent(float amax) {
  const std::uint32_t scale = __float_as_uint(fmaxf(amax, kAmaxFloor) * (1.0f / kE4m3Max));
  const std::uint32_t exponent = (scale >> 23) + ((scale & 0x7fffffu) != 0);
  return {exponent, __uint_as_float((254u - exponent) << 23)};
}

// Eight values times the multiplier, as e4m3.
__device__ __forceinline__ uint2 quantise_x8(const float (&values)[8], float multiplier) {
  float scaled[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) scaled[i] = values[i] * multiplier;
  return pack_e4m3x8(scaled);
}

}  // namespace glm53
