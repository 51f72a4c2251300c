#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

// How `body`, which runs for a stream, ended: its own status, or what it threw; `who` is at the head of the text then,
// and the line that put it on the stream at its end.
inline absl::Status caught(std::string_view who, CodeSite code, absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const DistError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return make_error(ErrorKind::kCollectiveError, sv(who), " threw: ", error.what(), exception_type_text(error),
                      site_place(Site{.code = code}));
  } catch (...) {
    return make_error(ErrorKind::kCollectiveError, sv(who), " threw: ", odd_exception_text(),
                      site_place(Site{.code = code}));
  }
}

// The work of a call on a stream, and of a mark in one. Its wait() without a timeout does not wait: what is queued
// later is behind it anyway.
class StreamWork : public WorkState {
 public:
  StreamWork(Scheduler* scheduler, int rank, const char* op, std::string group = {}, int64_t seq = -1,
             std::vector<TensorView> outputs = {})
      : WorkState(scheduler, rank), op_(op), group_(std::move(group)), seq_(seq), outputs_(std::move(outputs)) {}

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override {
    if (!timeout_is_default) return WorkState::wait(timeout, timeout_is_default, code);
    if (settled("wait", code)) [[unlikely]]
      return status();
    const CallScope call(world_ref(), [&] { return called("wait", code); });
    scheduler()->point(wait_site(code));
    return is_completed() ? status() : absl::OkStatus();
  }
  std::vector<TensorView> result() override { return outputs_; }
  const char* op() const override { return op_; }
  std::string_view group() const override { return group_; }
  int64_t seq() const override { return seq_; }

  // The work ends with `inner`, but for its being dropped: the flight record is the inner work's.
  void stands_for(const std::shared_ptr<WorkState>& inner) {
    owns_record(inner->own_record());
    inner_ = inner;
  }
  void await_group_failure() const override {
    if (const std::shared_ptr<WorkState> inner = inner_.lock(); inner != nullptr) inner->await_group_failure();
  }

 private:
  const char* const op_;
  const std::string group_;
  const int64_t seq_;
  const std::vector<TensorView> outputs_;
  std::weak_ptr<WorkState> inner_;  // const once others have the work
};

}  // namespace rankloom::internal
