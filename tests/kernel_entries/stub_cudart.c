/* Owns the answers that torch's C++ asks of the CUDA runtime; a launch that reaches it ends the process. */
#include <stdio.h>
#include <stdlib.h>

#define ANSWERS(name, ...) int name(__VA_ARGS__)
#define LAUNCH(name)                                             \
  int name(void) {                                               \
    fprintf(stderr, "unrecorded launch through %s\n", #name);    \
    abort();                                                     \
  }

ANSWERS(cudaGetDevice, int *device) { *device = 0; return 0; }
ANSWERS(cudaSetDevice, int device) { (void)device; return 0; }
ANSWERS(cudaGetDeviceCount, int *count) { *count = 1; return 0; }
ANSWERS(cudaGetLastError, void) { return 0; }
ANSWERS(cudaPeekAtLastError, void) { return 0; }
ANSWERS(cudaStreamIsCapturing, void *stream, int *status) { (void)stream; *status = 0; return 0; }
ANSWERS(cudaDriverGetVersion, int *version) { *version = 13000; return 0; }
ANSWERS(cudaDeviceGetStreamPriorityRange, int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
ANSWERS(cudaStreamQuery, void *stream) { (void)stream; return 0; }
ANSWERS(cudaDeviceSynchronize, void) { return 0; }
ANSWERS(cudaStreamSynchronize, void *stream) { (void)stream; return 0; }
ANSWERS(cudaDeviceGetAttribute, int *value, int attribute, int device) {
  (void)attribute;
  (void)device;
  *value = 1;
  return 0;
}

LAUNCH(cudaLaunchKernel)
LAUNCH(cudaLaunchKernelExC)
LAUNCH(cudaLaunchCooperativeKernel)
LAUNCH(cudaGraphLaunch)
LAUNCH(cudaMemcpyAsync)
LAUNCH(cudaMemsetAsync)
