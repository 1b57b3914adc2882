// Owns who runs next: the CUDA threads of a block as fibers on one CPU thread, in a chosen order.
// A thread gives up the CPU at a barrier, a warp collective, and, in the random order, at some of
// its global accesses and atomics. Which thread goes first is all that the orders change, so a
// kernel whose results depend on the order has a race.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <emulation/fiber.h>
#include <emulation/types.h>

namespace glm53::emulation {

enum class Order { kForward, kReversed, kRandom };

struct Schedule {
  Order order = Order::kForward;
  std::uint64_t seed = 0;
};

inline Order parse_order(std::string_view name) {
  if (name == "forward") return Order::kForward;
  if (name == "reversed") return Order::kReversed;
  if (name == "random") return Order::kRandom;
  throw std::invalid_argument("schedule \"" + std::string(name) +
                              "\": use forward, reversed or random");
}

// Where in the source a thread waits.
struct Site {
  const char* file = "";
  std::uint32_t line = 0, column = 0;
  bool operator==(const Site& other) const {
    return line == other.line && column == other.column &&
           (file == other.file || std::string_view(file) == other.file);
  }
  std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

enum class State : std::uint8_t { kReady, kAtBarrier, kAtCollective, kAtCluster, kDone };

struct Operation;
class Block;

struct Thread {
  explicit Thread(std::size_t stack_bytes) : fiber(stack_bytes) {}

  uint3 index{};
  std::uint32_t rank = 0, lane = 0, warp = 0;
  Block* block = nullptr;
  State state = State::kDone;
  Site site;
  // False from the start of a kernel launched with PDL until the thread calls pdl_wait().
  bool inputs_ready = true;
  // How often the thread has come to the cluster's barrier, and how often it has passed it.
  std::uint32_t arrivals = 0, passes = 0;
  // What the thread brought to a collective, and what it takes away.
  const Operation* operation = nullptr;
  std::uint32_t mask = 0, width = 32, argument = 0;
  std::uint64_t value = 0, result = 0;
  Fiber fiber;
};

// xorshift64*: the same sequence on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {}
  std::uint32_t below(std::uint32_t bound) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<std::uint32_t>((state_ * 0x2545f4914f6cdd1du >> 32) * bound >> 32);
  }

 private:
  std::uint64_t state_;
};

class Scheduler {
 public:
  explicit Scheduler(const Schedule& schedule)
      : order_(schedule.order), random_(schedule.seed) {
    host_.adopt_identity();
  }

  Order order() const { return order_; }
  Random& random() { return random_; }
  GLM53_NO_TSAN Thread* current() const { return current_; }
  Fiber& host() { return host_; }
  const std::string& error() const { return error_; }

  void make_ready(Thread& thread) {
    thread.state = State::kReady;
    ready_.push_back(&thread);
  }

  // Runs until no thread is ready or one of them failed.
  void run() {
    if (Thread* next = take()) enter(host_, *next);
  }

  // Leaves the current thread, which waits in some queue, for the next one.
  void suspend() {
    Thread& thread = *current_;
    Thread* next = take();
    if (next == &thread) return;
    if (next) {
      enter(thread.fiber, *next);
    } else {
      current_ = nullptr;
      Fiber::switch_to(thread.fiber, host_);
    }
  }

  // The current thread has come to its end.
  [[noreturn]] void leave() {
    Fiber *from = nullptr, *to = nullptr;
    {
      RuntimeScope scope;
      from = &current_->fiber;
      current_ = take();
      to = current_ ? &current_->fiber : &host_;
    }
    Fiber::switch_to(*from, *to, true);
    std::abort();
  }

  // Lets others run first, now and then, in the random order.
  void maybe_preempt() {
    constexpr std::uint32_t kOneIn = 8;
    RuntimeScope scope;
    if (order_ != Order::kRandom || !current_ || random_.below(kOneIn)) return;
    make_ready(*current_);
    suspend();
  }

  // Ends the launch: no thread runs any further.
  [[noreturn]] void fail(std::string message) {
    error_ = std::move(message);
    Thread& thread = *current_;
    current_ = nullptr;
    Fiber::switch_to(thread.fiber, host_, true);
    std::abort();
  }

 private:
  void enter(Fiber& from, Thread& next) {
    current_ = &next;
    Fiber::switch_to(from, next.fiber);
  }

  Thread* take() {
    if (ready_.empty()) return nullptr;
    if (order_ == Order::kRandom) {
      std::swap(ready_.front(), ready_[random_.below(static_cast<std::uint32_t>(ready_.size()))]);
    }
    Thread* next = ready_.front();
    ready_.pop_front();
    return next;
  }

  Order order_;
  Random random_;
  Fiber host_;
  std::deque<Thread*> ready_;
  Thread* current_ = nullptr;
  std::string error_;
};

}  // namespace glm53::emulation
