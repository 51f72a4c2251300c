#include "bridge/torch/torch_work.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bridge/torch/device_streams.h"
#include "bridge/torch/python_frames.h"
#include "bridge/torch/torch_future.h"
#include "collectives/work/work_state.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
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

// Those that a future of the tensors orders the streams of who waits for it behind. None where torch has no CUDA:
// FakeTensors may say that they are on a device all the same.
std::vector<c10::Device> devices_of(at::ArrayRef<at::Tensor> tensors) {
  std::vector<c10::Device> devices;
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.is_cuda()) devices.push_back(tensor.device());
  }
  return devices;
}

}  // namespace

TorchWork::~TorchWork() {
  if (record_ != nullptr) {
    const std::lock_guard<std::mutex> lock(record_->mu());
    works_.clear();
    return;
  }
  let_go(job_.get(), std::move(works_));
}

void let_go(Job* job, std::vector<rankloom::Work> works) noexcept {
  if (job == nullptr || works.empty() || !job->deterministic()) return;
  const GilRelease no_gil;
  works.clear();
  int rank = -1;  // Python's collector may let go of works on another rank
  if (const std::shared_ptr<Job> here = Job::acting(&rank); here != nullptr) here->after_point(rank);
}

bool TorchWork::done() const {
  return std::all_of(works_.begin(), works_.end(), [](const rankloom::Work& work) {
    return WorkState::of(work) == nullptr || WorkState::of(work)->is_completed();
  });
}

bool TorchWork::isCompleted() {
  if (!done() || !futures_over()) {
    // Polling is a step like any other: under the baton the others must get their turn.
    const GilRelease no_gil;
    if (job_ != nullptr && job_->deterministic()) {
      const CallScope call(&job_->world().scheduler(), rank_);
      job_->world().scheduler().poll(Site{.what = "is_completed", .code = python_site()});
      job_->after_point(rank_);
    }
  }
  if (!done() || !futures_over()) return false;
  if (ended_well()) {
    if (job_ != nullptr) job_->note_went_well(rank_);
    if (held_ != nullptr) held_->copy_back();
  }
  for (const rankloom::Work& work : works_) {
    const WorkState* const state = WorkState::of(work);
    if (state == nullptr || state->ended_well()) continue;
    const GilRelease no_gil;
    state->learned_of_failure();  // a rank that sees the failure sees all calls of its group ended
  }
  return true;
}

bool TorchWork::ended_well() const {
  const GilRelease no_gil;
  return std::all_of(works_.begin(), works_.end(), [](const rankloom::Work& work) {
    return WorkState::of(work) == nullptr || WorkState::of(work)->status().ok();
  });
}

bool TorchWork::isSuccess() const {
  if (!done()) return false;
  const GilRelease no_gil;
  bool success = true;
  for (const rankloom::Work& work : works_) success = work.is_success() && success;
  return success;
}

std::exception_ptr TorchWork::exception() const {
  const GilRelease no_gil;
  for (const rankloom::Work& work : works_) {
    const std::exception_ptr error = work.exception();
    if (job_ != nullptr) job_->after_point(rank_);
    if (error != nullptr) {
      try {
        std::rethrow_exception(error);
      } catch (const DistError& known) {
        return to_torch(known, job_.get());
      }
    }
  }
  return nullptr;
}

// PyTorch calls this with the GIL, which no scheduling point may keep.
int TorchWork::sourceRank() const { return works_.empty() || !done() ? -1 : works_.front().source(); }

