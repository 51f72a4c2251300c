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
    smaller |= lower([](Job& job) -> int& { return job.order; }, 0);
    smaller |= lower([](Job& job) -> int& { return job.options; }, 0);
    smaller |= lower([](Job& job) -> int& { return job.fault_rate; }, 0);
    for (size_t i = 0; i < job_.faults.size(); ++i) smaller |= simplify_fault(i);
    for (size_t i = 0; i < job_.acts.size(); ++i) {
      if (job_.acts[i].type() != ActKind::kSplitGroup && job_.acts[i].type() != ActKind::kMesh) {
        smaller |= lower([&](Job& job) -> int& { return job.acts[i].a; }, 0);
      }
      for (int Act::*number : {&Act::group, &Act::dim, &Act::rank, &Act::b, &Act::c, &Act::way}) {
        smaller |= lower([&](Job& job) -> int& { return job.acts[i].*number; }, 0);
      }
      smaller |= simplify_call([i](Job& job) -> JobCall& { return job.acts[i].call; });
      for (size_t p = 0; p < job_.acts[i].parts.size(); ++p) {
        smaller |= simplify_call([i, p](Job& job) -> JobCall& { return job.acts[i].parts[p]; });
      }
    }
    return smaller;
  }

  template <typename Get>
  bool simplify_call(const Get& get) {
    bool smaller = false;
    for (int JobCall::*number : {&JobCall::uneven, &JobCall::root, &JobCall::values, &JobCall::order,
                                 &JobCall::in_place, &JobCall::factor, &JobCall::timed, &JobCall::count}) {
      smaller |= lower([&](Job& job) -> int& { return get(job).*number; }, 0);
    }
    if (get(job_).count > 1) smaller |= lower([&](Job& job) -> int& { return get(job).count; }, 1);
    return smaller | lower([&](Job& job) -> int& { return get(job).rows; }, 1);
  }

  bool simplify_fault(size_t i) {
    const Fault usual;
    const auto be_usual = [&](auto Fault::*field) {
      return !(job_.faults[i].*field == usual.*field) &&
             try_with([&](Job& job) { job.faults[i].*field = usual.*field; });
    };
    bool smaller = be_usual(&Fault::maybe);
    smaller |= be_usual(&Fault::group);
    smaller |= be_usual(&Fault::seq);
    smaller |= be_usual(&Fault::when);
    return smaller | be_usual(&Fault::by);
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
