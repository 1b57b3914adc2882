// Owns a kernel launch: its clusters one after another, in the schedule's order, on the calling
// thread; the threads of a cluster's blocks take turns.
//   launch(shape, kernel, params) runs kernel(params) in every thread or throws std::runtime_error
// Parameters without each_buffer() leave the kernel's accesses unchecked but for their alignment.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <emulation/cluster.h>
#include <emulation/memory.h>

namespace glm53::emulation {

// Of one launch; `machine` points at the running one.
struct Machine {
  explicit Machine(const Schedule& schedule) : scheduler(schedule) {}
  Scheduler scheduler;
  Memory memory;
  Cluster* cluster = nullptr;
  dim3 grid;
  void (*body)(const void* params) = nullptr;
  const void* params = nullptr;
  char started = 0, ended = 0;
};

inline Machine* machine = nullptr;
inline Schedule schedule;
// What the last launch moved, by buffer.
inline std::vector<Buffer> traffic;

GLM53_NO_TSAN inline Scheduler& running() { return machine->scheduler; }
GLM53_NO_TSAN inline Thread& this_thread() { return *machine->scheduler.current(); }
GLM53_NO_TSAN inline Block& this_block() { return *machine->scheduler.current()->block; }
GLM53_NO_TSAN inline Cluster& this_cluster() { return *machine->cluster; }
GLM53_NO_TSAN inline const dim3& this_grid() { return machine->grid; }

GLM53_NO_TSAN inline void inputs_are_ready() { this_thread().inputs_ready = true; }

inline void access_global(const void* pointer, std::uint64_t bytes, bool writing) {
  running().maybe_preempt();
  RuntimeScope scope;
  Thread& thread = this_thread();
  const std::string why = machine->memory.admit(thread, pointer, bytes, writing);
  if (!why.empty()) {
    thread.site = {};
    thread.block->refuse("global memory", why);
  }
}

inline void thread_entry() {
  Fiber::arrived(running().host());
  Fiber::acquire(&machine->started);
  machine->body(machine->params);
  this_block().exit();
  machine->cluster->exit();
  Fiber::release(&machine->ended);
  running().leave();
}

inline std::vector<std::unique_ptr<Thread>>& thread_pool(std::size_t size) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kStackBytes = 256 * 1024;
#else
  constexpr std::size_t kStackBytes = 64 * 1024;
#endif
  // Never destroyed: after a failed launch the sanitizers still know of threads that use it.
  static auto& pool = *new std::vector<std::unique_ptr<Thread>>;
  while (pool.size() < size) pool.push_back(std::make_unique<Thread>(kStackBytes));
  return pool;
}

inline std::vector<std::uint64_t> shuffled(Scheduler& scheduler, std::uint64_t count) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (scheduler.order() == Order::kReversed) std::reverse(order.begin(), order.end());
  if (scheduler.order() == Order::kRandom) {
    for (std::uint64_t i = count; i > 1; --i) {
      std::swap(order[i - 1], order[scheduler.random().below(static_cast<std::uint32_t>(i))]);
    }
  }
  return order;
}

// Shared memory that ThreadSanitizer may not see freed before the launch has ended; after a failed
// launch, never.
inline std::vector<Block::Storage>& kept_storage() {
  static auto& kept = *new std::vector<Block::Storage>;
  return kept;
}

inline void run_cluster(Machine& running, Cluster& cluster, bool pdl) {
  std::vector<Thread*> threads = cluster.members();
  if (running.scheduler.order() == Order::kReversed) std::reverse(threads.begin(), threads.end());
  for (Thread* thread : threads) {
    thread->site = {};
    thread->inputs_ready = !pdl;
    thread->arrivals = thread->passes = 0;
    thread->fiber.new_identity();
    thread->fiber.prepare(thread_entry);
    running.scheduler.make_ready(*thread);
  }
  running.cluster = &cluster;
  running.scheduler.run();
  if constexpr (kThreadSanitizer) {
    for (auto& block : cluster.blocks()) kept_storage().push_back(block->take_storage());
  }
  if (!running.scheduler.error().empty()) throw std::runtime_error(running.scheduler.error());
  for (const auto& block : cluster.blocks()) {
    if (!block->finished()) throw std::runtime_error(block->deadlock());
  }
  for (Thread* thread : threads) thread->fiber.drop_identity();
}

