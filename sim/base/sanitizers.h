#pragma once

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
