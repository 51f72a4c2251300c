#pragma once

#include <array>
#include <memory>
#include <vector>

#include "collectives/threaded/mailbox.h"
#include "collectives/threaded/rendezvous.h"
#include "rankloom/process_group.h"

namespace rankloom::internal {

// The objects that the members of a threaded group share. Thread-safety: all methods.
class ThreadedGroupCore : public std::enable_shared_from_this<ThreadedGroupCore> {
 public:
  ThreadedGroupCore(WorldState* world, std::shared_ptr<const Group> group);

  const std::shared_ptr<const Group>& group() const { return group_; }
  const std::shared_ptr<Rendezvous>& rendezvous() const { return rendezvous_; }
  // Made by the first member that sends or receives: most groups never do.
  std::shared_ptr<Mailbox> mailbox();
  // Ends all calls on their way, and refuses later ones. Each failure of a call does.
  void fail(const absl::Status& cause) { rendezvous_->fail(cause); }
  // At the world's end, or when all members have left: notes what is on its way still, and ends it.
  void close(const absl::Status& cause);
  // Has the world tell of its end and of aborts; of one that is past, now. By whoever makes the core.
  void listen();
  // Member `rank` has destroyed a handle; the world forgets the core with the last one.
  void leave(int rank);

 private:
  WorldState& world_;
  const std::shared_ptr<const Group> group_;
  const std::shared_ptr<Rendezvous> rendezvous_;
  ObservedMutex mu_;
  std::shared_ptr<Mailbox> mailbox_ ABSL_GUARDED_BY(mu_);
  int left_ ABSL_GUARDED_BY(mu_) = 0;            // members that have destroyed their handle
  std::vector<bool> gone_ ABSL_GUARDED_BY(mu_);  // [rank in group] those
  // What the world is told to forget then; const after listen().
  int64_t on_abort_ = 0;
  int64_t at_end_ = 0;
};

// Real collectives in shared memory: members meet in a Rendezvous, and the last one runs the kernel over all buffers. Sends
// and recvs meet in a Mailbox.
class ThreadedProcessGroup final : public ProcessGroup, private CallPlaces {
 public:
  ThreadedProcessGroup(RankState* context, std::shared_ptr<ThreadedGroupCore> core, size_t eager_bytes);

  std::string backend_name() const override { return "threaded"; }
  void abort(std::string_view reason) override;
  void shutdown(CodeSite code) override;
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;

 protected:
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;
  void leave() override { core_->leave(ProcessGroup::rank()); }

 private:
  // CallPlaces: of the works that this member used before and nobody holds any more. Worlds of fibers only: with
  // threads a count of holders is old when it is read.
  CallPlace fresh() override;
  // The work that has `call` for its own; null: a call from elsewhere.
  std::shared_ptr<CallState>* placed(const CollectiveCall& call);
  struct Kept {
    std::shared_ptr<CallState> state;  // null: not used yet, or gone with its owners
    bool building = false;             // here, since the work may be gone before the front is through with its call
  };
  absl::StatusOr<Work> file(std::shared_ptr<CallState> state, bool on_host);
  absl::StatusOr<Work> post(CollectiveCall&& call, bool on_host);           // a send or recv
  absl::StatusOr<Work> execute_parts(CollectiveCall&& call, bool on_host);  // kCoalesced

  const std::shared_ptr<ThreadedGroupCore> core_;
  const std::shared_ptr<Rendezvous> rendezvous_;  // the core's
  std::shared_ptr<Mailbox> mailbox_;              // the core's; null until this member sends or receives
  const size_t eager_bytes_;
  // As many works as this member had on their way at a time.
  static constexpr size_t kMostKept = 4;
  std::array<Kept, kMostKept> kept_;
};

std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options);

}  // namespace rankloom::internal
