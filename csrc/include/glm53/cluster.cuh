// Owns thread block clusters: a block's rank, the cluster's barrier, another block's shared memory.
// A block that was launched without a cluster is alone in one.
#pragma once

#include <glm53/device.cuh>

namespace glm53 {

__device__ __forceinline__ std::uint32_t cluster_rank() {
#if defined(__CUDACC__)
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return emulation::this_cluster().rank();
#endif
}

__device__ __forceinline__ std::uint32_t cluster_size() {
#if defined(__CUDACC__)
  std::uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return emulation::this_cluster().size();
#endif
}

// The barrier in two halves: what every thread did before it arrived is seen by all that have
// waited. Every thread of the cluster calls both, and no block ends while another may still reach
// for its shared memory.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#else
  emulation::this_cluster().arrive();
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  emulation::this_cluster().wait();
#endif
}

// Where an object of this block's shared memory is in the block of that rank.
template <class Type>
__device__ __forceinline__ Type* on_rank(Type* object, std::uint32_t rank) {
#if defined(__CUDACC__)
  std::uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(object), "r"(rank));
  return reinterpret_cast<Type*>(there);
#else
  return static_cast<Type*>(emulation::this_cluster().map(object, rank));
#endif
}

}  // namespace glm53
