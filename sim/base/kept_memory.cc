#include "sim/base/kept_memory.h"

#include <algorithm>

namespace rankloom::internal {
namespace {

// Tells a program's ThreadSanitizer, which sees no count of this library's go down, that the owners of a shared object
// have let go of it: the counts of libstdc++ and libc++ lie behind a pointer.
void acquire_counts(void* memory, size_t bytes) {
  if (__tsan_acquire == nullptr) return;
  for (size_t at = sizeof(void*); at < std::min(bytes, 3 * sizeof(void*)); at += sizeof(int))
    __tsan_acquire(static_cast<char*>(memory) + at);
}

}  // namespace

// Releases what its thread has kept, and has the thread keep nothing more.
struct KeptMemory::AtExit {
  ~AtExit() {
    lists_.most = 0;
    for (Block*& first : lists_.first) {
      while (first != nullptr) {
        Block* const block = first;
        first = block->next;
        ::operator delete(block);
      }
    }
  }
};

void KeptMemory::give_slowly(void* memory, size_t bytes) {
  if (!lists_.asked) {
    lists_.asked = true;
    // The program may have a sanitizer though this library has none.
    if (__asan_unpoison_memory_region == nullptr && __tsan_get_current_fiber == nullptr) {
      static thread_local AtExit at_exit;
      static_cast<void>(at_exit);
      lists_.most = kMostKept;
      return give(memory, bytes);
    }
  }
  acquire_counts(memory, bytes);
  ::operator delete(memory);
}

}  // namespace rankloom::internal
