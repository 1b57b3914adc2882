// Owns kernels with one seeded bug each, to show which check finds which bug.
// Usage: faults NAME ORDER SEED; prints "right", "wrong" or what the emulation refuses.
#include <cstring>
#include <vector>

#include <glm53/device.cuh>

#include "program.h"

using namespace glm53;

namespace {

constexpr std::uint32_t kThreads = 128, kBlocks = 3, kRow = 4 * kThreads, kStride = kRow + 16;

// The block reverses its row of 4 * kThreads words through shared memory and adds the row's sum to
// each.
struct Params {
  const std::uint32_t* in;  // [kBlocks, kRow], a row every kStride words
  std::uint32_t* out;       // [kBlocks, kRow]
  template <class Visit>
  void each_buffer(const Visit& visit) const {
    visit("in", in, kBlocks, kRow * 4, kStride * 4, Access::kRead);
    visit("out", out, kBlocks, kRow * 4, kRow * 4, Access::kWrite);
  }
};

enum class Bug {
  kNone,
  kNoBarrierBeforeRead,
  kNoBarrierBeforeReuse,
  kNoSyncWarp,
  kRace,
  kRaceOfBlocks,
  kLostUpdate,
  kUninitialised,
  kDivergentBarrier,
  kExitBeforeBarrier,
  kDeadlock,
  kMaskLeavesOutCaller,
  kMaskNamesExited,
  kMaskNamesAbsent,
  kMasksDiffer,
  kMixedCollectives,
  kLaneOutsideMask,
  kReadPastRow,
  kReadPastBuffer,
  kRawReadPastBuffer,
  kRawWritePastBuffer,
  kWriteToInput,
  kReadBeforeWait,
  kMisaligned,
  kRawMisaligned,
  kSharedIndex,
  kSharedOverrun,
  kShift,
};

template <Bug kBug>
std::uint32_t seeded_collective(std::uint32_t lane) {
  if constexpr (kBug == Bug::kMaskLeavesOutCaller) return __ballot_sync(0xfffffffeu, 1);
  if constexpr (kBug == Bug::kMasksDiffer) {
    return __ballot_sync(lane == 7 ? kAllLanes : kAllLanes - 1, lane == 0 ? 0 : 1);
  }
  if constexpr (kBug == Bug::kMixedCollectives) {
    return lane < 16 ? __shfl_xor_sync(kAllLanes, lane, 1) : __any_sync(kAllLanes, 1);
  }
  if constexpr (kBug == Bug::kLaneOutsideMask) {
    return lane < 16 ? __shfl_xor_sync(0xffffu, lane, 16) : 0;
  }
  return 0;
}

template <Bug kBug>
void kernel(Params params) {
  struct Shared {
    std::uint32_t row[kRow];
    std::uint32_t partial[kThreads / 32];
    std::uint32_t pair[kThreads];
    std::uint32_t count;
  };
  GLM53_SHARED(Shared, shared);
  GLM53_DYNAMIC_SHARED(std::uint32_t, scratch);
  const std::uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32, block = blockIdx.x;
  const std::uint32_t* in = params.in + block * kStride;
  std::uint32_t* out = params.out + (kBug == Bug::kRaceOfBlocks ? 0 : block * kRow);

  if constexpr (kBug != Bug::kReadBeforeWait) pdl_wait();
  if constexpr (kBug == Bug::kMaskNamesExited) {
    if (t == 5) return;
  }
  if constexpr (kBug == Bug::kExitBeforeBarrier) {
    if (warp == 3) return;
  }
  seeded_collective<kBug>(lane);
  if constexpr (kBug == Bug::kMaskNamesExited) __syncwarp();
  if constexpr (kBug == Bug::kWriteToInput) store_global(const_cast<std::uint32_t*>(in + t), 0u);

  std::uint32_t first = t * 4;
  if constexpr (kBug == Bug::kReadPastRow) first += 4;
  if constexpr (kBug == Bug::kReadPastBuffer) first += block * kStride + 16;
  uint4 word;
  if constexpr (kBug == Bug::kMisaligned) {
    word = load_global<uint4>(in + first + 1);
  } else if constexpr (kBug == Bug::kRawMisaligned) {
    word = *reinterpret_cast<const uint4*>(in + first + 1 - t % 2);
  } else {
    word = load_global<uint4>(in + first);
  }
  if constexpr (kBug == Bug::kRawReadPastBuffer) {
    if (block == kBlocks - 1 && in[kRow + t] == 77) ++word.x;
  }
  std::memcpy(shared.row + t * 4, &word, sizeof word);

  std::uint32_t sum = word.x + word.y + word.z + word.w;
  for (std::uint32_t step = 16; step; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane == 0) shared.partial[warp] = sum;
  if (t == 0) scratch[0] = 0;
  if constexpr (kBug == Bug::kRace) {
    if (lane == 0) shared.count = warp;
  }
  if constexpr (kBug == Bug::kDivergentBarrier) {
    if (warp == 0) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (kBug == Bug::kDeadlock) {
    if (t != 5) __syncthreads();
    if (t == 5) __shfl_sync(0x60u, t, 6);
  } else if constexpr (kBug != Bug::kNoBarrierBeforeRead) {
    __syncthreads();
  }
  std::uint32_t total = 0;
  for (const std::uint32_t part : shared.partial) total += part;
  if constexpr (kBug == Bug::kUninitialised) total += shared.count;
  if constexpr (kBug == Bug::kLostUpdate) {
    scratch[0] += 1;
  } else {
    atomicAdd(&scratch[0], 1u);
  }

  // Neighbours swap through shared memory, within the warp.
  shared.pair[t] = total + lane;
  if constexpr (kBug != Bug::kNoSyncWarp) __syncwarp();
  total = shared.pair[t ^ 1] - (lane ^ 1);
  if constexpr (kBug != Bug::kNoBarrierBeforeReuse) __syncthreads();
  if (lane == 0) shared.partial[warp] = 0;

  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t from = kRow - 1 - (t * 4 + i);
    store_global(out + t * 4 + i, shared.row[from] + total);
  }
  if constexpr (kBug == Bug::kSharedIndex) shared.partial[warp + blockDim.x / 32 - 3] = 0;
  if constexpr (kBug == Bug::kSharedOverrun) scratch[t / 127] = 0;
  if constexpr (kBug == Bug::kShift) scratch[0] = 1u << (lane + 1);
  if constexpr (kBug == Bug::kRawWritePastBuffer) params.out[kBlocks * kRow - 127 + t] = 0;
}

template <Bug kBug>
const char* run() {
  std::vector<std::uint32_t> in((kBlocks - 1) * kStride + kRow), out(kBlocks * kRow);
  in.shrink_to_fit();
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i * 2654435761u);
  // A vector's storage is 16-byte aligned, as cudaMalloc's is.
  const std::uint32_t threads = kBug == Bug::kMaskNamesAbsent ? kThreads - 8 : kThreads;
  const LaunchShape shape{.grid = {kBlocks},
                          .block = {threads},
                          .dynamic_shared_bytes = sizeof(std::uint32_t),
                          .pdl = true};
  emulation::launch<Params>(shape, kernel<kBug>, {in.data(), out.data()});
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    std::uint32_t total = 0;
    for (std::uint32_t i = 0; i < kRow; ++i) total += in[block * kStride + i];
    for (std::uint32_t i = 0; i < kRow; ++i) {
      if (out[block * kRow + i] != in[block * kStride + kRow - 1 - i] + total) return "wrong";
    }
  }
  return "right";
}

