#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "sim/base/sanitizers.h"

namespace rankloom::internal {

// Memory of what each world makes anew and the next one of the same thread makes again: explore() runs a million of
// them. Blocks that come back are kept by the thread that gives them back, in lists by size, each of at most kMostKept
// bytes, and are released when the thread ends. Objects in them are made and destroyed as everywhere else. Where a
// sanitizer watches, nothing is kept, so that a use after the end of a world shows.
// Thread-safety: a block may go back on another thread than the one that took it.
class KeptMemory {
 public:
  static constexpr size_t kMostKept = size_t{32} << 10;
  static constexpr size_t kLargest = 8192;  // larger blocks are not kept

  // As operator new; aligned for any type that has no alignment of its own.
  static void* take(size_t bytes) {
    if (kSanitized || bytes > kLargest) [[unlikely]]
      return ::operator new(bytes);
    const Size size = size_of(bytes);
    Block*& first = lists_.first[size.list];
    Block* const block = first;
    if (block == nullptr) [[unlikely]]
      return ::operator new(size.bytes);
    first = block->next;
    lists_.kept[size.list] -= static_cast<uint32_t>(size.bytes);
    return block;
  }
  // Takes back memory that take() gave for so many bytes.
  static void give(void* memory, size_t bytes) {
    if (kSanitized || bytes > kLargest) [[unlikely]]
      return ::operator delete(memory);
    const Size size = size_of(bytes);
    if (lists_.kept[size.list] + size.bytes > lists_.most) [[unlikely]]
      return give_slowly(memory, bytes);
    lists_.kept[size.list] += static_cast<uint32_t>(size.bytes);
    auto* const block = static_cast<Block*>(memory);
    block->next = lists_.first[size.list];
    lists_.first[size.list] = block;
  }

 private:
#if defined(RANKLOOM_ASAN) || defined(RANKLOOM_TSAN)
  static constexpr bool kSanitized = true;
#else
  static constexpr bool kSanitized = false;
#endif
  struct Block {
    Block* next;
  };
  // Blocks of up to kFine bytes come in steps of 16, larger ones in steps of 256.
  static constexpr size_t kFine = 1024;
  static constexpr size_t kFineLists = kFine / 16;
  static constexpr size_t kLists = kFineLists + (kLargest - kFine) / 256;
  struct Size {
    size_t list;
    size_t bytes;
  };
  static constexpr Size size_of(size_t bytes) {
    if (bytes <= kFine) {
      const size_t steps = bytes == 0 ? 1 : (bytes + 15) / 16;
      return {steps - 1, steps * 16};
    }
    const size_t steps = (bytes - kFine + 255) / 256;
    return {kFineLists + steps - 1, kFine + steps * 256};
  }
  // The first block of a thread, or one too many.
  static void give_slowly(void* memory, size_t bytes);

  struct Lists {
    Block* first[kLists];
    uint32_t kept[kLists];  // bytes
    size_t most;            // of each list; 0: the thread has given nothing yet, or may keep nothing
    bool asked;             // whether it may
  };
  struct AtExit;
  static inline constinit thread_local Lists lists_ = {};
};

// A class whose objects live in kept memory. Not for types with an alignment of their own.
struct Kept {
  static void* operator new(size_t bytes) { return KeptMemory::take(bytes); }
  static void* operator new[](size_t bytes) { return KeptMemory::take(bytes); }
  static void* operator new(size_t, void* place) { return place; }
  static void operator delete(void* memory, size_t bytes) { KeptMemory::give(memory, bytes); }
  static void operator delete[](void* memory, size_t bytes) { KeptMemory::give(memory, bytes); }
};

// The same for containers and shared objects.
template <typename T>
struct KeptAllocator {
  using value_type = T;
  static_assert(alignof(T) <= alignof(std::max_align_t));
  // A container may ask for pointers.
  static constexpr size_t kBytes = sizeof(T);  // NOLINT(bugprone-sizeof-expression)

  KeptAllocator() = default;
  template <typename U>
  KeptAllocator(const KeptAllocator<U>&) {}

  T* allocate(size_t n) {
    if (n > std::numeric_limits<size_t>::max() / kBytes) throw std::bad_array_new_length();
    return static_cast<T*>(KeptMemory::take(n * kBytes));
  }
  void deallocate(T* memory, size_t n) { KeptMemory::give(memory, n * kBytes); }
  template <typename U>
  friend bool operator==(const KeptAllocator&, const KeptAllocator<U>&) {
    return true;
  }
};

template <typename T, typename... Args>
std::shared_ptr<T> make_kept(Args&&... args) {
  return std::allocate_shared<T>(KeptAllocator<std::remove_const_t<T>>(), std::forward<Args>(args)...);
}

}  // namespace rankloom::internal
