// Owns indexer_topk: the positions of a row's k largest logits, ascending, as slots of the KV pool.
// Ties go to the lowest position and NaN counts below minus infinity, so that the answer depends on
// the logits alone. A row of at most k logits is taken whole.
//
// A cluster takes a row, each block a contiguous share of it, which it keeps in shared memory.
// Three histograms of 11, 11 and 10 bits of the keys, added up over the cluster, find the k-th
// largest key and how many of its ties are in; usually the second already does. Then each block
// knows how many of its own are selected, tells the others, and writes its own in order of
// position. What does not fit into shared memory is read a second time, and what may be selected of
// it is noted; if even the notes do not fit, the later steps read it again.
#pragma once

#include <glm53/cluster.cuh>
#include <glm53/device.cuh>
#include <glm53/reduce.cuh>
#include <glm53/topk.cuh>

namespace glm53 {

// Strides are in elements; rows of logits start at multiples of 16 bytes.
struct IndexerTopkParams {
  const void* logits;                  // [rows, width], float or Bf16
  const std::int32_t* lengths;         // [rows]; negative counts as 0
  const std::int32_t* row_starts;      // [rows]: where a row's logits begin; null: at 0
  const std::int32_t* out_offsets;     // [rows], added to a position to make its slot; null: 0
  const std::int32_t* page_table;      // [requests, pages]: makes the slot instead; or null
  const std::int32_t* row_to_request;  // [rows]: a row's line of the page table; null: its own
  std::int32_t* slots;                 // [rows, k], padded with -1
  std::int32_t* positions;             // the same for positions in the row, or null
  std::int32_t* counts;                // [rows]: how many are selected
  std::int64_t logits_stride, page_table_stride, slots_stride, positions_stride;
  std::uint32_t rows, width, k, requests, pages, page_bits;
  std::uint32_t cache_words;  // 16-byte words of a row that a block keeps
  bool bf16;

  template <class Visit>
  void each_buffer(const Visit& visit) const {
    const std::uint64_t size = bf16 ? sizeof(Bf16) : sizeof(float), word = sizeof(std::int32_t);
    const std::uint64_t line = pages * word;
    visit("logits", logits, rows, width * size, logits_stride * size, Access::kRead);
    visit("lengths", lengths, 1, rows * word, rows * word, Access::kRead);
    visit("row_starts", row_starts, 1, rows * word, rows * word, Access::kRead);
    visit("out_offsets", out_offsets, 1, rows * word, rows * word, Access::kRead);
    visit("page_table", page_table, requests, line, page_table_stride * word, Access::kRead);
    visit("row_to_request", row_to_request, 1, rows * word, rows * word, Access::kRead);
    visit("slots", slots, rows, k * word, slots_stride * word, Access::kWrite);
    visit("positions", positions, rows, k * word, positions_stride * word, Access::kWrite);
    visit("counts", counts, 1, rows * word, rows * word, Access::kWrite);
  }
};

inline constexpr std::uint32_t kMaxTopk = 2048;
inline constexpr std::uint32_t kTopkClusterBlocks = 8;
inline constexpr std::uint32_t kBins = 2048;
inline constexpr std::uint32_t kNotes = 2048;
// How far a key is shifted to give its bin on a level; what is left of the bits above is the
// prefix.
__device__ __forceinline__ constexpr std::uint32_t shift_of(std::uint32_t level) {
  return level == 0 ? 21 : level == 1 ? 10 : 0;
}

// The bin in which the needed-th largest is, counted from the top.
struct TopkBin {
  std::uint32_t bin;
  std::uint32_t above, inside;          // elements in higher bins and in this one, in the cluster
  std::uint32_t own_above, own_inside;  // in this block
};

// What is selected: keys above `threshold` and, by position, the first `ties` of those equal to it.
struct TopkCut {
  std::uint32_t threshold, ties;
  std::uint32_t own_above, own_equal;
};

template <std::uint32_t kThreads>
struct TopkShared {
  std::uint32_t own[kBins];
  std::uint32_t all[2][kBins];  // the cluster's, the levels take turns
  uint2 notes[kNotes];          // position, key
  std::uint64_t sums[kThreads / kWarpThreads];
  std::uint32_t ranks[2][kThreads / kWarpThreads];
  uint2 tallies[kTopkClusterBlocks];  // of each block, how many above the threshold and equal to it
  TopkBin found;
};

// One row's selection by one cluster; every thread has its own copy.
template <class Element, std::uint32_t kThreads>
struct TopkRow {
  using Traits = LogitTraits<Element>;
  using Keys = std::uint32_t[Traits::kInWord];
  // Words that a thread has under way at once.
  static constexpr std::uint32_t kBatch = 16 / Traits::kInWord;