std::vector<at::Tensor> TorchWork::result() {
  wait(kNoTimeout);
  return {results_.begin(), results_.end()};
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

namespace {

// "all_reduce seq 1", "send to rank 1, tag 3".
std::string call_text(const WorkState& state, c10d::OpType type) {
  const Site site = state.site({});
  std::vector<int> peers;
  if (site.waits_for != nullptr) site.waits_for->append_ranks(&peers);
  const bool sends = type == c10d::OpType::SEND;
  if ((!sends && type != c10d::OpType::RECV) || peers.size() != 1)
    return absl::StrCat(state.op(), " seq ", state.seq());
  return absl::StrCat(state.op(), sends ? " to rank " : " from rank ", peers[0], site.detail.empty() ? "" : ", ",
                      sv(site.detail));
}

}  // namespace

void TorchWork::check_unwritten() const {
  if (job_ == nullptr || done()) return;
  const std::optional<HeldTensors::EarlyWrite> found = held_->written_early();
  if (!found.has_value()) return;
  const WorkState& state = *WorkState::of(works_.front());
  const std::string call = works_.size() == 1 ? call_text(state, retrieveOpType())
                                              : absl::StrCat("one of ", works_.size(), " calls that are waited for");
  const absl::Status error =
      invalid_argument("rank ", rank_, ", group ", sv(state.group()), ", ", call,
                       found->to_input ? ": an input was changed" : ": an output was written", " between the call",
                       site_place(Site{.code = found->code}), " and its completion, when rank ", rank_, " was at wait",
                       site_place(Site{.code = python_site()}),
                       found->to_input ? ", want it unchanged until wait()" : ", want it left alone until wait()");
  throw DistError(blamed_on(rank_, error), {.rank = rank_, .group = std::string(state.group()), .op = state.op()});
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  if (works_.empty()) return true;
  if (record_ != nullptr) {  // in virtual time
    const CodeSite code = python_site();
    const std::lock_guard<std::mutex> lock(record_->mu());
    for (rankloom::Work& work : works_) work.wait(code);
    return true;
  }
  await_on(held_->device(), timeout);
  return true;
}

void TorchWork::await_on(std::optional<at::Device> device, std::chrono::milliseconds timeout) {
  const GilRelease no_gil;
  try {
    check_unwritten();
    if (timeout != kNoTimeout || !block_stream(device)) await(timeout);
  } catch (...) {
    rethrow_to_torch(job_.get(), rank_, python_site());
  }
  if (job_ != nullptr) job_->after_call(rank_);
  held_->copy_back();
  await_futures();
}

bool TorchWork::block_stream(std::optional<at::Device> device) {
  if (job_ == nullptr || !device.has_value() || done()) return false;
  const std::shared_ptr<TorchStream> stream = job_->device_streams().to_block(rank_, *device);
  if (stream == nullptr) return false;
  const CodeSite code = python_site();
  // Torch's streams have no status: an earlier failure is raised once, before the stream waits for this work.
  const auto raise = [&] {
    if (const absl::Status status = stream->take_status(); !status.ok())
      throw DistError(status, {.rank = rank_, .group = {}, .op = "wait"});
  };
  raise();
  for (const rankloom::Work& work : works_) stream->wait_for(work, absl::InfiniteDuration(), code);
  raise();
  return true;
}

void TorchWork::blockCurrentStream() {
  if (works_.empty()) return;
  std::optional<at::Device> device = held_ != nullptr ? held_->device() : std::nullopt;
  if (!device.has_value() && held_ != nullptr && !held_->copies_on_host()) device = current_device();
  if (record_ != nullptr || !device.has_value()) {
    wait(kNoTimeout);
  } else {
    await_on(device, kNoTimeout);
  }
}

void TorchWork::abort() {
  if (job_ == nullptr) return;
  const GilRelease no_gil;
  job_->world().abort("Work.abort() was called", python_site());
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() { return future(false); }
c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() { return future(true); }

// A future on its way, completed by the works' callbacks. Where it is given out before that: it is complete after
// `begun` is open, and all that is chained to it has run, which may wait, before `ended` is.
struct TorchWork::Pending {
  const c10::intrusive_ptr<c10::ivalue::Future> future;
  const bool of_result;
  const std::shared_ptr<Job> job;
  const int rank;
  const std::shared_ptr<HeldTensors> held;
  const std::vector<at::Tensor> results;
  const std::vector<size_t> lists;
  std::unique_ptr<FutureGate> begun, ended;
  bool ordered = false;             // one of its group's, which complete one after the other
  std::shared_ptr<Pending> before;  // completed first, with all that is chained to it
  std::atomic<size_t> left;
  std::atomic<bool> over = false;
  std::mutex mu = {};
  absl::Status first = {};

  void one_done(const absl::Status& status);
  void complete() const;
};

namespace {
thread_local int completing = 0;                      // futures of which this thread runs what is chained to them
thread_local FutureGate* completing_ended = nullptr;  // of the last of these
}  // namespace

void TorchWork::Pending::one_done(const absl::Status& status) {
  if (!status.ok()) {
    const std::lock_guard<std::mutex> lock(mu);
    if (first.ok()) first = status;
  }
  if (left.fetch_sub(1) != 1) return;
  if (ended == nullptr) return complete();
  job->after_point(rank);
  if (before != nullptr) {
    try {
      before->ended->wait();
    } catch (...) {
      // The run ends, and with it the order.
    }
    before = nullptr;
  }
  begun->open();
  {
    ++completing;
    const absl::Cleanup completed = [outer = std::exchange(completing_ended, ended.get())] {
      --completing;
      completing_ended = outer;
    };
    complete();
  }
  over = true;
  ended->open();
}

namespace {

using LastPending = std::map<std::tuple<int64_t, int, std::string>, std::weak_ptr<void>>;
std::mutex last_mu;
LastPending& last_pending() {  // by job, rank and group
  static auto* const value = new LastPending;
  return *value;
}

}  // namespace

// The collectives' futures of a group complete in the order of their calls, as NCCL's do: what is chained to them may
// call the group again, in the same order on all ranks.
std::weak_ptr<void>* TorchWork::last_of_group() const {
  const c10d::OpType op = retrieveOpType();
  if (op == c10d::OpType::SEND || op == c10d::OpType::RECV || op == c10d::OpType::RECVANYSOURCE) return nullptr;
  if (works_.empty() || WorkState::of(works_.front()) == nullptr) return nullptr;
  LastPending& last = last_pending();
  if (last.size() >= 64) std::erase_if(last, [](const auto& entry) { return entry.second.expired(); });
  return &last[{job_->id(), rank_, std::string(WorkState::of(works_.front())->group())}];
}

// False: it is complete at once. Calls of what is chained to a future are within that one's place in the order.
bool TorchWork::joins_order(const std::shared_ptr<Pending>& pending) {
  if (completing > 0) return !done();
  const std::lock_guard<std::mutex> lock(last_mu);
  std::weak_ptr<void>* const last = last_of_group();
  if (last != nullptr) {
    pending->before = std::static_pointer_cast<Pending>(last->lock());
    if (pending->before != nullptr && pending->before->over) {
      pending->before->ended->look();
      pending->before = nullptr;
    }
  }
  if (done() && pending->before == nullptr) return false;
  pending->ordered = last != nullptr;
  if (last != nullptr) *last = pending;
  return true;
}

std::vector<std::shared_ptr<TorchWork::Pending>> TorchWork::given_out() const {
  const std::lock_guard<std::mutex> lock(future_mu_);
  return pending_;
}

// With real groups a call is done once its futures are, and all that had been chained to them has run.
bool TorchWork::futures_over() const {
  if (completing > 0) return true;
  const std::vector<std::shared_ptr<Pending>> all = given_out();
  return std::all_of(all.begin(), all.end(), [](const auto& one) {
    one->ended->look();
    return one->over.load();
  });
}

void TorchWork::await_futures() {
  if (completing > 0) return;
  for (const std::shared_ptr<Pending>& one : given_out()) {
    if (!one->over) one->ended->wait();
  }
}

void TorchWork::Pending::complete() const {
  if (first.ok()) {
    try {
      if (held != nullptr) held->copy_back();
    } catch (...) {  // torch's, of an output that cannot be written
      future->setError(std::current_exception());
      return;
    }
    if (of_result) {
      future->markCompleted(static_cast<int64_t>(c10d::WorkResult::SUCCESS));
    } else {
      future->markCompleted(lists.empty() ? results : stacked(results, lists));
    }
  } else if (of_result) {
    const bool timeout = error_kind(first) == ErrorKind::kTimeout;
    future->markCompleted(static_cast<int64_t>(timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR));
  } else {
    future->setError(to_torch(DistError(first, {.rank = rank, .group = {}, .op = {}}), job.get()));
  }
}

void TorchWork::let_pass() const {
  if (completing_ended == nullptr) return;
  const GilRelease no_gil;
  for (const std::shared_ptr<Pending>& one : given_out()) {
    if (one->ordered && !one->over && one->ended.get() != completing_ended) completing_ended->open();
  }
}

void TorchWork::settle() {
  const GilRelease no_gil;
  try {
    await(kNoTimeout);
    if (job_ != nullptr) job_->note_went_well(rank_);
  } catch (const DistError&) {
    // The future gets it.
  } catch (...) {
    rethrow_to_torch(job_.get(), rank_, python_site());
  }
  if (job_ != nullptr) job_->after_point(rank_);
}

void TorchWork::look_at_futures() const {
  const GilRelease no_gil;
  const std::lock_guard<std::mutex> lock(future_mu_);
  std::ignore = done();
  for (const std::shared_ptr<Pending>& pending : pending_) {
    pending->begun->look();
    pending->ended->look();
  }
}

// A future waits on a condition variable of torch's, which the scheduler cannot see. Under the baton nobody else would
// ever run, and among free threads a call's timeout and a deadlock would end nobody. So its owner waits by a gate:
// Python's wait() does, and, among free threads and where calls complete late, a backward pass at its end, where DDP's
// reducer waits; for all others the calls are awaited here.
void TorchWork::come_later_or_settle(const std::shared_ptr<Pending>& pending) {
  if (job_ == nullptr) return;
  const WorldOptions& options = job_->world().scheduler().options();
  const bool free = !job_->deterministic();
  const bool late = free || options.late_completion.value_or(options.schedule.explores());
  const bool backward = torch::autograd::get_current_graph_task_id() >= 0;
  // Not in hooks in Python: their callbacks may call the group, between calls of the backward pass that goes on. Among
  // free threads these go on by themselves, and Python waits by its own.
  const bool in_backward = backward && late && !futures_come_later() && !futures_are_awaited();
  const bool later = in_backward || (futures_come_later() && (free || !backward));
  if (!later || (!free && done())) settle();
  pending->begun = std::make_unique<FutureGate>(job_, rank_);
  pending->ended = std::make_unique<FutureGate>(job_, rank_);
  if (!joins_order(pending)) {
    pending->begun.reset();
    pending->ended.reset();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(future_mu_);
    pending_.push_back(pending);
  }
  if (in_backward) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = c10::intrusive_ptr<TorchWork>::reclaim_copy(this), pending] {
          self->settle();
          pending->ended->wait();
        });
  }
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::future(bool of_result) {
  const GilRelease no_gil;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(future_mu_);
    c10::intrusive_ptr<c10::ivalue::Future>& slot = futures_[of_result ? 1 : 0];
    if (slot != nullptr) return slot;
    c10::TypePtr type = of_result ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::ListType::ofTensors());
    slot = c10::make_intrusive<c10::ivalue::Future>(std::move(type), devices_of(results_));
    future = slot;
  }
  const std::shared_ptr<Pending> pending(new Pending{.future = future,
                                                     .of_result = of_result,
                                                     .job = job_,
                                                     .rank = rank_,
                                                     .held = held_,
                                                     .results = {results_.begin(), results_.end()},
                                                     .lists = lists_,
                                                     .begun = nullptr,
                                                     .ended = nullptr,
                                                     .before = nullptr,
                                                     .left = works_.size() + 1});
  come_later_or_settle(pending);
  for (rankloom::Work& work : works_) {
    const auto one_done = [pending](const absl::Status& status) { pending->one_done(status); };
    // No scheduling point: the caller holds Python's lock.
    WorkState::of(work) != nullptr ? WorkState::of(work)->then(one_done, /*learns=*/true) : one_done(absl::OkStatus());
  }
  pending->one_done(absl::OkStatus());
  return future;
}

uint64_t TorchWork::getSequencenumber() const {
  if (works_.empty() || WorkState::of(works_.back()) == nullptr) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(WorkState::of(works_.back())->seq(), 0));
}

}  // namespace rankloom::bridge
