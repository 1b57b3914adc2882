// Owns a table of conversions: for each FP32 value that comes in, its bf16 (two bytes) and e4m3
// (one byte).
// Usage: numbers < values > table. With -DGLM53_NVIDIA they are NVIDIA's own, from CUDA's headers.
#include <cstdint>
#include <cstdio>

#if defined(GLM53_NVIDIA)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
static std::uint16_t bf16(float value) {
  const __nv_bfloat16_raw raw = __float2bfloat16_rn(value);
  return raw.x;
}
static std::uint8_t e4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}
#else
#include <emulation/types.h>
static std::uint16_t bf16(float value) { return glm53::emulation::bf16_bits(value); }
static std::uint8_t e4m3(float value) { return glm53::emulation::e4m3_bits(value); }
#endif

int main() {
  float value;
  while (std::fread(&value, sizeof value, 1, stdin) == 1) {
    const std::uint16_t wide = bf16(value);
    const std::uint8_t narrow = e4m3(value);
    std::fwrite(&wide, sizeof wide, 1, stdout);
    std::fwrite(&narrow, sizeof narrow, 1, stdout);
  }
}