  const IndexerTopkParams& params;
  TopkShared<kThreads>& shared;
  uint4* cache;
  LogitSlice slice;
  std::uint32_t row, rank, ranks;
  std::uint32_t cached;     // words in the cache
  std::uint32_t noted = 0;  // notes of the words that are not
  bool complete = false;    // the notes hold all that may be selected of them
  std::uint32_t scans = 0;

  __device__ __forceinline__ std::uint32_t position(std::uint32_t index, std::uint32_t i) const {
    return (slice.first + index) * Traits::kInWord + i - slice.head;
  }

  // Reads the block's share, keeps what fits, and counts the keys' upper bits.
  __device__ __forceinline__ void read_all() {
    for (std::uint32_t base = threadIdx.x; base < slice.words; base += kBatch * kThreads) {
      uint4 words[kBatch];
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j) {
        const std::uint32_t index = base + j * kThreads;
        if (index < slice.words) words[j] = load_logits<Element>(slice, index);
      }
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j) {
        const std::uint32_t index = base + j * kThreads;
        if (index >= slice.words) break;
        if (index < cached) cache[index] = words[j];
        Keys keys;
        keys_of<Element>(slice, index, words[j], keys);
#pragma unroll
        for (const std::uint32_t key : keys) {
          if (key != kNoKey) atomicAdd(&shared.own[key >> shift_of(0)], 1u);
        }
      }
    }
  }

  // Counts the keys of one bin by their next bits.
  __device__ __forceinline__ void count(std::uint32_t key, std::uint32_t level,
                                        std::uint32_t prefix) {
    if (key != kNoKey && key >> shift_of(level - 1) == prefix) {
      atomicAdd(&shared.own[(key >> shift_of(level)) % kBins], 1u);
    }
  }
  __device__ __forceinline__ void count_cached(std::uint32_t level, std::uint32_t prefix) {
    for (std::uint32_t index = threadIdx.x; index < cached; index += kThreads) {
      Keys keys;
      keys_of<Element>(slice, index, cache[index], keys);
#pragma unroll
      for (const std::uint32_t key : keys) count(key, level, prefix);
    }
  }

  // The keys of the words from `base` on, one word a thread; kNoKey past the last.
  __device__ __forceinline__ void load_keys(std::uint32_t base, Keys& keys) const {
    const std::uint32_t index = base + threadIdx.x;
    if (index < slice.words) {
      const uint4 word = index < cached ? cache[index] : load_logits<Element>(slice, index);
      keys_of<Element>(slice, index, word, keys);
    } else {
#pragma unroll
      for (std::uint32_t& key : keys) key = kNoKey;
    }
  }

  // The threads' counts, two of 16 bits in a word, before this one and in all.
  __device__ __forceinline__ std::uint32_t scan(std::uint32_t counts, std::uint32_t& total) {
    return block_scan(counts, shared.ranks[scans++ % 2], total);
  }

  // Reads again what the cache does not hold, counts it, and notes what may be selected, in order.
  __device__ __forceinline__ void count_and_note_rest(std::uint32_t prefix) {
    complete = true;
    for (std::uint32_t base = cached; base < slice.words; base += kThreads) {
      Keys keys;
      load_keys(base, keys);
      std::uint32_t mine = 0;
#pragma unroll
      for (const std::uint32_t key : keys) {
        count(key, 1, prefix);
        mine += key != kNoKey && key >> shift_of(0) >= prefix;
      }
      if (!complete) continue;
      std::uint32_t total;
      std::uint32_t at = noted + scan(mine, total);
      complete = noted + total <= kNotes;
      if (!complete) continue;
#pragma unroll
      for (std::uint32_t i = 0; i < Traits::kInWord; ++i) {
        if (keys[i] == kNoKey || keys[i] >> shift_of(0) < prefix) continue;
        shared.notes[at++] = {position(base + threadIdx.x, i), keys[i]};
      }
      noted += total;
    }
  }
  __device__ __forceinline__ void count_rest(std::uint32_t level, std::uint32_t prefix) {
    if (complete) {
      for (std::uint32_t i = threadIdx.x; i < noted; i += kThreads) {
        count(shared.notes[i].y, level, prefix);
      }
      return;
    }
    for (std::uint32_t base = cached; base < slice.words; base += kThreads) {
      Keys keys;
      load_keys(base, keys);
#pragma unroll
      for (const std::uint32_t key : keys) count(key, level, prefix);
    }
  }

  // Adds the blocks' histograms up and finds the bin of the needed-th largest.
  __device__ __forceinline__ TopkBin find(std::uint32_t level, std::uint32_t needed) {
    std::uint32_t* all = shared.own;
    __syncthreads();
    if (ranks > 1) {
      // The others' histograms are zero by now.
      if (level == 0) cluster_wait();
      all = shared.all[level % 2];
      for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
        const std::uint32_t own = shared.own[bin];
        if (own == 0) continue;
        for (std::uint32_t to = 0; to < ranks; ++to) atomicAdd(on_rank(all + bin, to), own);
      }
      cluster_arrive();
      cluster_wait();
    }
    // The first thread has the highest bins; counts of the cluster in the upper half, own in the
    // lower.
    constexpr std::uint32_t kShare = kBins / kThreads;
    const std::uint32_t lowest = kBins - (threadIdx.x + 1) * kShare;
    const auto counts = [&](std::uint32_t bin) {
      return std::uint64_t{all[bin]} << 32 | shared.own[bin];
    };
    std::uint64_t sum = 0, total;
    for (std::uint32_t i = 0; i < kShare; ++i) sum += counts(lowest + i);
    std::uint64_t above = block_scan(sum, shared.sums, total);
    for (std::uint32_t i = kShare; i-- > 0;) {
      const std::uint64_t inside = counts(lowest + i);
      const std::uint32_t higher = above >> 32;
      above += inside;
      if (higher < needed && needed <= above >> 32) {
        shared.found = {lowest + i, higher, static_cast<std::uint32_t>(inside >> 32),
                        static_cast<std::uint32_t>(above - inside),
                        static_cast<std::uint32_t>(inside)};
      }
    }
    __syncthreads();
    return shared.found;
  }

  // Empties the histograms; the one that this level added up is the one after next.
  __device__ __forceinline__ void clear(std::uint32_t level) {
    for (std::uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
      shared.own[bin] = 0;
      shared.all[level % 2][bin] = 0;
    }
    __syncthreads();
  }

  __device__ __forceinline__ TopkCut find_cut() {
    std::uint32_t needed = params.k, own_above = 0, prefix = 0;
    for (std::uint32_t level = 0;; ++level) {
      if (level == 0) {
        read_all();
      } else {
        count_cached(level, prefix);
        level == 1 ? count_and_note_rest(prefix) : count_rest(level, prefix);
      }
      const TopkBin found = find(level, needed);
      needed -= found.above;
      own_above += found.own_above;
      if (level > 0) prefix <<= shift_of(level - 1) - shift_of(level);
      prefix |= found.bin;
      const std::uint32_t lowest = prefix << shift_of(level);
      // All bits of the key are known: what is inside is equal.
      if (shift_of(level) <= 32 - Traits::kKeyBits) {
        return {lowest, needed, own_above, found.own_inside};
      }
      if (needed == found.inside) {
        return {max(lowest, 1u) - 1, 0, own_above + found.own_inside, 0};
      }
      clear(level);
    }
  }

  __device__ __forceinline__ std::int32_t slot_of(std::uint32_t at) const {
    if (!params.page_table) {
      const std::int32_t offset =
          params.out_offsets ? load_global<std::int32_t>(params.out_offsets + row) : 0;
      return offset + static_cast<std::int32_t>(at);
    }
    const std::int64_t line =
        params.row_to_request ? load_global<std::int32_t>(params.row_to_request + row) : row;
    const std::int32_t page = load_global<std::int32_t>(
        params.page_table + line * params.page_table_stride + (at >> params.page_bits));
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(page) << params.page_bits |
                                     (at & ((1u << params.page_bits) - 1)));
  }
  __device__ __forceinline__ void put(std::uint32_t place, std::int32_t slot,
                                      std::int32_t at) const {
    store_global(params.slots + std::int64_t{row} * params.slots_stride + place, slot);
    if (params.positions) {
      store_global(params.positions + std::int64_t{row} * params.positions_stride + place, at);
    }
  }

  // Writes the block's selected, after those of the blocks before it.
  __device__ __forceinline__ void write(const TopkCut& cut) {
    std::uint32_t place = 0, ties = cut.ties;
    if (ranks > 1) {
      if (threadIdx.x < ranks) {
        *on_rank(&shared.tallies[rank], threadIdx.x) = {cut.own_above, cut.own_equal};
      }
      cluster_arrive();
      cluster_wait();
      for (std::uint32_t before = 0; before < rank; ++before) {
        const std::uint32_t taken = min(ties, shared.tallies[before].y);
        place += shared.tallies[before].x + taken;
        ties -= taken;
      }
    }
    const std::uint32_t last = place + cut.own_above + min(ties, cut.own_equal);
    // Of those before a thread, `above` are over the threshold and `equal` at it.
    std::uint32_t above = 0, equal = 0;
    const auto write_keys = [&](const auto& keys, const auto& position_of) {
      std::uint32_t mine = 0, total;
      for (const std::uint32_t key : keys) {
        mine += (key > cut.threshold) | (key == cut.threshold) << 16;
      }
      const std::uint32_t before = scan(mine, total);
      std::uint32_t my_above = above + before % 65536, my_equal = equal + before / 65536;
#pragma unroll
      for (std::uint32_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        const bool is_above = keys[i] > cut.threshold, is_equal = keys[i] == cut.threshold;
        if (is_above || (is_equal && my_equal < ties)) {
          const std::uint32_t at = position_of(i);
          put(place + my_above + min(my_equal, ties), slot_of(at), static_cast<std::int32_t>(at));
        }
        my_above += is_above;
        my_equal += is_equal;
      }
      above += total % 65536;
      equal += total / 65536;
    };
    const auto written = [&] { return place + above + min(equal, ties); };
    const std::uint32_t in_words = complete ? cached : slice.words;
    for (std::uint32_t base = 0; base < in_words && written() < last; base += kThreads) {
      Keys keys;
      if (base + threadIdx.x < in_words) {
        load_keys(base, keys);
      } else {
#pragma unroll
        for (std::uint32_t& key : keys) key = kNoKey;
      }
      write_keys(keys, [&](std::uint32_t i) { return position(base + threadIdx.x, i); });
    }
    if (!complete) return;
    for (std::uint32_t base = 0; base < noted && written() < last; base += kThreads) {
      const std::uint32_t i = base + threadIdx.x;
      const uint2 note = i < noted ? shared.notes[i] : uint2{0, kNoKey};
      const std::uint32_t keys[1] = {note.y};
      write_keys(keys, [&](std::uint32_t) { return note.x; });
    }
  }

  // A row of at most k logits: all of them, then padding.
  __device__ __forceinline__ void write_whole() {
    for (std::uint32_t i = rank * kThreads + threadIdx.x; i < params.k; i += ranks * kThreads) {
      const bool there = i < slice.length;
      put(i, there ? slot_of(i) : -1, there ? static_cast<std::int32_t>(i) : -1);
    }
  }
};

