// Owns a thread block: its barrier, its warps' collectives, its shared memory, and what it refuses.
// Refused, with the place in the source: a barrier that part of the block passes elsewhere or
// never, a collective whose lanes disagree on the mask, the operation or the place, a mask that
// names absent or exited lanes or leaves out the caller, a shuffle that reads a lane outside its
// mask, and a deadlock. CUDA leaves all of them undefined.
#pragma once

#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include <emulation/scheduler.h>

namespace glm53::emulation {

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kMaxThreads = 1024;
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;
// Uninitialised shared memory reads as this byte: NaN as a float, -1 as an int.
inline constexpr int kPoison = 0xff;

class Warp;

// One kind of warp collective: finds each lane's result from what the lanes of the mask brought.
struct Operation {
  const char* name;
  void (*combine)(Warp& warp, std::uint32_t mask);
  // Of the warp collectives only __syncwarp orders memory accesses.
  bool orders_memory = false;
};

class Warp {
 public:
  Thread& lane(std::uint32_t index) { return *lanes_[index]; }
  void add(Thread& thread) {
    lanes_[thread.lane] = &thread;
    living_ |= 1u << thread.lane;
  }
  void remove(const Thread& thread) { living_ &= ~(1u << thread.lane); }
  void wait(const Thread& thread) { waiting_ |= 1u << thread.lane; }
  void resume(std::uint32_t mask) { waiting_ &= ~mask; }
  bool agrees(const Thread& thread) const;
  std::string clash(const Thread& thread) const;
  bool complete(std::uint32_t mask) const;
  const Thread* waiting_for(const Thread& thread) const;

