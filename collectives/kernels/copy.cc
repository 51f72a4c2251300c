#include "collectives/kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "collectives/kernels/parallel.h"
#include "collectives/kernels/plan.h"

namespace rankloom::internal {
namespace {

constexpr int64_t kCopyParallelBytes = 1 << 20;
// A part of a source that stays in the L2 cache while all targets get it.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int64_t kCopyGrainBytes = 128 << 10;

}  // namespace

CopyBatch::CopyBatch(int64_t total_bytes, KernelPlan* plan)
    : plan_(plan), at_once_(plan == nullptr && total_bytes < kCopyParallelBytes) {}

void CopyBatch::add(void* to, const void* from, size_t bytes) {
  if (to == from || bytes == 0) return;
  if (at_once_) {
    copy_few(to, from, bytes);
    return;
  }
  if (plan_ != nullptr) {
    plan_->add_copy(to, from, static_cast<int64_t>(bytes));
    return;
  }
  if (sources_.empty() || sources_.back().from != from || sources_.back().bytes != static_cast<int64_t>(bytes)) {
    const int64_t begin = sources_.empty() ? 0 : sources_.back().begin + sources_.back().bytes;
    sources_.push_back({static_cast<const char*>(from), static_cast<int64_t>(bytes), begin, targets_.size(), 0});
  }
  targets_.push_back(static_cast<char*>(to));
  ++sources_.back().target_count;
}

void CopyBatch::run() {
  if (sources_.empty()) return;
  const int64_t all = sources_.back().begin + sources_.back().bytes;
  const auto targets = static_cast<int64_t>(targets_.size() / sources_.size());
  const int64_t grain = std::max<int64_t>(kCopyGrainBytes / std::max<int64_t>(1, targets), 4096);
  parallel_blocks(all, grain, [this](int64_t begin, int64_t end) { copy_range(begin, end); });
}

void CopyBatch::copy_range(int64_t begin, int64_t end) const {
  auto source = std::upper_bound(sources_.begin(), sources_.end(), begin,
                                 [](int64_t at, const Source& s) { return at < s.begin; }) -
                1;
  while (begin < end) {
    const int64_t offset = begin - source->begin;
    const int64_t count = std::min({end - begin, source->bytes - offset, kBlockBytes});
    for (size_t t = 0; t < source->target_count; ++t) {
      std::memcpy(targets_[source->first_target + t] + offset, source->from + offset, static_cast<size_t>(count));
    }
    begin += count;
    if (offset + count == source->bytes) ++source;
  }
}

}  // namespace rankloom::internal