template <class Element, std::uint32_t kThreads>
__global__ void __launch_bounds__(kThreads)
    indexer_topk_kernel(const __grid_constant__ IndexerTopkParams params) {
  GLM53_SHARED(TopkShared<kThreads>, shared);
  GLM53_DYNAMIC_SHARED(uint4, cache);
  const std::uint32_t ranks = cluster_size(), rank = cluster_rank();
  const std::uint32_t row = blockIdx.x / ranks;
  pdl_wait();

  // Clamp the row into its memory: a length past it is the caller's mistake, and reads nothing
  // there.
  const auto clamped = [](std::int32_t value, std::uint64_t most) {
    return static_cast<std::uint32_t>(min(static_cast<std::uint64_t>(max(value, 0)), most));
  };
  std::uint32_t start = 0;
  if (params.row_starts) {
    start = clamped(load_global<std::int32_t>(params.row_starts + row), params.width);
  }
  std::uint64_t most = params.width - start;
  if (params.page_table) most = min(most, std::uint64_t{params.pages} << params.page_bits);
  const std::uint32_t length = clamped(load_global<std::int32_t>(params.lengths + row), most);
  if (rank == 0 && threadIdx.x == 0) {
    store_global(params.counts + row, static_cast<std::int32_t>(min(length, params.k)));
  }

  const Element* logits = static_cast<const Element*>(params.logits) + row * params.logits_stride;
  const LogitSlice slice = slice_of_row(logits, start, length, params.width, rank, ranks);
  TopkRow<Element, kThreads> selection{params, shared, cache, slice,
                                       row,    rank,   ranks, min(slice.words, params.cache_words)};
  if (length <= params.k) {
    selection.write_whole();
  } else {
    selection.clear(0);
    selection.clear(1);
    if (ranks > 1) cluster_arrive();
    selection.write(selection.find_cut());
  }
  pdl_trigger();
}

