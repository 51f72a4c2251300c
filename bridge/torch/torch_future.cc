#include "bridge/torch/torch_future.h"

#include <tuple>
#include <utility>

#include "bridge/torch/python_frames.h"
#include "collectives/work/work_state.h"

namespace rankloom::bridge {

using namespace internal;

struct FutureGate::State final : WorkState {
  State(Scheduler* scheduler, int rank) : WorkState(scheduler, rank, /*by_any_thread=*/true) {}
  const char* op() const override { return "future"; }
};

FutureGate::FutureGate(std::shared_ptr<Job> job, int rank)
    : job_(std::move(job)), rank_(rank), state_(std::make_shared<State>(&job_->world().scheduler(), rank)) {}

void FutureGate::open() {
  const GilRelease no_gil;
  state_->complete(absl::OkStatus());
}

void FutureGate::look() const { std::ignore = state_->is_completed(); }

void FutureGate::wait() {
  const GilRelease no_gil;
  const CodeSite code = python_site();
  try {
    WorkState::handle(state_).wait(code);
  } catch (...) {
    rethrow_to_torch(job_.get(), rank_, code);
  }
  job_->after_point(rank_);
}

bool& futures_come_later() {
  thread_local bool later = false;
  return later;
}

bool& calls_come_at_once() {
  thread_local bool at_once = false;
  return at_once;
}

bool& futures_are_awaited() {
  thread_local bool awaited = false;
  return awaited;
}

}  // namespace rankloom::bridge
