#include "tests/fuzz/fuzz.h"

#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "sim/base/sanitizers.h"

#ifdef RANKLOOM_ASAN
#include <sanitizer/allocator_interface.h>
#endif

namespace {

// Of operator new alone, which containers and strings take their memory from; of malloc, too, under
// AddressSanitizer. Other threads count, too.
std::atomic<int64_t> held = 0;
std::atomic<int64_t> most_held = 0;

[[maybe_unused]] void count(int64_t bytes) {
  const int64_t now = held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = most_held.load(std::memory_order_relaxed);
  while (now > most && !most_held.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

#ifdef RANKLOOM_ASAN

// AddressSanitizer has an operator new of its own, and tells of all memory that is taken.
void given(const volatile void* /*memory*/, size_t bytes) { count(static_cast<int64_t>(bytes)); }
void taken_back(const volatile void* memory) {
  if (memory == nullptr) return;
  count(-static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(memory))));
}
const int kInstalled = __sanitizer_install_malloc_and_free_hooks(&given, &taken_back);

}  // namespace

#elif !defined(RANKLOOM_TSAN)  // which has one, too, and stays without a count

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

// The forms for arrays, and those that do not throw, call these.
void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { release(memory); }

#else

}  // namespace

#endif

namespace rankloom::fuzz {

void wrong(std::string_view what) {
  std::fprintf(stderr, "wrong: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

int Input::below(int bound) {
  if (bytes_.empty()) return 0;
  const auto byte = static_cast<uint8_t>(bytes_.front());
  bytes_.remove_prefix(1);
  return byte % bound;
}

uint64_t Input::word() {
  uint64_t value = 0;
  for (const char c : take(8)) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

std::string Input::take(size_t bytes) {
  const std::string part(bytes_.substr(0, bytes));
  bytes_.remove_prefix(part.size());
  return part;
}

std::string repeated(Input& in) {
  constexpr size_t kBytes = 400'000;
  std::string text = in.text();
  const std::string part = in.text();
  while (!part.empty() && text.size() < kBytes) text += part;
  return text + in.rest();
}

void in_little_memory(size_t bytes, absl::FunctionRef<void()> action, int times, int64_t more) {
#ifdef RANKLOOM_ASAN
  if (kInstalled == 0) wrong("the sanitizer does not tell of memory");
#endif
  const int64_t before = held.load(std::memory_order_relaxed);
  most_held.store(before, std::memory_order_relaxed);
  action();
  const int64_t taken = most_held.load(std::memory_order_relaxed) - before;
  if (taken <= times * static_cast<int64_t>(bytes) + more) return;
  wrong("an input of " + std::to_string(bytes) + " bytes took " + std::to_string(taken) + " bytes of memory");
}

}  // namespace rankloom::fuzz
