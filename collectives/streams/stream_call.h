#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/streams/held_by_stream.h"
#include "collectives/streams/wanted_stream.h"
#include "collectives/work/issue_gate.h"
#include "collectives/work/stream_work.h"
#include "rankloom/process_group.h"
#include "rankloom/work.h"
#include "world/world_state.h"

namespace rankloom::internal {

// The rank's side of a call on a stream. A handle keeps the stream, until the call is done.
class CallOnStream final : public StreamWork {
 public:
  // `call`: gives the outputs, and their owner, which is kept as long as a handle is. `hold`: the program's, of
  // `stream`; kept until the call is done or no handle is left.
  CallOnStream(RankState& rank, std::string group, const CollectiveCall& call, std::shared_ptr<const void> hold,
               std::shared_ptr<WantedStream> stream);
  // The call, as its stream holds it. Before others see this.
  void held_as(std::weak_ptr<HeldByStream> held) { held_ = std::move(held); }

  const std::shared_ptr<WantedStream>& stream() const { return stream_; }
  // Entries of streams wait for the call: then the program's handles may go, also while an exception unwinds.
  void stream_waits() { waits_.fetch_add(1); }
  void stream_waits_no_more() noexcept;

  // One with a timeout of its own withdraws the call, as every wait for a call does.
  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  void dropped() noexcept override;
  bool acts_when_dropped() const override { return true; }
  // The call is done.
  void end(const absl::Status& status);

 protected:
  void release_owners() noexcept override;

 private:
  void let_stream_go();
  void give_up_if_unwinding() noexcept;

  RankState& rank_;
  std::weak_ptr<HeldByStream> held_;
  std::atomic<int> waits_{0};
  std::atomic<bool> dropped_{false};
  std::atomic<bool> holds_{true};
  std::shared_ptr<const void> hold_;  // belongs to the thread that clears holds_
  const std::shared_ptr<WantedStream> stream_;
  std::shared_ptr<const void> owner_;  // CallOptions::keep_alive; belongs to whoever drops the last handle
};

// A call that a stream issues when its turn comes, and then waits for.
// Thread-safety: all methods; run() by one task.
class StreamCall final : public HeldByStream {
 public:
  // `name`: "stream comm". `hold`, `stream`: as of CallOnStream. `fail`: tells the stream that the call has failed,
  // before anybody can see that; null: something else does.
  using Fail = std::function<void(const absl::Status&)>;
  static std::shared_ptr<StreamCall> make(RankState& rank, ProcessGroup& group, CollectiveCall&& call, std::string name,
                                          std::shared_ptr<const void> hold, std::shared_ptr<WantedStream> stream,
                                          Fail fail);

  const std::shared_ptr<CallOnStream>& outer() const { return outer_; }
  // Issues the call and waits for it; in a world that was aborted for `cause`, ends it. How it ended.
  absl::Status run(const absl::Status& cause);
  // As a work that is dropped: the call is taken back, and its group fails. Does nothing for a call that is done, or
  // that owns its tensors.
  void give_up() noexcept override;
  absl::Status time_out(absl::Duration timeout, CodeSite code) override;

 private:
  StreamCall(RankState& rank, ProcessGroup& group, CollectiveCall&& call, std::string stream, Fail fail);
  void end(const absl::Status& status) {
    if (!status.ok() && fail_) fail_(status);
    outer_->end(status);
  }
  // Closes the gate for a thread that gives the call up or withdraws it.
  IssueGate::Closed close_gate() {
    return gate_.close(/*waits=*/!rank_.world().scheduler().options().schedule.deterministic());
  }
  // The call was not issued. If it has a number of the group's, nobody goes on without it.
  void fail_group_if_numbered(const absl::Status& why);
  // The group's calls cannot go on without this one, which was not issued or is known to nobody.
  void miss();

  RankState& rank_;
  const WorldRef world_;
  ProcessGroup* const group_;
  const std::shared_ptr<ProcessGroup> held_;
  const std::string stream_;
  const Fail fail_;
  const bool keeps_alive_;
  CollectiveCall call_;
  const std::string text_;  // "all_reduce seq 1 [train.cc:12]"
  std::shared_ptr<CallOnStream> outer_;
  IssueGate gate_;
  Work inner_;  // belongs to the thread that closes the gate
};

}  // namespace rankloom::internal
