#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rankloom::internal {

// Stacks for fibers, kept between worlds. Address space is reserved, pages are touched on demand.
//   Up to kMaxGuarded stacks each has a guard below it: an overflow faults, and the fault names the rank. A guard is as
//   large as the frame of one function may be, since a large local is not touched page by page: 8 MiB, a thread's whole
//   stack, and less in worlds of more than 512 (kGuardSpace for all).
//   Above that, and for the stacks of helpers once the process has kMostGuards guards, two mappings a stack would meet
//   vm.max_map_count (65,530 by default; hit at about 32,000 stacks), so stacks are cut from large MAP_NORESERVE slabs
//   and have a canary at their low end, checked whenever the fiber stops: 64 bytes that must be as the kernel gives
//   them, all zero. Written ones would cost each stack a page; these read the one page of zeros.
// Stacks are coloured: their tops differ modulo 4 KiB, since equal ones made the same program six times slower.
// Thread-safety: belongs to one thread.
class StackPool {
 public:
  static constexpr int kMaxGuarded = 8192;
  static constexpr size_t kMostGuards = 24'576;  // of all pools
  static constexpr int kCanaryWords = 8;
  static constexpr size_t kMostGuard = size_t{8} << 20;
  static constexpr size_t kGuardSpace = size_t{4} << 30;

  struct Stack {
    void* top = nullptr;  // one past the highest usable byte, 16-byte aligned
    void* bottom = nullptr;
    size_t guard = 0;  // bytes below the bottom that fault; 0: a canary instead
    size_t size() const { return static_cast<size_t>(static_cast<char*>(top) - static_cast<char*>(bottom)); }
    // As begin() was asked for it: the top is less than a page below the end.
    size_t asked() const { return (size() + 4095) / 4096 * 4096; }
  };

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // Whether stacks that are out now are such as begin() with these would give.
  bool fits(size_t bytes, bool guarded) const {
    return whole_pages(bytes) == bytes_ && guarded == guarded_ && !(guarded && beyond_);
  }

  // All stacks until the next begin() have `bytes` and are guarded, as far as kMostGuards allows, or not. Stacks of
  // another shape are given back.
  void begin(size_t bytes, bool guarded, int expected);
  // Whether other pools, which have their worlds in turn, find guards beside this one's: it has half of them at most.
  bool may_be_kept() const;
  // Gives the memory back, when no stack is out; begin() comes next.
  void release();
  Stack take();
  void give(void* top);

  // Whether the canary of an unguarded stack is as it was.
  static bool intact(const Stack& stack) {
    if (stack.guard > 0) return true;
    const auto* const words = static_cast<const uint64_t*>(stack.bottom);
    uint64_t any = 0;
    for (int i = 0; i < kCanaryWords; ++i) any |= words[i];
    return any == 0;
  }

 private:
  static size_t whole_pages(size_t bytes);
  void add_slab();

  struct Slab {
    char* base;
    size_t count;  // of stacks
    size_t guard;
  };
  size_t stride(const Slab& slab) const { return slab.guard + bytes_; }
  char* map_slab(const Slab& slab) const;  // null: errno says why
  // False: the process has kMostGuards.
  static bool reserve_guards(size_t count);
  size_t bytes_ = 0;
  bool guarded_ = false;
  bool beyond_ = false;  // some have a canary, for kMostGuards
  int expected_ = 0;
  std::vector<Slab> slabs_;
  std::vector<Stack> free_;
  std::vector<unsigned> told_;  // Valgrind's numbers of the stacks
  size_t made_ = 0;
  size_t taken_ = 0;  // of the newest slab
};

}  // namespace rankloom::internal
