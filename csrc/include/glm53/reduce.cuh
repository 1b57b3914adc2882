// Owns reductions and scans over a warp, part of a warp and a block, always in the same order.
#pragma once

#include <glm53/device.cuh>

namespace glm53 {

// The sum over the warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (std::uint32_t step = kWarpThreads / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, step);
  }
  return value;
}

// The largest of kLanes neighbouring lanes, in each of them. NaN counts only where all are NaN.
template <std::uint32_t kLanes>
__device__ __forceinline__ float lanes_max(float value) {
#pragma unroll
  for (std::uint32_t step = kLanes / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

// The sum over the block, in every thread. partial: one float for each warp, in shared memory; the
// block has whole warps, at most 32, and calls this once for each `partial`.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const std::uint32_t warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / kWarpThreads ? partial[lane] : 0.0f);
}

// The sum of what the threads before this one brought. `total`: of all. partial: one value for each
// warp, in shared memory; the block has whole warps, and passes another barrier before it reuses
// `partial`.
template <class Value>
__device__ __forceinline__ Value block_scan(Value value, Value* partial, Value& total) {
  const std::uint32_t warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const auto inclusive = [&](Value sum) {
#pragma unroll
    for (std::uint32_t step = 1; step < kWarpThreads; step *= 2) {
      const Value before = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += before;
    }
    return sum;
  };
  const Value in_warp = inclusive(value);
  if (lane == kWarpThreads - 1) partial[warp] = in_warp;
  __syncthreads();
  const Value warps = inclusive(lane < blockDim.x / kWarpThreads ? partial[lane] : Value{});
  total = __shfl_sync(kAllLanes, warps, kWarpThreads - 1);
  const Value before_warp = __shfl_sync(kAllLanes, warps, warp == 0 ? 0 : warp - 1);
  return in_warp - value + (warp == 0 ? Value{} : before_warp);
}

}  // namespace glm53
