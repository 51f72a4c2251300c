#pragma once

#include "sim/base/sanitizers.h"

namespace rankloom::internal {

// For the ThreadSanitizer of a program whose rankloom was built without one. It sees neither our locks nor our atomics,
// but some of our accesses (allocations, memcpy), and would take each for a race. So it does not look at what a thread
// does within a LibraryScope, and is told the order that calls give to the program's own accesses: what comes before a
// call comes before what follows a later end of any call. That is more than single calls promise, and less than our
// locks do. Scopes nest. Each public method in which ranks can meet has one, its destructor last; and each thread and
// fiber of ours, for all of its life. In other programs a scope costs two branches; in a library that is built with
// ThreadSanitizer, nothing is left out of its sight.
class [[nodiscard]] LibraryScope {
 public:
  LibraryScope() {
    if (tells()) [[unlikely]]
      enter();
  }
  ~LibraryScope() {
    if (tells()) [[unlikely]]
      leave();
  }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;

  // Whether the program has a ThreadSanitizer that does not see into this library.
  static bool tells() {
#ifdef RANKLOOM_TSAN
    return false;
#else
    return __tsan_ignore_thread_begin != nullptr;
#endif
  }

 private:
  friend class ProgramScope;
  static void enter() {
    __tsan_release(&order_);
    __tsan_ignore_thread_begin();
  }
  static void leave() {
    __tsan_ignore_thread_end();
    __tsan_acquire(&order_);
  }

  static inline char order_ = 0;
};

// The program's own code, called within one LibraryScope: a rank's body.
class [[nodiscard]] ProgramScope {
 public:
  ProgramScope() {
    if (LibraryScope::tells()) [[unlikely]]
      LibraryScope::leave();
  }
  ~ProgramScope() {
    if (LibraryScope::tells()) [[unlikely]]
      LibraryScope::enter();
  }
  ProgramScope(const ProgramScope&) = delete;
  ProgramScope& operator=(const ProgramScope&) = delete;
};

}  // namespace rankloom::internal
