// Owns kernels over thread block clusters: one that is right, and ones with a seeded bug each.
// Usage: clusters NAME ORDER SEED; prints "right", "wrong" or what the emulation refuses.
#include <vector>

#include <glm53/cluster.cuh>

#include "program.h"

using namespace glm53;

namespace {

constexpr std::uint32_t kThreads = 64, kBlocks = 4, kClusters = 2;

enum class Bug {
  kNone,
  kNoWait,
  kNoBarrierBeforeRead,
  kBlockEndsEarly,
  kArrivesTwice,
  kWaitsAlone,
  kExitsWithoutWaiting,
  kThreadStaysAway,
  kRankOutside,
  kNotShared,
};

struct Params {
  std::uint32_t* out;  // [kClusters * kBlocks, kThreads]
};

// Every block writes a line, adds to a counter of each other block, and sums up the lines of all.
template <Bug kBug>
void kernel(Params params) {
  struct Shared {
    std::uint32_t line[kThreads];
    std::uint32_t visits;
  };
  GLM53_SHARED(Shared, shared);
  GLM53_DYNAMIC_SHARED(std::uint32_t, rank_there);
  const std::uint32_t t = threadIdx.x, rank = cluster_rank();
  if (t == 0) {
    shared.visits = 0;
    *rank_there = rank;
  }
  if constexpr (kBug == Bug::kThreadStaysAway) {
    if (rank == 2 && t == 7) return;
  }
  cluster_arrive();
  if constexpr (kBug == Bug::kArrivesTwice) cluster_arrive();
  // Between the two halves a thread may work on what is its own.
  shared.line[t] = blockIdx.x * 1000 + t;
  if constexpr (kBug != Bug::kNoWait) cluster_wait();
  if constexpr (kBug == Bug::kWaitsAlone) cluster_wait();

  if (t < cluster_size() && kBug != Bug::kRankOutside) atomicAdd(on_rank(&shared.visits, t), 1u);
  if constexpr (kBug == Bug::kRankOutside) on_rank(&shared.visits, kBlocks);
  if constexpr (kBug == Bug::kNotShared) on_rank(params.out, 1);
  if constexpr (kBug != Bug::kNoBarrierBeforeRead && kBug != Bug::kNoWait) {
    cluster_arrive();
    cluster_wait();
  }
  std::uint32_t sum = shared.visits;
  for (std::uint32_t from = 0; from < kBlocks; ++from) {
    sum += *on_rank(shared.line + (t + 1) % kThreads, from) + *on_rank(rank_there, from);
  }
  params.out[blockIdx.x * kThreads + t] = sum;
  if constexpr (kBug == Bug::kBlockEndsEarly) return;
  cluster_arrive();
  if constexpr (kBug != Bug::kExitsWithoutWaiting) cluster_wait();
}

template <Bug kBug>
const char* run() {
  std::vector<std::uint32_t> out(kClusters * kBlocks * kThreads);
  const LaunchShape shape{.grid = {kClusters * kBlocks},
                          .block = {kThreads},
                          .dynamic_shared_bytes = sizeof(std::uint32_t),
                          .cluster = kBlocks};
  emulation::launch<Params>(shape, kernel<kBug>, {out.data()});
  for (std::uint32_t block = 0; block < kClusters * kBlocks; ++block) {
    const std::uint32_t first = block / kBlocks * kBlocks;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      std::uint32_t sum = kBlocks;
      for (std::uint32_t from = 0; from < kBlocks; ++from) {
        sum += (first + from) * 1000 + (t + 1) % kThreads + from;
      }
      if (out[block * kThreads + t] != sum) return "wrong";
    }
  }
  return "right";
}

#define ENTRY(name) {#name, run<Bug::k##name>}
constexpr program::Entry kEntries[] = {
    ENTRY(None),
    ENTRY(NoWait),
    ENTRY(NoBarrierBeforeRead),
    ENTRY(BlockEndsEarly),
    ENTRY(ArrivesTwice),
    ENTRY(WaitsAlone),
    ENTRY(ExitsWithoutWaiting),
    ENTRY(ThreadStaysAway),
    ENTRY(RankOutside),
    ENTRY(NotShared),
};

}  // namespace

int main(int, char** arguments) { return program::run_entry(kEntries, arguments); }