inline void check_shape(const LaunchShape& shape) {
  const std::uint64_t threads = std::uint64_t{shape.block.x} * shape.block.y * shape.block.z;
  std::string why;
  if (threads == 0 || threads > kMaxThreads) {
    why = "a block of " + std::to_string(threads) + " threads: use 1 to " +
          std::to_string(kMaxThreads);
  } else if (shape.dynamic_shared_bytes > kMaxSharedBytes) {
    why = std::to_string(shape.dynamic_shared_bytes) +
          " bytes of dynamic shared memory: use at most " + std::to_string(kMaxSharedBytes);
  } else if (!std::has_single_bit(shape.cluster) || shape.cluster > kMaxCluster) {
    why = "a cluster of " + std::to_string(shape.cluster) + " blocks: use a power of two up to " +
          std::to_string(kMaxCluster);
  } else if (shape.grid.x % shape.cluster) {
    why = "a grid of " + std::to_string(shape.grid.x) + " blocks in x has no whole clusters of " +
          std::to_string(shape.cluster);
  }
  if (!why.empty()) throw std::invalid_argument(why);
}

inline void run_grid(const LaunchShape& shape, Machine& current) {
  const std::uint32_t columns = shape.grid.x / shape.cluster;
  const std::uint32_t threads = shape.block.x * shape.block.y * shape.block.z;
  auto& pool = thread_pool(threads * shape.cluster);
  Fiber::release(&current.started);
  const std::uint64_t clusters = std::uint64_t{columns} * shape.grid.y * shape.grid.z;
  for (const std::uint64_t number : shuffled(current.scheduler, clusters)) {
    std::vector<std::unique_ptr<Block>> blocks;
    for (std::uint32_t rank = 0; rank < shape.cluster; ++rank) {
      const uint3 index{static_cast<std::uint32_t>(number % columns) * shape.cluster + rank,
                        static_cast<std::uint32_t>(number / columns % shape.grid.y),
                        static_cast<std::uint32_t>(number / columns / shape.grid.y)};
      blocks.push_back(std::make_unique<Block>(
          current.scheduler, std::span(pool).subspan(rank * threads, threads), index, shape.block,
          shape.dynamic_shared_bytes));
    }
    Cluster cluster(current.scheduler, std::move(blocks));
    run_cluster(current, cluster, shape.pdl);
  }
  Fiber::acquire(&current.ended);
  kept_storage().clear();
}

template <class Params>
void launch(const LaunchShape& shape, void (*kernel)(Params), const Params& params) {
  static std::mutex one_at_a_time;
  static void (*body)(Params);
  const std::lock_guard lock(one_at_a_time);
  RuntimeScope scope;
  check_shape(shape);
  Machine current(schedule);
  current.grid = shape.grid;
  current.params = &params;
  current.body = [](const void* bytes) { body(*static_cast<const Params*>(bytes)); };
  body = kernel;
  std::vector<Buffer> buffers;
  const auto visit = [&](const char* name, const void* base, std::uint64_t rows,
                         std::uint64_t row_bytes, std::uint64_t stride_bytes, Access access) {
    if (base) buffers.push_back({name, base, rows, row_bytes, stride_bytes, access});
  };
  if constexpr (requires { params.each_buffer(visit); }) params.each_buffer(visit);
  current.memory.describe(std::move(buffers));
  machine = &current;
  struct Reset {
    ~Reset() { machine = nullptr; }
  } reset;
  run_grid(shape, current);
  traffic = current.memory.buffers();
}

}  // namespace glm53::emulation
