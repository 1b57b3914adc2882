// Owns the narrow number formats: bf16 and e4m3 in memory, FP32 in registers.
#pragma once

#include <glm53/device.cuh>

namespace glm53 {

// Only their size matters to a kernel; words of several are unpacked below.
struct Bf16 {
  std::uint16_t bits;
};
struct E4m3 {
  std::uint8_t bits;
};

inline constexpr std::uint32_t kBf16InWord = 16 / sizeof(Bf16);

// Two bf16 values of a 32-bit word, the one at the lower address first.
__device__ __forceinline__ float2 unpack_bf16x2(std::uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// Rounds to the nearest bf16, ties to even; NaN becomes 0x7fff.
__device__ __forceinline__ std::uint32_t pack_bf16x2(float first, float second) {
#if defined(__CUDACC__)
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
#else
  const std::uint32_t low = emulation::bf16_bits(first), high = emulation::bf16_bits(second);
  return low | high << 16;
#endif
}

// Rounds to the nearest e4m3, ties to even; beyond 448 it is 448 and NaN becomes 0x7f.
__device__ __forceinline__ std::uint32_t pack_e4m3x2(float first, float second) {
#if defined(__CUDACC__)
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
#else
  const std::uint32_t low = emulation::e4m3_bits(first), high = emulation::e4m3_bits(second);
  return low | high << 8;
#endif
}

// Eight bf16 values of a 16-byte word to FP32 and back.
__device__ __forceinline__ void unpack_bf16x8(const uint4& word, float (&values)[8]) {
  const std::uint32_t parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16x2(parts[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ uint4 pack_bf16x8(const float (&values)[8]) {
  return {pack_bf16x2(values[0], values[1]), pack_bf16x2(values[2], values[3]),
          pack_bf16x2(values[4], values[5]), pack_bf16x2(values[6], values[7])};
}
__device__ __forceinline__ uint2 pack_e4m3x8(const float (&values)[8]) {
  return {pack_e4m3x2(values[0], values[1]) | pack_e4m3x2(values[2], values[3]) << 16,
          pack_e4m3x2(values[4], values[5]) | pack_e4m3x2(values[6], values[7]) << 16};
}

}  // namespace glm53
