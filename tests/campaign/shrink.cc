#include <algorithm>

#include "absl/time/clock.h"
#include "tests/campaign/compare.h"

namespace rankloom {

namespace {

class Shrinker {
 public:
  Shrinker(const Job& job, const std::function<bool(const Job&)>& fails, absl::Duration most)
      : job_(job), fails_(fails), end_(absl::Now() + most) {}

  Job shrink() {
    for (bool smaller = true; smaller && absl::Now() < end_;) {
      smaller = false;
      // Halves, quarters, ..., single acts.
      for (size_t length = std::max<size_t>(1, job_.acts.size() / 2); length > 0; length /= 2) {
        for (size_t at = 0; at < job_.acts.size();) {
          if (try_with([&](Job& job) {
                const auto first = job.acts.begin() + static_cast<std::ptrdiff_t>(at);
                const size_t end = std::min(job.acts.size(), at + length);
                job.acts.erase(first, job.acts.begin() + static_cast<std::ptrdiff_t>(end));
              })) {
            smaller = true;
          } else {
            at += length;
          }
        }
      }
      for (size_t i = 0; i < job_.faults.size();) {
        const bool gone =
            try_with([&](Job& job) { job.faults.erase(job.faults.begin() + static_cast<std::ptrdiff_t>(i)); });
        smaller = smaller || gone;
        if (!gone) ++i;
      }
      for (size_t i = 0; i < job_.acts.size(); ++i) {
        for (size_t p = 0; p < job_.acts[i].parts.size();) {
          const bool gone = job_.acts[i].parts.size() > 1 && try_with([&](Job& job) {
                              job.acts[i].parts.erase(job.acts[i].parts.begin() + static_cast<std::ptrdiff_t>(p));
                            });
          smaller = smaller || gone;
          if (!gone) ++p;
        }
      }
      smaller = simplify() || smaller;
    }
    return job_;
  }

 private:
  template <typename Change>
  bool try_with(const Change& change) {
    if (absl::Now() >= end_) return false;
    Job job = job_;
    change(job);
    if (!fails_(job)) return false;
    job_ = std::move(job);
    return true;
  }
  // Sets a number to a simpler one.
  template <typename Get>
  bool lower(const Get& get, int simple) {
    if (get(job_) == simple) return false;
    return try_with([&](Job& job) { get(job) = simple; });
  }

  bool simplify() {
    bool smaller = false;
    if (job_.world_size > 1) smaller |= try_with([](Job& job) { --job.world_size; });
    smaller |= lower([](Job& job) -> int& { return job.two_worlds; }, 0);
    smaller |= lower([](Job& job) -> int& { return job.eager_bytes; }, 0);
    smaller |= lower([](Job& job) -> int& { return job.rooted; }, 0);
    smaller |= lower([](Job& job) -> int& { return job.recorded; }, Job().recorded);
    for (size_t i = 0; i < job_.acts.size(); ++i) {
      for (int Act::*number : {&Act::group, &Act::dim, &Act::rank, &Act::b, &Act::c, &Act::way}) {
        smaller |= lower([&](Job& job) -> int& { return job.acts[i].*number; }, 0);
      }
      if (job_.acts[i].type() == ActKind::kCollective || job_.acts[i].type() == ActKind::kMessage) {
        for (int JobCall::*number : {&JobCall::uneven, &JobCall::root, &JobCall::values, &JobCall::order,
                                     &JobCall::in_place, &JobCall::count}) {
          smaller |= lower([&](Job& job) -> int& { return job.acts[i].call.*number; }, 0);
        }
        if (job_.acts[i].call.count > 1) smaller |= lower([&](Job& job) -> int& { return job.acts[i].call.count; }, 1);
        smaller |= lower([&](Job& job) -> int& { return job.acts[i].call.rows; }, 1);
      }
    }
    return smaller;
  }

  Job job_;
  const std::function<bool(const Job&)>& fails_;
  const absl::Time end_;
};

}  // namespace

Job shrink(const Job& job, const std::function<bool(const Job&)>& fails, absl::Duration most) {
  return Shrinker(job, fails, most).shrink();
}

}  // namespace rankloom
