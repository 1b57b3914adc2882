// Owns the choice of platform: CUDA under nvcc, the emulation under a host compiler, one source for
// both.
// Kernels include this and nothing of CUDA's, so that what differs between the two stays in this
// folder.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <glm53/launch.cuh>

// `type name` in shared memory.
#define GLM53_SHARED(type, name) __shared__ type name
// `type* name`: the launch's dynamic shared memory.
#define GLM53_DYNAMIC_SHARED(type, name)                         \
  extern __shared__ __align__(16) unsigned char name##_bytes_[]; \
  type* name = reinterpret_cast<type*>(name##_bytes_)
#else
#include <emulation/emulation.h>
#endif

#include <cstdint>

namespace glm53 {

inline constexpr std::uint32_t kWarpThreads = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffu;

// Programmatic dependent launch: until pdl_wait() returns, nothing that an earlier kernel writes
// may be read, and nothing that it reads may be written. Every thread calls it.
__device__ __forceinline__ void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#elif !defined(__CUDACC__)
  emulation::inputs_are_ready();
#endif
}

// Lets the next kernel start its part ahead of its own pdl_wait(), once every block has called
// this.
__device__ __forceinline__ void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// One access to global memory, aligned to its size: 16 bytes wherever a row allows it.
template <class Word>
__device__ __forceinline__ Word load_global(const void* address) {
#if defined(__CUDACC__)
  return *static_cast<const Word*>(address);
#else
  emulation::access_global(address, sizeof(Word), false);
  Word word;
  std::memcpy(&word, address, sizeof word);
  return word;
#endif
}
template <class Word>
__device__ __forceinline__ void store_global(void* address, const Word& word) {
#if defined(__CUDACC__)
  *static_cast<Word*>(address) = word;
#else
  emulation::access_global(address, sizeof(Word), true);
  std::memcpy(address, &word, sizeof word);
#endif
}

}  // namespace glm53