// The largest cache, in whole rounds of the block, that leaves room for the rest.
inline constexpr std::uint32_t kMaxCacheWords = 11 * 1024;
static_assert(sizeof(TopkShared<1024>) + kMaxCacheWords * sizeof(uint4) <= 227 * 1024);

// How a call is launched, by its shape alone: the lengths are on the device.
struct IndexerTopkPlan {
  std::uint32_t threads, cluster, cache_words;
};
inline IndexerTopkPlan plan_indexer_topk(std::uint32_t rows, std::uint32_t width, bool bf16) {
  // About two blocks for each multiprocessor, and no block with less than a few rounds of work.
  constexpr std::uint32_t kBlocks = 264, kWordsWorthwhile = 2048;
  const std::uint32_t in_word = bf16 ? 8 : 4;
  const std::uint32_t words = width / in_word + 2;
  std::uint32_t cluster = 1;
  while (cluster < kTopkClusterBlocks &&
         (words > cluster * kMaxCacheWords ||
          (words > cluster * kWordsWorthwhile && rows * cluster * 2 <= kBlocks))) {
    cluster *= 2;
  }
  const std::uint32_t share = (words + cluster - 1) / cluster;
  return {share <= 1024 ? 256u : 1024u, cluster, share < kMaxCacheWords ? share : kMaxCacheWords};
}

inline LaunchShape indexer_topk_shape(const IndexerTopkParams& params,
                                      const IndexerTopkPlan& plan) {
  return {.grid = dim3{params.rows * plan.cluster, 1, 1},
          .block = dim3{plan.threads, 1, 1},
          .dynamic_shared_bytes = params.cache_words * sizeof(uint4),
          .cluster = plan.cluster,
          .pdl = true};
}

inline auto indexer_topk_entry(const IndexerTopkParams& params, const IndexerTopkPlan& plan)
    -> void (*)(IndexerTopkParams) {
  if (plan.threads == 256) {
    return params.bf16 ? indexer_topk_kernel<Bf16, 256> : indexer_topk_kernel<float, 256>;
  }
  return params.bf16 ? indexer_topk_kernel<Bf16, 1024> : indexer_topk_kernel<float, 1024>;
}

}  // namespace glm53