#define ENTRY(name) {#name, run<Bug::k##name>}
constexpr program::Entry kEntries[] = {
    ENTRY(None),
    ENTRY(NoBarrierBeforeRead),
    ENTRY(NoBarrierBeforeReuse),
    ENTRY(NoSyncWarp),
    ENTRY(Race),
    ENTRY(RaceOfBlocks),
    ENTRY(LostUpdate),
    ENTRY(Uninitialised),
    ENTRY(DivergentBarrier),
    ENTRY(ExitBeforeBarrier),
    ENTRY(Deadlock),
    ENTRY(MaskLeavesOutCaller),
    ENTRY(MaskNamesExited),
    ENTRY(MaskNamesAbsent),
    ENTRY(MasksDiffer),
    ENTRY(MixedCollectives),
    ENTRY(LaneOutsideMask),
    ENTRY(ReadPastRow),
    ENTRY(ReadPastBuffer),
    ENTRY(RawReadPastBuffer),
    ENTRY(RawWritePastBuffer),
    ENTRY(WriteToInput),
    ENTRY(ReadBeforeWait),
    ENTRY(Misaligned),
    ENTRY(RawMisaligned),
    ENTRY(SharedIndex),
    ENTRY(SharedOverrun),
    ENTRY(Shift),
};

}  // namespace

int main(int, char** arguments) { return program::run_entry(kEntries, arguments); }
