#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/tensor.h"

namespace rankloom {

class Future;
class Stream;

namespace internal {
class Scheduler;
class WorkState;
}  // namespace internal

// A handle on a call that may not be done yet. Cheap to copy; the last copy that goes while the call is unfinished (a
// scheduling point) withdraws it: the group fails for all its members, and the report names the rank. Not so where the
// call holds the owners of its tensors (CallOptions::keep_alive).
//   Work work = pg->all_reduce(gradients);
//   compute();
//   work.wait();
// A handle may outlive its world: a work that is done then stays so, all others have failed with Aborted, "the world
// has ended".
// Errors: wait() throws the call's DistError.
// Thread-safety: as a shared_ptr: copies may be used by several threads, one handle by one.
class [[nodiscard]] Work {
 public:
  // Done, without a result.
  Work() = default;
  Work(const Work& other) : state_(other.state_) {
    if (state_ != nullptr) acquire();
  }
  Work(Work&& other) noexcept : state_(std::move(other.state_)) {}
  Work& operator=(Work other) noexcept {
    state_.swap(other.state_);
    return *this;
  }
  ~Work() {
    if (state_ != nullptr) release();
  }

  // Blocks until done. The first form waits as long as the call's or group's timeout says; of a call that
  // CallOptions::stream put on a stream it returns at once, as what is queued there later is behind the call.
  void wait(CodeSite code = CodeSite::here());
  // Timeout when `timeout` (virtual time in deterministic runs) passes first; the call is withdrawn then.
  void wait(absl::Duration timeout, CodeSite code = CodeSite::here());

  // While it is false, a scheduling point: other ranks may go on, and the work may be done meanwhile. Throws the cause
  // of an abort. A timeout of the call counts in a wait() only: a loop that asks for what nobody completes ends when
  // WorldOptions::stuck_after has passed (under a schedule), or never (in the free gear).
  bool is_completed(CodeSite code = CodeSite::here()) const;
  // Done, and without error.
  bool is_success(CodeSite code = CodeSite::here()) const;
  // The DistError that wait() would throw, null if there is none (yet).
  std::exception_ptr exception(CodeSite code = CodeSite::here()) const;
  // The tensors that the call writes. Waits as wait() does, which of a call on a stream returns at once.
  std::vector<TensorView> result(CodeSite code = CodeSite::here());
  // Of a recv or recv_any, but in a block on a stream: the rank in the group that sent, once it is done. Else -1.
  int source(CodeSite code = CodeSite::here()) const;
  Future get_future();
  // `callback` runs once the work is done, with its status: now on the caller if it is done already, else as the rank
  // that owns the work, on a helper of it, so it may wait. That may be after the rank's program has returned or failed,
  // and before the run ends: what it captures by reference must live as long, or the rank waits for the work. A call
  // that only the end of the run ends has its callbacks then, on the thread that made the world: RankContext::current()
  // is null there. A Promise's has them when it is set, as it is then, or before that when the world has ended and
  // somebody asks the work, with Aborted; one that nobody keeps never has them.
  void then(internal::Callback<void(const absl::Status&)> callback, CodeSite code = CodeSite::here());
  // Work that is put on `stream` later starts only when this is done; the caller goes on. This handle may go.
  // Errors: InvalidArgument for a negative timeout, at once. A timeout, an abort or the work's own failure releases the
  // stream and marks it failed.
  void block_current_stream(Stream& stream, absl::Duration timeout = absl::InfiniteDuration(),
                            CodeSite code = CodeSite::here());
  // As wait(): what remains to be done so that the tensors may be used.
  void synchronize(CodeSite code = CodeSite::here()) { wait(code); }

 private:
  friend class internal::WorkState;
  explicit Work(std::shared_ptr<internal::WorkState> state) : state_(std::move(state)) {
    if (state_ != nullptr) acquire();
  }
  void acquire() const;
  void release() noexcept;
  void check(const absl::Status& status) const;

  std::shared_ptr<internal::WorkState> state_;
};

// The result of a work, as a value that arrives later. A handle, and counts as one of the work.
class Future {
 public:
  explicit Future(Work work) : work_(std::move(work)) {}

  bool done(CodeSite code = CodeSite::here()) const { return work_.is_completed(code); }
  // As Work::result(); throws the work's DistError.
  std::vector<TensorView> value(CodeSite code = CodeSite::here());
  void then(internal::Callback<void(const absl::Status&)> callback, CodeSite code = CodeSite::here());
  // A work that is done when this is.
  Work work() const { return work_; }

 private:
  Work work_;
};

// Makes a work that its owner completes later, from any thread: what a user's own ProcessGroup returns.
//   Promise promise(&rank.world().scheduler(), rank.rank());
//   std::thread([&] { promise.set_value({output}); }).detach();
//   return promise.work();
// Threads outside of the world that will complete it hold a World::outside_waker(), or a stuck run counts as a
// deadlock.
// Thread-safety: all methods.
class Promise {
 public:
  // The answers of a user's own work, in place of the usual. An aggregate; fields that are unset change nothing.
  struct Hooks {
    // wait(): how the work ended, after it has blocked for it, `timeout` at most.
    std::function<absl::Status(absl::Duration timeout)> wait = {};
    // get_future(), of the handle `self`.
    std::function<Future(const Work& self)> get_future = {};
  };

  // `scheduler`: of the world that it belongs to; null: none. `rank`: the global rank that owns the work; -1: none.
  explicit Promise(internal::Scheduler* scheduler = nullptr, int rank = -1);
  Promise(internal::Scheduler* scheduler, int rank, Hooks hooks);
  // Copies end one work. Copied where others are moved, so that none is left without it.
  Promise(const Promise&) = default;
  Promise& operator=(const Promise&) = default;

  Work work() const;
  Future future() const;
  // The first call of the two ends the work; later ones do nothing. Scheduling points before that and behind it.
  void set_value(std::vector<TensorView> result = {});
  void set_error(const absl::Status& status);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Waits for all, in order; then throws the first error, if any.
void wait_all(std::span<Work> works, CodeSite code = CodeSite::here());
// The index of a work that is done: the first such in the list. Waits until there is one, whatever
// timeouts the works and their groups have. `works` is not empty.
size_t wait_any(std::span<Work> works, CodeSite code = CodeSite::here());

}  // namespace rankloom
