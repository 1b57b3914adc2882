// Owns what the kernels' Python bindings share: tensor types, the device, and the launch.
// The host half of a module that SGLang's JIT builds, with nvcc for a GPU or with a host compiler
// for the emulation; a binding is kernels/<stem>_ffi.h.
#pragma once

#include <sgl_kernel/tensor.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>

#include <glm53/device.cuh>
#if defined(__CUDACC__)
#include <sgl_kernel/utils.cuh>
#else
#include <emulation/ffi.h>
#endif

namespace glm53::ffi {

using tvm::ffi::TensorView;
using MaybeTensor = tvm::ffi::Optional<TensorView>;

inline constexpr DLDataType kBf16{kDLBfloat, 16, 1};
inline constexpr DLDataType kE4m3{kDLFloat8_e4m3fn, 8, 1};
inline constexpr DLDataType kFp32{kDLFloat, 32, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
#if defined(__CUDACC__)
inline constexpr DLDeviceType kDevice = kDLCUDA;
#else
inline constexpr DLDeviceType kDevice = kDLCPU;
#endif

template <class Element>
Element* data_of(const MaybeTensor& tensor) {
  return tensor.has_value() ? static_cast<Element*>(tensor.value().data_ptr()) : nullptr;
}
inline std::int64_t stride_of(const MaybeTensor& tensor, int dimension) {
  return tensor.has_value() ? tensor.value().stride(dimension) : 0;
}

// Launches kernel(params) on the device's current stream.
template <class Params>
void launch(const LaunchShape& shape, void (*kernel)(Params), const Params& params,
            DLDevice device) {
#if defined(__CUDACC__)
  if (shape.dynamic_shared_bytes > 0) {
    // Beyond 48 KiB a kernel must be told; a setting of the kernel, not of the stream.
    CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.dynamic_shared_bytes)));
  }
  sglang::host::LaunchKernel launch(shape.grid, shape.block, device, shape.dynamic_shared_bytes);
  launch.enable_pdl(shape.pdl);
  if (shape.cluster > 1) launch.enable_cluster(dim3{shape.cluster, 1, 1});
  launch(kernel, params);
#else
  (void)device;
  emulation::launch(shape, kernel, params);
#endif
}

}  // namespace glm53::ffi
