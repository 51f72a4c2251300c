#pragma once

// A plan as the device runs it: tables that a kernel reads, and what each thread does. Plain C++ that compiles for the
// host too, where tests run it thread by thread.

#include <cstddef>
#include <cstdint>

#include "collectives/cuda/element_ops.h"

namespace rankloom::internal::cuda {

inline constexpr int kThreads = 256;                               // of a block
inline constexpr int kVectorBytes = 16;                            // of one load
inline constexpr int64_t kCopyTile = kThreads * kVectorBytes * 4;  // bytes that a block copies at a time

// A table is `entries` of these, then, for reductions, the pointers. A launch's tiles are numbered over all its
// entries.
struct ReduceEntry {
  int64_t first_tile;
  int64_t numel;
  double factor;
  uint32_t pointers;  // where its pointers begin, among all: inputs in the order of the reduction, then outputs
  uint32_t count;
  uint32_t output_count;
  uint32_t vectors;  // whether all pointers are multiples of kVectorBytes
};
struct CopyEntry {
  int64_t first_tile;
  void* to;
  const void* from;
  int64_t bytes;
};

struct Table {
  const unsigned char* at;
  uint32_t entries;
  int64_t tiles;

  template <class Entry>
  RANKLOOM_HD const Entry* begin() const {
    return reinterpret_cast<const Entry*>(at);
  }
  RANKLOOM_HD void* const* pointers() const {
    return reinterpret_cast<void* const*>(at + entries * sizeof(ReduceEntry));
  }
  // The entry that a tile belongs to.
  template <class Entry>
  RANKLOOM_HD const Entry& find(int64_t tile) const {
    const Entry* const all = begin<Entry>();
    uint32_t low = 0;
    uint32_t high = entries;  // the entry is in [low, high)
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (all[middle].first_tile <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return all[low];
  }
};

// The unit of one load: a whole vector, or one element, of which no more is known than its own alignment.
template <class Element, int kCount>
struct alignas(kCount > 1 ? sizeof(Element) * kCount : alignof(Element)) Pack {
  Element each[kCount];
};

// Elements in one load, and loads that a thread has under way at a time.
template <class Storage>
inline constexpr int kPerVector = kVectorBytes / static_cast<int>(sizeof(typename Storage::Element));
template <class Storage>
inline constexpr int kLoads = kPerVector<Storage> >= 16 ? 2 : 4;
template <class Storage>
inline constexpr int64_t kReduceTile = int64_t{kThreads} * kPerVector<Storage>* kLoads<Storage>;

// Positions at + u * stride, u < kUnroll, of kPer elements each: from the first input to the last.
template <class Storage, class Op, int kPer, int kUnroll>
RANKLOOM_HD void reduce_packs(const Op& op, const ReduceEntry& entry, void* const* pointers, int64_t at,
                              int64_t stride) {
  using Element = typename Storage::Element;
  using Loaded = Pack<Element, kPer>;
  typename Storage::Value sums[kUnroll][kPer];
  {
    const auto* const input = static_cast<const Element*>(pointers[0]) + at;
    for (int u = 0; u < kUnroll; ++u) {
      const Loaded pack = *reinterpret_cast<const Loaded*>(input + u * stride);
      for (int k = 0; k < kPer; ++k) sums[u][k] = op.map(Storage::load(pack.each[k]));
    }
  }
  for (uint32_t r = 1; r < entry.count; ++r) {
    const auto* const input = static_cast<const Element*>(pointers[r]) + at;
    Loaded packs[kUnroll];
    for (int u = 0; u < kUnroll; ++u) packs[u] = *reinterpret_cast<const Loaded*>(input + u * stride);
    for (int u = 0; u < kUnroll; ++u) {
      for (int k = 0; k < kPer; ++k) sums[u][k] = op.combine(sums[u][k], op.map(Storage::load(packs[u].each[k])));
    }
  }
  Loaded results[kUnroll];
  for (int u = 0; u < kUnroll; ++u) {
    for (int k = 0; k < kPer; ++k) results[u].each[k] = Storage::store(op.finish(sums[u][k]));
  }
  for (uint32_t r = 0; r < entry.output_count; ++r) {
    auto* const output = static_cast<Element*>(pointers[entry.count + r]) + at;
    for (int u = 0; u < kUnroll; ++u) *reinterpret_cast<Loaded*>(output + u * stride) = results[u];
  }
}

// One element: partial results of 1, 2, 4, ... inputs wait until their neighbour is as large, as in a binary counter;
// what remains at the end is joined from the right.
template <class Storage, class Op>
RANKLOOM_HD void reduce_as_tree(const Op& op, const ReduceEntry& entry, void* const* pointers, int64_t at) {
  using Element = typename Storage::Element;
  using Value = typename Storage::Value;
  constexpr int kLevels = 32;  // 2^32 ranks
  Value waiting[kLevels];
  waiting[0] = op.map(Storage::load(static_cast<const Element*>(pointers[0])[at]));
  int depth = 1;
  for (uint32_t r = 1; r < entry.count; ++r) {
    Value sum = op.map(Storage::load(static_cast<const Element*>(pointers[r])[at]));
    for (uint32_t merged = r; (merged & 1) != 0; merged >>= 1) sum = op.combine(waiting[--depth], sum);
    waiting[depth++] = sum;
  }
  Value sum = waiting[--depth];
  while (depth > 0) sum = op.combine(waiting[--depth], sum);
  const Element result = Storage::store(op.finish(sum));
  for (uint32_t r = 0; r < entry.output_count; ++r) static_cast<Element*>(pointers[entry.count + r])[at] = result;
}

// Positions [begin, end) by kPer elements, those of this thread of a block. end - begin is a multiple of kPer.
template <class Storage, class Op, int kPer, int kUnroll>
RANKLOOM_HD void reduce_positions(const Op& op, const ReduceEntry& entry, void* const* pointers, int64_t begin,
                                  int64_t end, int thread) {
  constexpr int64_t kStride = int64_t{kThreads} * kPer;
  int64_t at = begin + int64_t{thread} * kPer;
  for (; at + (kUnroll - 1) * kStride < end; at += kUnroll * kStride) {
    reduce_packs<Storage, Op, kPer, kUnroll>(op, entry, pointers, at, kStride);
  }
  for (; at < end; at += kStride) reduce_packs<Storage, Op, kPer, 1>(op, entry, pointers, at, kStride);
}

// The share of thread `thread` of a block in one tile of its entry; pointers: those of the table. No thread writes
// what another reads: elements belong to threads.
template <class Storage, class Op, bool kTree>
RANKLOOM_HD void reduce_tile(const ReduceEntry& entry, void* const* all_pointers, int64_t tile, int thread) {
  void* const* const pointers = all_pointers + entry.pointers;
  const Op op(OpArgs{entry.factor, entry.count});
  const int64_t begin = (tile - entry.first_tile) * kReduceTile<Storage>;
  const int64_t end = entry.numel - begin < kReduceTile<Storage> ? entry.numel : begin + kReduceTile<Storage>;
  if constexpr (kTree) {
    for (int64_t at = begin + thread; at < end; at += kThreads) reduce_as_tree<Storage>(op, entry, pointers, at);
  } else {
    constexpr int kPer = kPerVector<Storage>;
    // `begin` is a multiple of kPer.
    const int64_t whole = entry.vectors != 0 ? end - (end - begin) % kPer : begin;
    if (whole > begin) reduce_positions<Storage, Op, kPer, kLoads<Storage>>(op, entry, pointers, begin, whole, thread);
    reduce_positions<Storage, Op, 1, kLoads<Storage>>(op, entry, pointers, whole, end, thread);
  }
}

template <class Word>
RANKLOOM_HD void copy_words(void* to, const void* from, int64_t words, int thread) {
  auto* const target = static_cast<Word*>(to);
  const auto* const source = static_cast<const Word*>(from);
  constexpr int kUnroll = 4;
  int64_t at = thread;
  for (; at + (kUnroll - 1) * kThreads < words; at += kUnroll * kThreads) {
    Word held[kUnroll];
    for (int u = 0; u < kUnroll; ++u) held[u] = source[at + u * kThreads];
    for (int u = 0; u < kUnroll; ++u) target[at + u * kThreads] = held[u];
  }
  for (; at < words; at += kThreads) target[at] = source[at];
}

RANKLOOM_HD void copy_tile(const CopyEntry& entry, int64_t tile, int thread) {
  using Vector = Pack<uint32_t, kVectorBytes / 4>;
  const int64_t begin = (tile - entry.first_tile) * kCopyTile;
  const int64_t bytes = entry.bytes - begin < kCopyTile ? entry.bytes - begin : kCopyTile;
  auto* const to = static_cast<unsigned char*>(entry.to) + begin;
  const auto* const from = static_cast<const unsigned char*>(entry.from) + begin;
  const uintptr_t low = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  int64_t done = 0;
  if (low % kVectorBytes == 0) {
    copy_words<Vector>(to, from, bytes / kVectorBytes, thread);
    done = bytes - bytes % kVectorBytes;
  } else if (low % 4 == 0) {
    copy_words<uint32_t>(to, from, bytes / 4, thread);
    done = bytes - bytes % 4;
  }
  copy_words<unsigned char>(to + done, from + done, bytes - done, thread);
}

}  // namespace rankloom::internal::cuda
