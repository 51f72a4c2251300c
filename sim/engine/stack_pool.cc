#include "sim/engine/stack_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/sanitizers.h"

#ifdef RANKLOOM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace rankloom::internal {
namespace {

constexpr size_t kPage = 4096;

// Distinct tops modulo 4 KiB. Guarded stacks are large, so they can lose most of a page; slab stacks are small and many,
// and a wide spread would touch a second page of each.
size_t colour(size_t index, bool guarded) { return guarded ? index % 63 * 64 : index % 8 * 64; }

}  // namespace

StackPool::~StackPool() { release(); }

size_t StackPool::whole_pages(size_t bytes) { return std::max((bytes + kPage - 1) / kPage * kPage, 2 * kPage); }

void StackPool::begin(size_t bytes, bool guarded, int expected) {
  expected_ = expected;
  if (fits(bytes, guarded)) return;
  bytes = whole_pages(bytes);
  release();
  bytes_ = bytes;
  guarded_ = guarded;
}

StackPool::Stack StackPool::take() {
  if (!free_.empty()) {
    const Stack stack = free_.back();
    free_.pop_back();
    return stack;
  }
  if (next_ == end_) add_slab();
  char* const low = next_;
  next_ += bytes_ + (guarded_ ? kPage : 0);
  Stack stack{.guarded = guarded_};
  stack.bottom = guarded_ ? low + kPage : low;
  stack.top = static_cast<char*>(stack.bottom) + bytes_ - colour(made_++, guarded_);
  if (guarded_) {
    if (mprotect(low, kPage, PROT_NONE) != 0)
      fatal(absl::StrCat("cannot protect the guard page of a stack: ", std::strerror(errno)));
  }
  return stack;
}

void StackPool::give(void* top) {
  // The bottom follows from the top: stacks lie at multiples of the stride from their slab's base.
  const size_t stride = bytes_ + (guarded_ ? kPage : 0);
  for (const Slab& slab : slabs_) {
    if (top <= slab.base || top > slab.base + slab.bytes) continue;
    const size_t index = (static_cast<size_t>(static_cast<char*>(top) - slab.base) - 1) / stride;
    Stack stack{.top = top, .guarded = guarded_};
    stack.bottom = slab.base + index * stride + (guarded_ ? kPage : 0);
#ifdef RANKLOOM_ASAN
    ASAN_UNPOISON_MEMORY_REGION(stack.bottom, stack.size());
#endif
    free_.push_back(stack);
    return;
  }
  fatal("a stack came back that was never given out");
}

void StackPool::add_slab() {
  const size_t stride = bytes_ + (guarded_ ? kPage : 0);
  const size_t wanted = std::max<size_t>(
      static_cast<size_t>(std::max(expected_, 1)) > made_ ? static_cast<size_t>(expected_) - made_ : 1, 16);
  // At most 1 GiB at once, so that a failure leaves what is there usable.
  const size_t count = std::max<size_t>(1, std::min(wanted, (size_t{1} << 30) / stride));
  void* const base = mmap(nullptr, count * stride, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) {
    fatal(absl::StrCat("cannot reserve ", count, " fiber stacks of ", bytes_, " bytes: ", std::strerror(errno),
                       "; use a smaller stack_bytes or fewer ranks"));
  }
  // A huge page under a slab of small stacks would back them all at once.
  madvise(base, count * stride, MADV_NOHUGEPAGE);
  slabs_.push_back({static_cast<char*>(base), count * stride});
  next_ = static_cast<char*>(base);
  end_ = next_ + count * stride;
}

void StackPool::release() {
  for (const Slab& slab : slabs_) munmap(slab.base, slab.bytes);
  slabs_.clear();
  free_.clear();
  made_ = 0;
  next_ = end_ = nullptr;
}

}  // namespace rankloom::internal
