#include "collectives/kernels/plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace rankloom::internal {
namespace {

template <typename T>
uintptr_t address(T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace

bool KernelPlan::Ranges::overlap(uintptr_t begin, uintptr_t end) const {
  const auto after = ends_.lower_bound(end);  // the first that begins at `end` or later
  return after != ends_.begin() && std::prev(after)->second > begin;
}

void KernelPlan::Ranges::add(uintptr_t begin, uintptr_t end) {
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ends_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace(begin, end);
}

void KernelPlan::add_copy(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) current_.copies.push_back({to, from, bytes});
}

void KernelPlan::add_reduce(const ReduceJob& job, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Reduce reduce = {.job = job, .numel = end - begin, .pointers = pointers_.size()};
  reduce.job.inputs = nullptr;
  reduce.job.outputs = nullptr;
  current_.reduces.push_back(reduce);
  const int64_t offset = begin * static_cast<int64_t>(dtype_size(job.dtype));
  pointers_.reserve(pointers_.size() + static_cast<size_t>(job.count + job.output_count));
  for (int64_t i = 0; i < job.count; ++i) {
    pointers_.push_back(const_cast<char*>(static_cast<const char*>(job.inputs[i]) + offset));
  }
  for (int64_t i = 0; i < job.output_count; ++i) pointers_.push_back(static_cast<char*>(job.outputs[i]) + offset);
}

template <class Visit>
void KernelPlan::for_each_range(const Stage& part, Visit visit) const {
  for (const Copy& copy : part.copies) {
    const auto bytes = static_cast<uintptr_t>(copy.bytes);
    visit(address(copy.from), address(copy.from) + bytes, false);
    visit(address(copy.to), address(copy.to) + bytes, true);
  }
  for (const Reduce& reduce : part.reduces) {
    const uintptr_t bytes = static_cast<uintptr_t>(reduce.numel) * dtype_size(reduce.job.dtype);
    const absl::Span<void* const> pointers = pointers_of(reduce);
    for (size_t i = 0; i < pointers.size(); ++i) {
      visit(address(pointers[i]), address(pointers[i]) + bytes, i >= static_cast<size_t>(reduce.job.count));
    }
  }
}

void KernelPlan::end_stage() {
  if (current_.empty()) return;
  bool depends = stages_.empty();
  for_each_range(current_, [&](uintptr_t begin, uintptr_t end, bool written) {
    depends = depends || (written ? touched_ : written_).overlap(begin, end);
  });
  if (depends) {
    stages_.emplace_back();
    touched_.clear();
    written_.clear();
  }
  for_each_range(current_, [&](uintptr_t begin, uintptr_t end, bool written) {
    touched_.add(begin, end);
    if (written) written_.add(begin, end);
  });
  Stage& stage = stages_.back();
  stage.reduces.insert(stage.reduces.end(), current_.reduces.begin(), current_.reduces.end());
  stage.copies.insert(stage.copies.end(), current_.copies.begin(), current_.copies.end());
  current_ = {};
}

const std::vector<KernelPlan::Stage>& KernelPlan::stages() {
  if (stages_.empty()) {
    if (!current_.empty()) stages_.push_back(std::exchange(current_, {}));
  } else {
    end_stage();
  }
  return stages_;
}

}  // namespace rankloom::internal
