// Owns CUDA's built-in names: indices, barriers, warp collectives, atomics and shared memory.
// Each takes the place of its call, so that what the emulation refuses names a line.
#pragma once

#include <algorithm>
#include <atomic>
#include <source_location>
#include <type_traits>

#include <emulation/launch.h>

#define threadIdx (::glm53::emulation::this_thread().index)
#define blockIdx (::glm53::emulation::this_block().index())
#define blockDim (::glm53::emulation::this_block().shape())
#define gridDim (::glm53::emulation::this_grid())

// `type name` in shared memory; a place of the source is one object for each block.
#define GLM53_SHARED(type, name) type& name = ::glm53::emulation::shared<type>([] {})
// `type* name`: the launch's dynamic shared memory.
#define GLM53_DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(::glm53::emulation::this_block().dynamic_shared())

namespace glm53::emulation {

using Place = std::source_location;

inline Site site(const Place& place) {
  return {place.file_name(), place.line(), place.column()};
}

template <class Type, class Tag>
Type& shared(Tag) {
  static_assert(std::is_trivially_default_constructible_v<Type>, "nothing would construct it");
  static constexpr char kPlace = 0;
  return *static_cast<Type*>(this_block().shared(&kPlace, sizeof(Type), alignof(Type)));
}

template <class Value>
std::uint64_t to_bits(Value value) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class Value>
Value from_bits(std::uint64_t bits) {
  Value value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Gives every lane of the mask the value of the lane that source(thread, first, end) names, or its
// own where that is negative. The lane's segment runs from `first` to `end`.
template <class Source>
void shuffle(Warp& warp, std::uint32_t mask, Source source) {
  for_each_lane(mask, [&](std::uint32_t lane) {
    Thread& thread = warp.lane(lane);
    const int first = static_cast<int>(lane & ~(thread.width - 1));
    const int wanted = source(thread, first, first + static_cast<int>(thread.width));
    const std::uint32_t from = wanted < 0 ? lane : static_cast<std::uint32_t>(wanted);
    if (!(mask >> from & 1)) {
      thread.block->refuse(thread.operation->name, lane_text(lane) + " reads " + lane_text(from) +
                                                       ", which the mask " + hexadecimal(mask) +
                                                       " leaves out");
    }
    thread.result = warp.lane(from).value;
  });
}

inline std::uint32_t vote(Warp& warp, std::uint32_t mask) {
  std::uint32_t votes = 0;
  for_each_lane(mask, [&](std::uint32_t lane) {
    if (warp.lane(lane).value) votes |= 1u << lane;
  });
  return votes;
}
inline void give_all(Warp& warp, std::uint32_t mask, std::uint64_t result) {
  for_each_lane(mask, [&](std::uint32_t lane) { warp.lane(lane).result = result; });
}

// Folds the lanes' values, as `Value`, with `fold`.
template <class Value, class Fold>
void reduce(Warp& warp, std::uint32_t mask, Fold fold) {
  Value total = from_bits<Value>(warp.lane(std::countr_zero(mask)).value);
  for_each_lane(mask & (mask - 1), [&](std::uint32_t lane) {
    total = fold(total, from_bits<Value>(warp.lane(lane).value));
  });
  give_all(warp, mask, to_bits(total));
}

inline constexpr Operation kShuffle{"__shfl_sync", [](Warp& warp, std::uint32_t mask) {
  shuffle(warp, mask, [](const Thread& thread, int first, int) {
    return first + static_cast<int>(thread.argument & (thread.width - 1));
  });
}};
inline constexpr Operation kShuffleUp{"__shfl_up_sync", [](Warp& warp, std::uint32_t mask) {
  shuffle(warp, mask, [](const Thread& thread, int first, int) {
    const int from = static_cast<int>(thread.lane - thread.argument);
    return from >= first ? from : -1;
  });
}};
inline constexpr Operation kShuffleDown{"__shfl_down_sync", [](Warp& warp, std::uint32_t mask) {
  shuffle(warp, mask, [](const Thread& thread, int, int end) {
    const int from = static_cast<int>(thread.lane + thread.argument);
    return from < end ? from : -1;
  });
}};
// Earlier segments may be read, later ones not.
inline constexpr Operation kShuffleXor{"__shfl_xor_sync", [](Warp& warp, std::uint32_t mask) {
  shuffle(warp, mask, [](const Thread& thread, int, int end) {
    const int from = static_cast<int>(thread.lane ^ thread.argument);
    return from < end ? from : -1;
  });
}};
inline constexpr Operation kSyncWarp{"__syncwarp", [](Warp&, std::uint32_t) {}, true};
inline constexpr Operation kBallot{"__ballot_sync", [](Warp& warp, std::uint32_t mask) {
  give_all(warp, mask, vote(warp, mask));
}};
inline constexpr Operation kAny{"__any_sync", [](Warp& warp, std::uint32_t mask) {
  give_all(warp, mask, vote(warp, mask) != 0);
}};
inline constexpr Operation kAll{"__all_sync", [](Warp& warp, std::uint32_t mask) {
  give_all(warp, mask, vote(warp, mask) == mask);
}};
inline constexpr Operation kAdd{"__reduce_add_sync", [](Warp& warp, std::uint32_t mask) {
  reduce<std::uint32_t>(warp, mask, [](auto a, auto b) { return a + b; });
}};
inline constexpr Operation kMin{"__reduce_min_sync", [](Warp& warp, std::uint32_t mask) {
  reduce<std::uint32_t>(warp, mask, [](auto a, auto b) { return std::min(a, b); });
}};
inline constexpr Operation kMax{"__reduce_max_sync", [](Warp& warp, std::uint32_t mask) {
  reduce<std::uint32_t>(warp, mask, [](auto a, auto b) { return std::max(a, b); });
}};

inline std::uint64_t collective(const Operation& operation, std::uint32_t mask, std::uint64_t value,
                                std::uint32_t argument, std::uint32_t width, const Place& place) {
  return this_block().collective(operation, mask, value, argument, width, site(place));
}

// One atomic step on a word of global or shared memory: relaxed, as on the device.
template <class Value, class Step>
Value atomic(Value* word, Step step) {
  running().maybe_preempt();
  const std::atomic_ref<Value> target(*word);
  Value seen = target.load(std::memory_order_relaxed);
  while (!target.compare_exchange_weak(seen, step(seen), std::memory_order_relaxed)) {
  }
  return seen;
}

}  // namespace glm53::emulation

inline void __syncthreads(glm53::emulation::Place place = glm53::emulation::Place::current()) {
  ::glm53::emulation::this_block().barrier(false, ::glm53::emulation::site(place));
}
inline int __syncthreads_count(int predicate,
                               glm53::emulation::Place place = glm53::emulation::Place::current()) {
  return ::glm53::emulation::this_block().barrier(predicate, ::glm53::emulation::site(place)).count;
}
inline int __syncthreads_or(int predicate,
                            glm53::emulation::Place place = glm53::emulation::Place::current()) {
  return __syncthreads_count(predicate, place) != 0;
}
inline int __syncthreads_and(int predicate,
                             glm53::emulation::Place place = glm53::emulation::Place::current()) {
  return ::glm53::emulation::this_block().barrier(predicate, ::glm53::emulation::site(place)).all;
}

inline void __syncwarp(std::uint32_t mask = 0xffffffffu,
                       glm53::emulation::Place place = glm53::emulation::Place::current()) {
  ::glm53::emulation::collective(::glm53::emulation::kSyncWarp, mask, 0, 0, 32, place);
}

#define GLM53_SHUFFLE(name, operation)                                                             \
  template <class Value>                                                                           \
  Value name(std::uint32_t mask, Value value, std::uint32_t argument, std::uint32_t width = 32,    \
             glm53::emulation::Place place = glm53::emulation::Place::current()) {                 \
    using namespace glm53::emulation;                                                              \
    return from_bits<Value>(collective(operation, mask, to_bits(value), argument, width, place));  \
  }
GLM53_SHUFFLE(__shfl_sync, kShuffle)
GLM53_SHUFFLE(__shfl_up_sync, kShuffleUp)
GLM53_SHUFFLE(__shfl_down_sync, kShuffleDown)
GLM53_SHUFFLE(__shfl_xor_sync, kShuffleXor)
#undef GLM53_SHUFFLE

#define GLM53_WARP_VALUE(name, type, operation)                                                    \
  inline type name(std::uint32_t mask, type value,                                                 \
                   glm53::emulation::Place place = glm53::emulation::Place::current()) {           \
    using namespace glm53::emulation;                                                              \
    return static_cast<type>(collective(operation, mask, to_bits(value), 0, 32, place));           \
  }
GLM53_WARP_VALUE(__any_sync, int, kAny)
GLM53_WARP_VALUE(__all_sync, int, kAll)
GLM53_WARP_VALUE(__reduce_add_sync, std::uint32_t, kAdd)
GLM53_WARP_VALUE(__reduce_min_sync, std::uint32_t, kMin)
GLM53_WARP_VALUE(__reduce_max_sync, std::uint32_t, kMax)
#undef GLM53_WARP_VALUE
inline std::uint32_t __ballot_sync(
    std::uint32_t mask, int predicate,
    glm53::emulation::Place place = glm53::emulation::Place::current()) {
  using namespace glm53::emulation;
  return static_cast<std::uint32_t>(collective(kBallot, mask, to_bits(predicate), 0, 32, place));
}

template <class Value>
Value atomicAdd(Value* word, std::type_identity_t<Value> value) {
  return ::glm53::emulation::atomic(word,
                                    [=](Value seen) { return static_cast<Value>(seen + value); });
}
template <class Value>
Value atomicMax(Value* word, std::type_identity_t<Value> value) {
  return ::glm53::emulation::atomic(word, [=](Value seen) { return std::max(seen, value); });
}
template <class Value>
Value atomicMin(Value* word, std::type_identity_t<Value> value) {
  return ::glm53::emulation::atomic(word, [=](Value seen) { return std::min(seen, value); });
}
template <class Value>
Value atomicOr(Value* word, std::type_identity_t<Value> value) {
  return ::glm53::emulation::atomic(word, [=](Value seen) { return seen | value; });
}
template <class Value>
Value atomicExch(Value* word, std::type_identity_t<Value> value) {
  return ::glm53::emulation::atomic(word, [=](Value) { return value; });
}
