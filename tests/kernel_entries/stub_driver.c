/* Owns a driver library that the kernel packages load against; a launch that reaches it ends the process. */
#include <stdio.h>
#include <stdlib.h>

#define NOTHING(name) int name(void) { return 0; }
#define LAUNCH(name)                                             \
  int name(void) {                                               \
    fprintf(stderr, "unrecorded launch through %s\n", #name);    \
    abort();                                                     \
  }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }

/* CUDA_ERROR_NOT_FOUND: a statically linked runtime finds no driver and cannot launch past these stubs. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long flags, void *found) {
  (void)symbol;
  (void)version;
  (void)flags;
  (void)found;
  *function = 0;
  return 500;
}

NOTHING(cuCtxFromGreenCtx)
NOTHING(cuCtxPopCurrent_v2)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuDevResourceGenerateDesc)
NOTHING(cuDevSmResourceSplitByCount)
NOTHING(cuDeviceGetAttribute)
NOTHING(cuDeviceGetDevResource)
NOTHING(cuDeviceGetUuid)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuGetErrorName)
NOTHING(cuGetErrorString)
NOTHING(cuGreenCtxCreate)
NOTHING(cuGreenCtxDestroy)
NOTHING(cuGreenCtxGetDevResource)
NOTHING(cuInit)
NOTHING(cuLinkAddData_v2)
NOTHING(cuMemGetAddressRange_v2)
NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOTHING(cuPointerGetAttribute)
NOTHING(cuStreamCreate)
NOTHING(cuTensorMapEncodeTiled)

LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernelEx)
LAUNCH(cuLaunchCooperativeKernel)
LAUNCH(cuGraphLaunch)
