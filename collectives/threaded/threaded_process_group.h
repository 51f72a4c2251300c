#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/group/group_front.h"
#include "collectives/threaded/mailbox.h"
#include "collectives/threaded/rendezvous.h"
#include "rankloom/process_group.h"

namespace rankloom::internal {

// The objects that the members of a threaded group share. Thread-safety: all methods.
class ThreadedGroupCore : public std::enable_shared_from_this<ThreadedGroupCore> {
 public:
  // `elsewhere`: null if all members run in this process.
  ThreadedGroupCore(WorldState* world, std::shared_ptr<const Group> group,
                    std::shared_ptr<MembersElsewhere> elsewhere = nullptr);

  const std::shared_ptr<const Group>& group() const { return group_; }
  const std::shared_ptr<Rendezvous>& rendezvous() const { return rendezvous_; }
  // Made by the first member that sends or receives: most groups never do.
  std::shared_ptr<Mailbox> mailbox();
  // Ends all calls on their way, and refuses later ones. Each failure of a call does.
  void fail(const absl::Status& cause) { rendezvous_->fail(cause); }
  // At the world's end, or when all members have left: notes what is on its way still, and ends it.
  void close(const absl::Status& cause);
  // Has the world tell of its end and of aborts; of one that is past, now. For the maker of the core.
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
  // The world's abort listener and end hook of this core, which leave() takes back; const after listen().
  int64_t on_abort_ = 0;
  int64_t at_end_ = 0;
};

// Real collectives in shared memory: members meet in a Rendezvous, and the last one runs the kernel over all buffers.
// Sends and recvs meet in a Mailbox.
class ThreadedProcessGroup final : public ProcessGroup, private CallPlaces {
 public:
  ThreadedProcessGroup(RankState* context, std::shared_ptr<ThreadedGroupCore> core, const GroupOptions& options);

  std::string backend_name() const override { return rendezvous_->elsewhere() != nullptr ? "mpi" : "threaded"; }
  void abort(std::string_view reason, CodeSite code) override;
  void shutdown(CodeSite code) override;
  absl::StatusOr<Work> execute(CollectiveCall&& call) override;
  std::shared_ptr<ProcessGroup> make_member(const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;
  void leave() override { core_->leave(ProcessGroup::rank()); }

 private:
  GroupFront& front() const { return GroupFront::of(*this); }
  void lose(const CollectiveCall& call, const absl::Status& cause);
  CallPlace fresh(bool message, int line) override;
  absl::Status execute_again(const CallPlace& place, Work* work) override;
  absl::StatusOr<Work> file(const std::shared_ptr<CollectiveWork>& state, bool on_host);
  // A call was not filed.
  void refused(WorkState& state, const absl::Status& status);
  // A call was refused: if for the group's failure, waits for the end of all calls of this member.
  void await_failure() const;
  // GroupOptions::rooted, of a call with a root: whether this member is done as soon as its own part is.
  bool done_early(const CollectiveCall& call, bool on_host) const;
  absl::StatusOr<Work> post(CollectiveCall&& call, bool on_host);  // a send or recv
  absl::StatusOr<Work> post(const std::shared_ptr<Message>& message, bool on_host);
  // The same of works that are begun. An error ends them.
  absl::Status file_begun(const std::shared_ptr<CollectiveWork>& state, bool on_host);
  absl::Status post_begun(const std::shared_ptr<Message>& message, bool on_host);
  absl::StatusOr<Work> execute_parts(CollectiveCall&& call, bool on_host);  // kCoalesced

  const std::shared_ptr<ThreadedGroupCore> core_;
  const std::shared_ptr<Rendezvous> rendezvous_;  // the core's
  // The core's; null until this member sends or receives.
  const std::shared_ptr<Mailbox>& mailbox();
  std::shared_ptr<Mailbox> mailbox_;  // once there is one
  std::once_flag mailbox_once_;
  std::atomic<bool> has_mailbox_{false};
  const size_t eager_bytes_;
  const std::optional<GroupOptions::Rooted> rooted_;
  const bool
      place_per_line_;  // calls of several lines have places of their own: not in worlds where that memory counts
  // Under fifo a rank that is done early would go on for a thousand points, each call with a copy and a slot
  // that have left the caches when the others come. So its turn ends when it is so many calls ahead. No wait: others
  // may need what it does later.
  static constexpr int64_t kMostAhead = 3;
  KeptWorks<CollectiveWork> kept_;
  std::unique_ptr<KeptWorks<Message>> kept_messages_;  // null until this member sends or receives
};

// `make_core`: makes what members share, for the first of them; without it all members are in this process.
using MakeGroupCore = absl::FunctionRef<std::shared_ptr<ThreadedGroupCore>()>;
std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options);
std::shared_ptr<ProcessGroup> make_threaded_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                   const GroupOptions& options, MakeGroupCore make_core);

}  // namespace rankloom::internal
