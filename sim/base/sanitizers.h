#pragma once

#include <cstddef>

// Which sanitizer this file is compiled for: g++ has a macro, clang a question.

#if defined(__SANITIZE_ADDRESS__)
#define RANKLOOM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKLOOM_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define RANKLOOM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RANKLOOM_TSAN 1
#endif
#endif

// Entries of the sanitizers' runtimes. A program may have a sanitizer though this library was built without: they are
// asked for at run time, and null where there is none. The loader is asked where the linker would want each to be
// there.
// NOLINTBEGIN(bugprone-reserved-identifier)
#if defined(__ELF__) && !defined(RANKLOOM_POSIX_ONLY)
#define RANKLOOM_ENTRY(result, name, ...) extern "C" [[gnu::weak]] result name(__VA_ARGS__)
#else
#include <dlfcn.h>
#define RANKLOOM_ENTRY(result, name, ...)                                                                           \
  namespace rankloom::internal {                                                                                    \
  inline result (*const name)(__VA_ARGS__) = reinterpret_cast<result (*)(__VA_ARGS__)>(dlsym(RTLD_DEFAULT, #name)); \
  }                                                                                                                 \
  static_assert(true)
#endif
RANKLOOM_ENTRY(void, __sanitizer_start_switch_fiber, void** fake_stack_save, const void* bottom, size_t size);
RANKLOOM_ENTRY(void, __sanitizer_finish_switch_fiber, void* fake_stack_save, const void** bottom_old, size_t* size_old);
RANKLOOM_ENTRY(void, __asan_unpoison_memory_region, const volatile void* address, size_t size);
RANKLOOM_ENTRY(void*, __asan_region_is_poisoned, void* begin, size_t size);
RANKLOOM_ENTRY(void, __asan_report_load_n, void* address, size_t size);
RANKLOOM_ENTRY(void, __asan_report_store_n, void* address, size_t size);
RANKLOOM_ENTRY(void, __sanitizer_set_death_callback, void (*callback)());
RANKLOOM_ENTRY(int, LLVMFuzzerTestOneInput, const unsigned char* data, size_t size);  // a program of libFuzzer's
RANKLOOM_ENTRY(void*, __tsan_get_current_fiber);
RANKLOOM_ENTRY(void*, __tsan_create_fiber, unsigned flags);
RANKLOOM_ENTRY(void, __tsan_destroy_fiber, void* fiber);
RANKLOOM_ENTRY(void, __tsan_switch_to_fiber, void* fiber, unsigned flags);
RANKLOOM_ENTRY(void, __tsan_ignore_thread_begin);
RANKLOOM_ENTRY(void, __tsan_ignore_thread_end);
RANKLOOM_ENTRY(void, __tsan_acquire, void* address);
RANKLOOM_ENTRY(void, __tsan_release, void* address);
#undef RANKLOOM_ENTRY
// NOLINTEND(bugprone-reserved-identifier)
