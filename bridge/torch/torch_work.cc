#include "bridge/torch/torch_work.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <atomic>

#include "bridge/torch/python_frames.h"
#include "collectives/work/work_state.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

// Each list as one tensor, if its tensors are of one shape.
std::vector<at::Tensor> stacked(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& lists) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::vector<at::Tensor> all;
  size_t from = 0;
  for (const size_t size : lists) {
    const at::TensorList list(tensors.data() + from, size);
    const bool alike = std::all_of(list.begin(), list.end(), [&](const at::Tensor& tensor) {
      return tensor.sizes() == list[0].sizes() && tensor.scalar_type() == list[0].scalar_type();
    });
    if (alike && size > 0) {
      all.push_back(at::stack(list));
    } else {
      all.insert(all.end(), list.begin(), list.end());
    }
    from += size;
  }
  return all;
}

}  // namespace

TorchWork::~TorchWork() {
  if (record_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(record_->mu());
  works_.clear();
}

bool TorchWork::done() const {
  return std::all_of(works_.begin(), works_.end(), [](const rankloom::Work& work) {
    return WorkState::of(work) == nullptr || WorkState::of(work)->is_completed();
  });
}

bool TorchWork::isCompleted() {
  if (!done()) {
    // Polling is a step like any other: under the baton the others must get their turn.
    const GilRelease no_gil;
    if (job_ != nullptr && job_->deterministic()) {
      const CallScope call(&job_->world().scheduler(), rank_);
      job_->world().scheduler().poll(Site{.what = "is_completed", .code = python_site()});
      job_->after_point(rank_);
    }
  }
  if (!done()) return false;
  if (held_ != nullptr && isSuccess()) held_->copy_back();
  return true;
}

bool TorchWork::isSuccess() const {
  if (!done()) return false;
  const GilRelease no_gil;
  return std::all_of(works_.begin(), works_.end(), [](const rankloom::Work& work) {
    return WorkState::of(work) == nullptr || WorkState::of(work)->status().ok();
  });
}

std::exception_ptr TorchWork::exception() const {
  const GilRelease no_gil;
  for (const rankloom::Work& work : works_) {
    if (const std::exception_ptr error = work.exception(); error != nullptr) {
      try {
        std::rethrow_exception(error);
      } catch (const DistError& known) {
        return to_torch(known, job_.get());
      }
    }
  }
  return nullptr;
}

int TorchWork::sourceRank() const { return works_.empty() ? -1 : works_.front().source(); }

std::vector<at::Tensor> TorchWork::result() {
  wait(kNoTimeout);
  return results_;
}

void TorchWork::await(std::chrono::milliseconds timeout) {
  const CodeSite code = python_site();
  for (rankloom::Work& work : works_) {
    if (timeout == kNoTimeout) {
      work.wait(code);
    } else {
      work.wait(absl::FromChrono(timeout), code);
    }
  }
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  if (works_.empty()) return true;
  if (record_ != nullptr) {  // in virtual time
    const CodeSite code = python_site();
    const std::lock_guard<std::mutex> lock(record_->mu());
    for (rankloom::Work& work : works_) work.wait(code);
    return true;
  }
  const GilRelease no_gil;
  try {
    await(timeout);
  } catch (...) {
    rethrow_to_torch(job_.get(), rank_, python_site());
  }
  if (job_ != nullptr) job_->after_point(rank_);
  held_->copy_back();
  return true;
}

void TorchWork::abort() {
  if (job_ == nullptr) return;
  const GilRelease no_gil;
  job_->world().abort("Work.abort() was called", python_site());
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() { return future(false); }
c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() { return future(true); }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::future(bool of_result) {
  const GilRelease no_gil;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(future_mu_);
    c10::intrusive_ptr<c10::ivalue::Future>& slot = futures_[of_result ? 1 : 0];
    if (slot != nullptr) return slot;
    c10::TypePtr type = of_result ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::ListType::ofTensors());
    slot = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    future = slot;
  }
  // A future waits on a condition variable of torch's, which the scheduler cannot see. Under the baton nobody else
  // would ever run, so the wait happens here, where it is one of ours.
  if (job_ != nullptr && job_->deterministic()) {
    try {
      await(kNoTimeout);
    } catch (const DistError&) {
      // The future gets it.
    }
    job_->after_point(rank_);
  }
  struct Pending {
    std::atomic<size_t> left;
    std::mutex mu;
    absl::Status first;
  };
  auto pending = std::make_shared<Pending>();
  pending->left = works_.size() + 1;
  const auto one_done = [pending, future, of_result, job = job_, held = held_, results = results_, lists = lists_,
                         rank = rank_](const absl::Status& status) {
    if (!status.ok()) {
      const std::lock_guard<std::mutex> lock(pending->mu);
      if (pending->first.ok()) pending->first = status;
    }
    if (pending->left.fetch_sub(1) != 1) return;
    if (pending->first.ok()) {
      if (held != nullptr) held->copy_back();
      if (of_result) {
        future->markCompleted(static_cast<int64_t>(c10d::WorkResult::SUCCESS));
      } else {
        future->markCompleted(lists.empty() ? results : stacked(results, lists));
      }
    } else if (of_result) {
      const bool timeout = error_kind(pending->first) == ErrorKind::kTimeout;
      future->markCompleted(static_cast<int64_t>(timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR));
    } else {
      future->setError(to_torch(DistError(pending->first, {.rank = rank, .group = {}, .op = {}}), job.get()));
    }
  };
  for (rankloom::Work& work : works_) {
    // No scheduling point: the caller holds Python's lock.
    WorkState::of(work) != nullptr ? WorkState::of(work)->then(one_done, /*learns=*/true) : one_done(absl::OkStatus());
  }
  one_done(absl::OkStatus());
  return future;
}

uint64_t TorchWork::getSequencenumber() const {
  if (works_.empty() || WorkState::of(works_.back()) == nullptr) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(WorkState::of(works_.back())->seq(), 0));
}

}  // namespace rankloom::bridge
