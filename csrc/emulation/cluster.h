// Owns a thread block cluster: its barrier, and the way to another block's shared memory.
// Refused: to arrive twice without waiting or to wait without having arrived, to exit while others
// of the cluster count on the thread, and to reach for a block that has ended.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <emulation/block.h>

namespace glm53::emulation {

// The portable size.
inline constexpr std::uint32_t kMaxCluster = 8;

class Cluster {
 public:
  Cluster(Scheduler& scheduler, std::vector<std::unique_ptr<Block>> blocks)
      : scheduler_(scheduler), blocks_(std::move(blocks)) {
    for (const auto& block : blocks_) {
      members_.insert(members_.end(), block->members().begin(), block->members().end());
    }
  }

  const std::vector<Thread*>& members() const { return members_; }
  std::vector<std::unique_ptr<Block>>& blocks() { return blocks_; }
  std::uint32_t size() const {
    RuntimeScope scope;
    return static_cast<std::uint32_t>(blocks_.size());
  }
  std::uint32_t rank() const { return this_index() % size(); }

  void arrive() {
    RuntimeScope scope;
    Thread& thread = *scheduler_.current();
    if (thread.arrivals != thread.passes) refuse("the thread arrives twice without waiting");
    if (exited_) refuse(std::to_string(exited_) + " threads have exited");
    ++thread.arrivals;
    // A thread may work on between arriving and waiting: only what is done by now comes first.
    // Phases take turns, since none of one can begin before all have passed the one before the
    // last.
    Fiber::release(&meetings_[thread.arrivals % 2]);
    if (++arrived_ < members_.size()) return;
    arrived_ = 0;
    ++completed_;
    for (Thread* waiting : waiting_) scheduler_.make_ready(*waiting);
    waiting_.clear();
  }

  void wait() {
    RuntimeScope scope;
    Thread& thread = *scheduler_.current();
    if (thread.arrivals == thread.passes) refuse("the thread waits without having arrived");
    if (completed_ < thread.arrivals) {
      thread.state = State::kAtCluster;
      waiting_.push_back(&thread);
      scheduler_.suspend();
    }
    ++thread.passes;
    Fiber::acquire(&meetings_[thread.arrivals % 2]);
  }

  // The current thread has returned from the kernel.
  void exit() {
    RuntimeScope scope;
    const Thread& thread = *scheduler_.current();
    if (thread.arrivals != thread.passes) refuse("the thread exits without waiting");
    if (arrived_) refuse("the thread exits while others wait");
    ++exited_;
  }

  // Where `pointer`, into the calling block's shared memory, is in the block of that rank.
  void* map(const void* pointer, std::uint32_t rank) {
    RuntimeScope scope;
    const Block& own = *scheduler_.current()->block;
    if (rank >= blocks_.size()) refuse("rank " + std::to_string(rank) + " does not exist");
    Block& other = *blocks_[rank];
    if (other.finished()) refuse("the block of rank " + std::to_string(rank) + " has ended");
    void* there = other.counterpart(own, pointer);
    if (!there) refuse("the pointer is not into the block's shared memory");
    return there;
  }

 private:
  std::uint32_t this_index() const {
    RuntimeScope scope;
    return scheduler_.current()->block->index().x;
  }

  [[noreturn]] void refuse(const std::string& why) {
    scheduler_.current()->site = {};
    scheduler_.current()->block->refuse("cluster", why);
  }

  Scheduler& scheduler_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Thread*> members_;
  std::vector<Thread*> waiting_;
  std::size_t arrived_ = 0, exited_ = 0;
  std::uint32_t completed_ = 0;
  char meetings_[2] = {};
};

}  // namespace glm53::emulation
