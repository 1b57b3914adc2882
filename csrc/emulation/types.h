// Owns CUDA's words for a host compiler: qualifiers, vector types, and numbers rounded as the
// device does.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct uint2 {
  std::uint32_t x, y;
};
struct uint3 {
  std::uint32_t x, y, z;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};
using std::max;
using std::min;
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace glm53::emulation {

// FP32 to bf16, ties to even; every NaN becomes 0x7fff, as PTX's cvt.rn.bf16.f32 has it.
inline std::uint16_t bf16_bits(float value) {
  if (std::isnan(value)) return 0x7fff;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// FP32 to e4m3, ties to even, saturating: infinities and what is beyond 448 become 448; every NaN
// becomes 0x7f, as PTX's cvt.rn.satfinite.e4m3x2.f32 has it.
inline std::uint8_t e4m3_bits(float value) {
  if (std::isnan(value)) return 0x7f;
  constexpr std::uint8_t kLargest = 0x7e;
  constexpr float kLeastNormal = 0x1p-6f, kLeastSubnormal = 0x1p-9f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint8_t sign = bits >> 24 & 0x80;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return sign | kLargest;
  if (magnitude < kLeastNormal) {
    return sign | static_cast<std::uint8_t>(std::nearbyint(magnitude / kLeastSubnormal));
  }
  // Keep three bits of the mantissa and move the exponent's bias from 127 to 7.
  const std::uint32_t kept = (bits & 0x7fffffff) + 0x7ffff + (bits >> 20 & 1);
  return sign | static_cast<std::uint8_t>((kept >> 20) - ((127 - 7) << 3));
}

}  // namespace glm53::emulation

inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
// Rounded once: long double carries more than twice float's bits, or enough of them that no square
// root of a float lies so close to a tie.
inline float __frsqrt_rn(float value) {
  return static_cast<float>(1.0L / std::sqrt(static_cast<long double>(value)));
}
