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
// asked for at run time, and null where there is none.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old, size_t* size_old);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, size_t size);
[[gnu::weak]] void* __asan_region_is_poisoned(void* begin, size_t size);
[[gnu::weak]] void __asan_report_load_n(void* address, size_t size);
[[gnu::weak]] void __asan_report_store_n(void* address, size_t size);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_ignore_thread_begin();
[[gnu::weak]] void __tsan_ignore_thread_end();
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
}
// NOLINTEND(bugprone-reserved-identifier)
