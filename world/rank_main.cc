// The one place that catches what a rank throws.

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// What the rank threw, as a line. `relayed`: an error that only passes on why the world was aborted.
std::string exception_text(const std::exception_ptr& exception, const absl::Status& cause, bool* relayed) {
  *relayed = false;
  try {
    std::rethrow_exception(exception);
  } catch (const DistError& error) {
    *relayed = !cause.ok() && (error.status() == cause || error.kind() == ErrorKind::kRankFailed ||
                               error.kind() == ErrorKind::kAborted);
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  } catch (const RankCancelled&) {
    *relayed = true;
    return "cancelled: it went on after the world was aborted";
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

void WorldState::run_rank(int rank, Task& task, absl::FunctionRef<void(RankContext&)> program) {
  RankState& context = *contexts_[static_cast<size_t>(rank)];
  task.user = &context;
  try {
    program(context);
    context.task_returned();
    rank_returned(rank);
  } catch (...) {
    rank_failed(rank, std::current_exception());
  }
}

void WorldState::run_helper(int rank, absl::FunctionRef<void()> body) {
  try {
    body();
    context(rank).task_returned();
  } catch (...) {
    if (!scheduler_->aborted()) rank_failed(rank, std::current_exception());
  }
}

void WorldState::run_hook(const char* what, absl::FunctionRef<void()> hook) noexcept {
  try {
    hook();
  } catch (...) {
    bool relayed = false;
    note(absl::StrCat(what, " threw: ", exception_text(std::current_exception(), absl::OkStatus(), &relayed)));
  }
}

void WorldState::rank_failed(int rank, std::exception_ptr failure) {
  if (scheduler_->closed()) return;  // a callback that was told of the world's end: the report is made
  const absl::Status cause = scheduler_->abort_cause();
  bool relayed = false;
  std::string text = exception_text(failure, cause, &relayed);
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // the rank's own outcome, for the report; the abort below ends the explored run
    RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(rank)];
    // A rank's first failure stays: it may be told early (by a helper, by a harness) and still unwind or return later.
    if (outcome.state == RunReport::Outcome::State::kFailed) return;
    outcome.state = relayed ? RunReport::Outcome::State::kStopped : RunReport::Outcome::State::kFailed;
    outcome.text = text;
    outcome.exception = std::move(failure);
    if (!relayed && first_failed_ < 0) first_failed_ = rank;
  }
  if (cause.ok()) scheduler_->abort(make_error(ErrorKind::kRankFailed, "rank ", rank, " failed: ", text));
}

}  // namespace rankloom::internal
