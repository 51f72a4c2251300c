// The one place that catches what a rank throws.

#include <unistd.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/poison_hint.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// The text of an error, behind "rank 2 failed: ", without saying that again.
std::string failure_text(const DistError& error, int rank) {
  std::string text = error.what();
  if (error.kind() != ErrorKind::kRankFailed) return text;
  for (const std::string& said :
       {absl::StrCat(sv(error_kind_name(error.kind())), ": "), absl::StrCat("rank ", rank, ", ")}) {
    if (text.starts_with(said)) text.erase(0, said.size());
  }
  return text;
}

// The exception of a rank, as a line. `relayed`: an error that only passes on why the world was aborted.
std::string exception_text(int rank, const std::exception_ptr& exception, const absl::Status& cause, bool* relayed) {
  *relayed = false;
  try {
    std::rethrow_exception(exception);
  } catch (const DistError& error) {
    *relayed = !cause.ok() && (error.status() == cause || error.kind() == ErrorKind::kRankFailed ||
                               error.kind() == ErrorKind::kAborted);
    return *relayed ? error.what() : failure_text(error, rank);
  } catch (const std::exception& error) {
    return absl::StrCat(error.what(), exception_type_text(error));
  } catch (const RankCrashed&) {  // the world knows already, unless it was aborted meanwhile
    *relayed = true;
    return "crashed by the fault plan, after the world was aborted";
  } catch (...) {
    return odd_exception_text();
  }
}

// Whether its text, `text`, does not say where it comes from. A failed assertion has its line beside it.
bool needs_place(const std::exception_ptr& exception, std::string_view text) {
  try {
    std::rethrow_exception(exception);
  } catch (const DistError& error) {
    return error.kind() != ErrorKind::kRankFailed && !names_place(text);
  } catch (const std::exception& error) {
    return !exception_type_text(error).empty();
  } catch (...) {
    return true;
  }
}

// The rank that is to blame for a DistError, if that is known.
std::optional<Blame> blame_for(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const DistError& error) {
    return blame_of(error.status());
  } catch (...) {
    return std::nullopt;
  }
}

// Of an exception that is the program's own; else empty.
std::string own_exception_text(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const DistError&) {
    return "";
  } catch (const std::exception& error) {
    return absl::StrCat(error.what(), exception_type_text(error));
  } catch (const RankCrashed&) {
    return "";
  } catch (...) {
    return odd_exception_text();
  }
}

// In a process that the task has forked.
void end_if_forked(const Scheduler& run) {
  if (is_forked_copy(&run)) [[unlikely]]
    end_forked_copy();
}

}  // namespace

void WorldState::run_rank(int rank, Task& task, absl::FunctionRef<void(RankContext&)> program) {
  RankState& context = *contexts_[static_cast<size_t>(rank)];
  task.user = &context;
  try {
    {
      const ProgramScope own;
      program(context);
    }
    end_if_forked(*scheduler_);
    context.task_returned();
    rank_returned(rank);
  } catch (...) {
    end_if_forked(*scheduler_);
    rank_failed(rank, handled_exception());
  }
}

void WorldState::run_helper(int rank, absl::FunctionRef<void()> body) {
  try {
    {
      const ProgramScope own;
      body();
    }
    end_if_forked(*scheduler_);
    context(rank).task_returned();
  } catch (...) {
    end_if_forked(*scheduler_);
    callback_failed(rank, handled_exception());
  }
}

void WorldState::callback_failed(int rank, const std::exception_ptr& failure) {
  if (!scheduler_->aborted() && !scheduler_->closed()) return rank_failed(rank, failure);
  // An error of a call says no more than that the run was aborted, or has ended.
  if (std::string text = own_exception_text(failure); !text.empty())
    note(NoteKind::kHook, absl::StrCat("a helper or callback of rank ", rank, " threw: ", text));
}

void WorldState::run_hook(const char* what, absl::FunctionRef<void()> hook) noexcept {
  const pid_t process = getpid();  // hooks may run on threads of no task, whose forks nobody watches
  try {
    hook();
    if (getpid() != process) end_forked_copy();
  } catch (...) {
    if (getpid() != process) end_forked_copy();
    bool relayed = false;
    note(NoteKind::kHook,
         absl::StrCat(what, " threw: ", exception_text(/*rank=*/-1, handled_exception(), absl::OkStatus(), &relayed)));
  }
}

std::string WorldState::poison_hint_for(int rank, const std::exception_ptr& failure, std::string_view text) {
  if (!poison_ || has_poison_hint(text)) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const DistError&) {
    return "";
  } catch (const std::exception& error) {
    if (is_test_assertion(error)) return "";  // has been told where it failed
  } catch (...) {                             // may be about a value, as any other
  }
  RankState& context = *contexts_[static_cast<size_t>(rank)];
  const std::string open = RankState::current() == &context ? context.open_at_throw_text() : "";
  if (!open.empty()) return open_outputs_hint({{absl::StrCat("rank ", rank), open}});
  return poison_hint(text.substr(0, text.find('\n')));
}

void WorldState::rank_failed(int rank, std::exception_ptr failure) {
  if (scheduler_->closed()) return;  // a callback that was told of the world's end: the report is made
  const absl::Status cause = scheduler_->abort_cause();
  bool relayed = false;
  std::string text = exception_text(rank, failure, cause, &relayed);
  // A rank that fails for what another one did was stopped for it: that one failed.
  int failed = rank;
  if (const std::optional<Blame> blame = blame_for(failure); blame.has_value()) {
    if (blame->rank != rank) rank_stopped(rank, std::move(text), std::move(failure));
    if (blame->rank != rank && blame->unwinds) {  // its own exception is the failure, unless the rank catches that
      if (cause.ok()) scheduler_->abort(blame->status);
      return;
    }
    failed = blame->rank;
    failure = std::make_exception_ptr(DistError(blame->status, {.rank = failed, .group = {}, .op = {}}));
    text = exception_text(failed, failure, absl::OkStatus(), &relayed);
    relayed = false;
  } else if (!relayed && needs_place(failure, text)) {
    if (const std::vector<std::string> last = context(rank).recorder().last_calls(1); !last.empty())
      absl::StrAppend(&text, ", after ", last[0]);
  }
  if (!relayed) text += poison_hint_for(failed, failure, text);
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // the rank's own outcome, for the report; the abort below ends the explored run
    RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(failed)];
    // A rank's first failure stays: it may be told early (by a helper, by a harness) and still unwind or return later.
    if (outcome.state == RunReport::Outcome::State::kFailed) return;
    outcome.state = relayed ? RunReport::Outcome::State::kStopped : RunReport::Outcome::State::kFailed;
    outcome.text = text;
    outcome.exception = std::move(failure);
    if (!relayed && first_failed_ < 0) first_failed_ = failed;
  }
  if (cause.ok()) scheduler_->abort(make_error(ErrorKind::kRankFailed, "rank ", failed, " failed: ", text));
}

void WorldState::rank_stopped(int rank, std::string text, std::exception_ptr failure) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // as in rank_failed(), which follows
  RunReport::Outcome& outcome = outcomes_[static_cast<size_t>(rank)];
  if (outcome.state == RunReport::Outcome::State::kFailed) return;
  outcome = {.state = RunReport::Outcome::State::kStopped, .text = std::move(text), .exception = std::move(failure)};
}

}  // namespace rankloom::internal
