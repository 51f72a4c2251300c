#include "sim/engine/stack_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/sanitizers.h"
#include "sim/engine/valgrind_stack.h"

namespace rankloom::internal {
namespace {

// Of the system, which protects memory by pages: 4 KiB, mostly; 16 or 64 KiB on some with Arm processors.
size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

#ifdef MAP_NORESERVE
constexpr int kUnreserved = MAP_NORESERVE;
#else
constexpr int kUnreserved = 0;
#endif
#if defined(MAP_STACK) && defined(__linux__)
constexpr int kForStacks = MAP_STACK;
#else
constexpr int kForStacks = 0;  // elsewhere the flag may mean memory that grows
#endif

// Distinct tops modulo 4 KiB. Guarded stacks are large, so they can lose most of a page; slab stacks are small and
// many, and a wide spread would touch a second page of each.
size_t colour(size_t index, bool guarded) { return guarded ? index % 63 * 64 : index % 8 * 64; }

std::atomic<size_t> guards{0};  // of all pools

}  // namespace

StackPool::~StackPool() { release(); }

size_t StackPool::whole_pages(size_t bytes) { return std::max((bytes + page() - 1) / page() * page(), 2 * page()); }

void StackPool::begin(size_t bytes, bool guarded, int expected) {
  expected_ = expected;
  if (fits(bytes, guarded)) return;
  release();
  bytes_ = whole_pages(bytes);
  guarded_ = guarded;
}

bool StackPool::may_be_kept() const {
  size_t own = 0;
  for (const Slab& slab : slabs_) own += slab.guard > 0 ? slab.count : 0;
  return !beyond_ && own <= kMostGuards / 2;
}

StackPool::Stack StackPool::take() {
  if (!free_.empty()) {
    const Stack stack = free_.back();
    free_.pop_back();
    return stack;
  }
  if (slabs_.empty() || taken_ == slabs_.back().count) add_slab();
  const Slab& slab = slabs_.back();
  char* const bottom = slab.base + taken_++ * stride(slab) + slab.guard;
  if (slab.guard > 0 && mprotect(bottom, bytes_, PROT_READ | PROT_WRITE) != 0)
    fatal(absl::StrCat("cannot make the memory of a stack writable: ", std::strerror(errno)));
  told_.push_back(add_valgrind_stack(bottom, bottom + bytes_));
  return {.top = bottom + bytes_ - colour(made_++, guarded_), .bottom = bottom, .guard = slab.guard};
}

void StackPool::give(void* top) {
  // The bottom follows from the top: stacks lie at multiples of the stride from their slab's base.
  for (const Slab& slab : slabs_) {
    if (top <= slab.base || top > slab.base + slab.count * stride(slab)) continue;
    const size_t index = (static_cast<size_t>(static_cast<char*>(top) - slab.base) - 1) / stride(slab);
    const Stack stack{.top = top, .bottom = slab.base + index * stride(slab) + slab.guard, .guard = slab.guard};
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(stack.bottom, stack.size());
    free_.push_back(stack);
    return;
  }
  fatal("a stack came back that was never given out");
}

char* StackPool::map_slab(const Slab& slab) const {
  void* const base = mmap(nullptr, slab.count * stride(slab), slab.guard > 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | kUnreserved | kForStacks, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
}

bool StackPool::reserve_guards(size_t count) {
  if (guards.fetch_add(count, std::memory_order_relaxed) + count <= kMostGuards) return true;
  guards.fetch_sub(count, std::memory_order_relaxed);
  return false;
}

void StackPool::add_slab() {
  const size_t wanted = std::max<size_t>(
      static_cast<size_t>(std::max(expected_, 1)) > made_ ? static_cast<size_t>(expected_) - made_ : 1, 16);
  Slab slab{};
  if (guarded_) slab.guard = std::min(kMostGuard, kGuardSpace / wanted / page() * page());
  // At most 1 GiB at once, so that a failure leaves what is there usable.
  const auto count = [&] { return std::max<size_t>(1, std::min(wanted, (size_t{1} << 30) / stride(slab))); };
  slab.count = count();
  if (slab.guard > 0 && !reserve_guards(slab.count)) {
    slab.guard = 0;
    slab.count = count();
    beyond_ = true;
  }
  slab.base = map_slab(slab);
  if (slab.base == nullptr && slab.guard > page()) {  // where address space is limited (ulimit -v)
    slab.guard = page();
    slab.base = map_slab(slab);
  }
  if (slab.base == nullptr) {
    fatal(absl::StrCat("cannot reserve ", slab.count, " fiber stacks of ", bytes_, " bytes: ", std::strerror(errno),
                       "; use a smaller stack_bytes or fewer ranks"));
  }
  // A huge page under a slab of small stacks would back them all at once.
#ifdef MADV_NOHUGEPAGE
  madvise(slab.base, slab.count * stride(slab), MADV_NOHUGEPAGE);
#endif
  slabs_.push_back(slab);
  taken_ = 0;
}

void StackPool::release() {
  for (const unsigned id : told_) remove_valgrind_stack(id);
  for (const Slab& slab : slabs_) {
    munmap(slab.base, slab.count * stride(slab));
    if (slab.guard > 0) guards.fetch_sub(slab.count, std::memory_order_relaxed);
  }
  told_.clear();
  slabs_.clear();
  free_.clear();
  beyond_ = false;
  bytes_ = 0;
  made_ = 0;
  taken_ = 0;
}

}  // namespace rankloom::internal
