// Owns how a top-k sees logits: keys whose order is the selection's, and a row in 16-byte words.
#pragma once

#include <glm53/pack.cuh>

namespace glm53 {

// Where there is no element. Below the key of every element.
inline constexpr std::uint32_t kNoKey = 0;

// For each type of logits: how many fill a 16-byte word, and NaN's key.
template <class Element>
struct LogitTraits;
template <>
struct LogitTraits<float> {
  using Word = std::uint32_t;
  static constexpr std::uint32_t kInWord = 4;
  static constexpr std::uint32_t kKeyBits = 32;
};
template <>
struct LogitTraits<Bf16> {
  using Word = std::uint16_t;
  static constexpr std::uint32_t kInWord = 8;
  static constexpr std::uint32_t kKeyBits = 16;
};

// A larger number has a larger key, the two zeros have one, and every NaN has the key below minus
// infinity's. A bf16 is the upper half of its FP32 bits, and of its key.
template <class Element>
__device__ __forceinline__ std::uint32_t logit_key(std::uint32_t bits) {
  constexpr std::uint32_t kUnit = 1u << (32 - LogitTraits<Element>::kKeyBits);
  constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
  const std::uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return kUnit;
  if (magnitude == 0) return kSign;
  return bits & kSign ? ~bits & ~(kUnit - 1) : bits | kSign;
}

// A block's share of a row: 16-byte words `first` to `first + words` from an aligned address at or
// before the row's first logit.
struct LogitSlice {
  const char* base;
  std::uint32_t head;       // logits between base and the row's first
  std::uint32_t length;     // of the row
  std::uint32_t allocated;  // logits that may be read from base on
  std::uint32_t first, words;
};

template <class Element>
__device__ __forceinline__ LogitSlice slice_of_row(const Element* row, std::uint32_t start,
                                                   std::uint32_t length, std::uint32_t width,
                                                   std::uint32_t rank, std::uint32_t ranks) {
  constexpr std::uint32_t kInWord = LogitTraits<Element>::kInWord;
  const std::uint32_t head = start % kInWord;
  const std::uint32_t words = (head + length + kInWord - 1) / kInWord;
  const std::uint32_t share = (words + ranks - 1) / ranks;
  const std::uint32_t first = min(rank * share, words);
  return {reinterpret_cast<const char*>(row + (start - head)),
          head,
          length,
          width - (start - head),
          first,
          min(share, words - first)};
}

// The slice's word of that index; what lies past the row's memory is zero, and not read.
template <class Element>
__device__ __forceinline__ uint4 load_logits(const LogitSlice& slice, std::uint32_t index) {
  using Traits = LogitTraits<Element>;
  const std::uint32_t first = (slice.first + index) * Traits::kInWord;
  const char* address = slice.base + std::size_t{slice.first + index} * sizeof(uint4);
  if (first + Traits::kInWord <= slice.allocated) return load_global<uint4>(address);
  std::uint32_t parts[4] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < Traits::kInWord; ++i) {
    if (first + i >= slice.allocated) break;
    const std::uint32_t bits = load_global<typename Traits::Word>(address + i * sizeof(Element));
    parts[i * sizeof(Element) / 4] |= bits << (i * sizeof(Element) % 4 * 8);
  }
  return {parts[0], parts[1], parts[2], parts[3]};
}

// The keys of the slice's word of that index, kNoKey where it holds no logit of the row.
template <class Element>
__device__ __forceinline__ void keys_of(const LogitSlice& slice, std::uint32_t index,
                                        const uint4& word,
                                        std::uint32_t (&keys)[LogitTraits<Element>::kInWord]) {
  using Traits = LogitTraits<Element>;
  const std::uint32_t parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (std::uint32_t i = 0; i < Traits::kInWord; ++i) {
    std::uint32_t bits = parts[i * sizeof(Element) / 4];
    if (sizeof(Element) == 2) bits = i % 2 ? bits & 0xffff0000u : bits << 16;
    const std::uint32_t position = (slice.first + index) * Traits::kInWord + i - slice.head;
    keys[i] = position < slice.length ? logit_key<Element>(bits) : kNoKey;
  }
}

}  // namespace glm53
