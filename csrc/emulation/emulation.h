// Owns nothing: what a kernel includes in place of CUDA's headers to run on a CPU, compiled as
// C++20.
// A kernel's CUDA threads run as fibers on one CPU thread, so its barriers and warp collectives
// work, every schedule can be replayed, and the sanitizers see each CUDA thread as one of theirs.
// Not emulated: weak memory, asynchronous copies, tensor cores, speed.
#pragma once

#include <emulation/intrinsics.h>