 private:
  Thread* lanes_[kWarpLanes] = {};
  std::uint32_t living_ = 0, waiting_ = 0;
};

template <class Function>
void for_each_lane(std::uint32_t mask, Function function) {
  for (; mask; mask &= mask - 1) function(static_cast<std::uint32_t>(std::countr_zero(mask)));
}

inline std::string hexadecimal(std::uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

inline std::string lane_text(std::uint32_t lane) { return "lane " + std::to_string(lane); }

// Whether a thread that has just come to a collective may wait there. Of the lanes that already
// wait only the first is looked at; a group that this lets through ends as a deadlock.
inline bool Warp::agrees(const Thread& thread) const {
  if (!(thread.mask >> thread.lane & 1) || thread.mask & ~living_) return false;
  const std::uint32_t met = thread.mask & waiting_;
  if (!met) return true;
  const Thread& other = *lanes_[std::countr_zero(met)];
  // A lane that does not name this one waits for a group of its own, and comes later.
  if (!(other.mask >> thread.lane & 1)) return true;
  return other.mask == thread.mask && other.operation == thread.operation &&
         other.site == thread.site;
}

// Why it may not.
inline std::string Warp::clash(const Thread& thread) const {
  const std::string mask = "the mask " + hexadecimal(thread.mask);
  if (!(thread.mask >> thread.lane & 1)) {
    return mask + " leaves out the caller, " + lane_text(thread.lane);
  }
  if (const std::uint32_t missing = thread.mask & ~living_) {
    const std::uint32_t lane = std::countr_zero(missing);
    return mask + " names " + lane_text(lane) + ", which " +
           (lanes_[lane] ? "has exited" : "does not exist");
  }
  const Thread& other = *lanes_[std::countr_zero(thread.mask & waiting_)];
  return mask + " meets " + lane_text(other.lane) + " in " + other.operation->name +
         " with the mask " + hexadecimal(other.mask) + " at " + other.site.text();
}

// Every lane of the mask has come to the collective.
inline bool Warp::complete(std::uint32_t mask) const {
  bool all = (mask & ~waiting_) == 0;
  if (all) for_each_lane(mask, [&](std::uint32_t lane) { all &= lanes_[lane]->mask == mask; });
  return all;
}

inline const Thread* Warp::waiting_for(const Thread& thread) const {
  const Thread* found = nullptr;
  for_each_lane(waiting_, [&](std::uint32_t lane) {
    if (lanes_[lane]->mask >> thread.lane & 1) found = lanes_[lane];
  });
  return found;
}

struct BarrierResult {
  int count = 0;
  bool all = false;
};

class Block {
 public:
  // threads: the fibers of a pool, of which the block takes the first `size`.
  Block(Scheduler& scheduler, std::span<std::unique_ptr<Thread>> threads, uint3 index, dim3 shape,
        std::size_t dynamic_bytes)
      : scheduler_(scheduler), index_(index), shape_(shape), size_(shape.x * shape.y * shape.z) {
    warps_.resize((size_ + kWarpLanes - 1) / kWarpLanes);
    for (std::uint32_t rank = 0; rank < size_; ++rank) {
      Thread& thread = *threads[rank];
      thread.rank = rank;
      thread.lane = rank % kWarpLanes;
      thread.warp = rank / kWarpLanes;
      thread.index = {rank % shape.x, rank / shape.x % shape.y, rank / shape.x / shape.y};
      thread.block = this;
      warps_[thread.warp].add(thread);
      members_.push_back(&thread);
    }
    dynamic_bytes_ = dynamic_bytes;
    if (dynamic_bytes) dynamic_ = allocate(dynamic_bytes, kDynamicAlignment);
  }

  GLM53_NO_TSAN const uint3& index() const { return index_; }
  GLM53_NO_TSAN const dim3& shape() const { return shape_; }
  GLM53_NO_TSAN void* dynamic_shared() const { return dynamic_; }
  const std::vector<Thread*>& members() const { return members_; }

  // The one object that every thread of the block reaches through this place of the source.
  void* shared(const void* place, std::size_t bytes, std::size_t alignment) {
    RuntimeScope scope;
    if (const auto known = shared_.find(place); known != shared_.end()) return known->second.data;
    if (shared_bytes_ + bytes > kMaxSharedBytes) {
      refuse("shared memory", std::to_string(shared_bytes_ + bytes) + " bytes in a block of " +
                                  std::to_string(kMaxSharedBytes));
    }
    void* data = allocate(bytes, alignment);
    shared_[place] = {data, bytes, alignment};
    return data;
  }

  // The byte of this block that is where `pointer` is in `other`, or null when that is no shared
  // memory of the other's.
  void* counterpart(const Block& other, const void* pointer) {
    const char* byte = static_cast<const char*>(pointer);
    const auto offset_in = [&](const void* data, std::size_t bytes) -> std::ptrdiff_t {
      const std::ptrdiff_t offset = byte - static_cast<const char*>(data);
      return data && offset >= 0 && static_cast<std::size_t>(offset) < bytes ? offset : -1;
    };
    const std::ptrdiff_t in_dynamic = offset_in(other.dynamic_, other.dynamic_bytes_);
    if (in_dynamic >= 0) return static_cast<char*>(dynamic_) + in_dynamic;
    for (const auto& [place, object] : other.shared_) {
      const std::ptrdiff_t offset = offset_in(object.data, object.bytes);
      if (offset >= 0) {
        return static_cast<char*>(shared(place, object.bytes, object.alignment)) + offset;
      }
    }
    return nullptr;
  }

  BarrierResult barrier(bool predicate, const Site& site) {
    RuntimeScope scope;
    Thread& thread = *scheduler_.current();
    thread.site = site;
    if (exited_) refuse("__syncthreads", std::to_string(exited_) + " threads have exited");
    if (!waiting_.empty() && !(waiting_.front()->site == site)) {
      refuse("__syncthreads", "another thread waits at " + waiting_.front()->site.text());
    }
    waiting_.push_back(&thread);
    votes_ += predicate;
    if (waiting_.size() == size_) {
      complete_barrier();
    } else {
      thread.state = State::kAtBarrier;
      scheduler_.suspend();
    }
    return outcome_;
  }

  std::uint64_t collective(const Operation& operation, std::uint32_t mask, std::uint64_t value,
                           std::uint32_t argument, std::uint32_t width, const Site& site) {
    RuntimeScope scope;
    Thread& thread = *scheduler_.current();
    Warp& warp = warps_[thread.warp];
    thread.operation = &operation;
    thread.mask = mask;
    thread.value = value;
    thread.argument = argument;
    thread.width = width;
    thread.site = site;
    if (!std::has_single_bit(width) || width > kWarpLanes) {
      refuse(operation.name, "the width is " + std::to_string(width));
    }
    if (!warp.agrees(thread)) refuse(operation.name, warp.clash(thread));
    thread.state = State::kAtCollective;
    warp.wait(thread);
    if (warp.complete(mask)) {
      warp.resume(mask);
      operation.combine(warp, mask);
      if (operation.orders_memory) {
        std::vector<Thread*> members;
        for_each_lane(mask, [&](std::uint32_t lane) { members.push_back(&warp.lane(lane)); });
        order(members, &warp);
      }
      for_each_lane(mask, [&](std::uint32_t lane) { scheduler_.make_ready(warp.lane(lane)); });
    }
    scheduler_.suspend();
    return thread.result;
  }

  // The current thread has returned from the kernel.
  void exit() {
    RuntimeScope scope;
    Thread& thread = *scheduler_.current();
    thread.state = State::kDone;
    ++exited_;
    if (!waiting_.empty()) {
      refuse("__syncthreads",
             "the thread exits while others wait at " + waiting_.front()->site.text());
    }
    warps_[thread.warp].remove(thread);
    if (const Thread* other = warps_[thread.warp].waiting_for(thread)) {
      refuse(other->operation->name, lane_text(thread.lane) + " exits while " +
                                         lane_text(other->lane) + " waits for it at " +
                                         other->site.text());
    }
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& why) {
    const Thread& thread = *scheduler_.current();
    const std::string place = thread.site.line ? " at " + thread.site.text() : "";
    scheduler_.fail(what + place + ": " + why + where());
  }

  // Who waits where, once nobody can go on.
  std::string deadlock() const {
    std::map<std::string, int> waits;
    for (const Thread* thread : members_) {
      if (thread->state == State::kAtCluster) ++waits["the cluster's barrier"];
    }
    for (const Thread* thread : members_) {
      if (thread->state == State::kAtBarrier) ++waits["__syncthreads at " + thread->site.text()];
      if (thread->state == State::kAtCollective) {
        ++waits[std::string(thread->operation->name) + " with the mask " +
                hexadecimal(thread->mask) + " at " + thread->site.text()];
      }
    }
    std::string text = "deadlock in block " + triple(index_);
    for (const auto& [what, count] : waits) text += "\n  " + std::to_string(count) + " in " + what;
    return text;
  }
  bool finished() const { return exited_ == size_; }

  // Shared memory outlives the block where ThreadSanitizer watches: freeing it would have to come
  // after everything that the block did, and would order this block before the next.
  struct Release {
    std::size_t alignment;
    void operator()(void* storage) const {
      ::operator delete(storage, std::align_val_t(alignment));
    }
  };
  using Storage = std::vector<std::unique_ptr<void, Release>>;
  Storage take_storage() { return std::move(storage_); }

 private:
  static constexpr std::size_t kDynamicAlignment = 1024;

  static std::string triple(const uint3& index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
           std::to_string(index.z) + ")";
  }
  std::string where() const {
    return "; block " + triple(index_) + ", thread " + triple(scheduler_.current()->index);
  }

  void* allocate(std::size_t bytes, std::size_t alignment) {
    shared_bytes_ += bytes;
    void* storage = ::operator new(bytes, std::align_val_t(alignment));
    storage_.emplace_back(storage, Release{alignment});
    std::memset(storage, kPoison, bytes);
    return storage;
  }

  void complete_barrier() {
    outcome_ = {votes_, votes_ == static_cast<int>(size_)};
    votes_ = 0;
    order(waiting_, this);
    std::vector<Thread*> released;
    released.swap(waiting_);
    for (Thread* thread : released) scheduler_.make_ready(*thread);
    scheduler_.suspend();
  }

  void order(const std::vector<Thread*>& threads, void* meeting) {
    if constexpr (kThreadSanitizer) {
      std::vector<Fiber*> fibers;
      for (Thread* thread : threads) fibers.push_back(&thread->fiber);
      Fiber::order(fibers.data(), fibers.size(), scheduler_.current()->fiber, meeting);
    }
  }

  Scheduler& scheduler_;
  uint3 index_;
  dim3 shape_;
  std::uint32_t size_;
  std::vector<Thread*> members_;
  std::vector<Warp> warps_;
  std::vector<Thread*> waiting_;
  int votes_ = 0;
  BarrierResult outcome_;
  std::uint32_t exited_ = 0;
  std::size_t shared_bytes_ = 0;
  struct Object {
    void* data;
    std::size_t bytes, alignment;
  };
  std::map<const void*, Object> shared_;
  void* dynamic_ = nullptr;
  std::size_t dynamic_bytes_ = 0;
  Storage storage_;
};

}  // namespace glm53::emulation
