#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/threaded/members_elsewhere.h"
#include "collectives/threaded/rendezvous.h"
#include "collectives/work/member_work.h"
#include "rankloom/collective_call.h"
#include "world/world_state.h"

namespace rankloom::internal {

class Mailbox;

struct DeviceLaunch;

// A send or a recv on its way, and the work that its rank waits for.
class Message final : public MemberWork {
 public:
  Message(std::shared_ptr<Mailbox> mailbox, RankState* context, int group_rank, CollectiveCall&& call,
          int64_t timeout_ns);
  // A place for a call; begin() makes it a work.
  Message(std::shared_ptr<Mailbox> mailbox, RankState* context, int group_rank);
  void begin(int64_t timeout_ns);
  ~Message() override;

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  int source() const override;
  const char* op() const override;  // "send", "recv", "recv_any"
  std::string_view group() const override;
  // Among the member's sends and recvs, as its flight records count them; of a call that a group of a user's own made,
  // among those of its sender, receiver and tag.
  int64_t seq() const override { return call_.way.message_seq >= 0 ? call_.way.message_seq : call_.seq; }
  // WaitsFor: the other side; of a recv_any, every other member.
  void append_ranks(std::vector<int>* ranks) const override;
  // WaitsFor: of a recv, what the other side has sent to others.
  std::string hint() const override;
  // WaitsFor: the Mismatch, if the other side sends to this one under another tag.
  absl::Status explain() const override;

  std::string open_text() const override;
  const Group* open_group() const override;
  // "rank 1, group 0, recv from rank 0, tag 3".
  std::string who() const { return MemberWork::who(what(/*numbered=*/false)); }

 protected:
  Site wait_site(CodeSite code) const override;
  bool take_back(const Withdrawal& why, const absl::Status& ended) override;
  std::string what(bool numbered) const override;
  void await_group_failure() const override;
  const char* lost() const override { return "the message can never arrive"; }
  const RanksElsewhere* elsewhere() const override;

 private:
  friend class Mailbox;

  // Guarded by the mutex of the inbox.
  enum class State : uint8_t {
    kNew,      // not posted, or withdrawn
    kPending,  // in a queue of the inbox, which holds it
    kMatched,  // late runs: moves at some later step; withdrawn until then, it leaves its partner kAlone
    kAlone,    // its partner was withdrawn by a rank that leaves: nobody will ever match it; the inbox holds it
    kTaken,    // by the thread that completes it, now or soon
  };

  bool sends() const { return call_.op == OpType::kSend; }
  // The ranks in the group between which it goes; the source of a recv_any is kAnySource.
  int sender() const { return sends() ? group_rank_ : call_.peer; }
  int receiver() const { return sends() ? call_.peer : group_rank_; }
  const TensorView& tensor() const { return sends() ? call_.inputs[0] : call_.outputs[0]; }

  void set_tag_text();
  // As of CollectiveWork: poisoned runs only.
  void poison();
  bool poisoned() const;
  bool unpoison(bool failed);

  const std::shared_ptr<Mailbox> mailbox_;
  const int group_rank_;
  std::atomic<int> source_{-1};  // of a recv: the sender; written before complete()
  // Guarded by the mutex of the inbox.
  State state_ = State::kNew;
  bool eager_ = false;    // done as soon as it is posted; const after that
  bool counted_ = false;  // in its member's count of messages that are not done
  int64_t order_ = 0;     // when it was posted, among all messages of the inbox
  Message* before_ = nullptr;
  Message* after_ = nullptr;
  void* channel_ = nullptr;           // Mailbox::Channel; null for recv_any
  std::shared_ptr<Message> self_;     // while it is in a queue
  std::shared_ptr<Message> partner_;  // kMatched
  int64_t travels_ = 0;        // the number by which the other process knows a send, from 1; 0: both sides are here
  std::vector<char> payload_;  // an eager send's own copy, unless it moved at once
  std::shared_ptr<DeviceLaunch> launch_;  // kTaken, while a device moves it
  struct Aside;
  std::unique_ptr<Aside> aside_;   // poisoned runs only
  std::array<char, 16> tag_text_;  // "tag 7": what a wait shows
};

// Where the sends and recvs of one group meet. Messages are filed under (source, destination, tag) and matched in the
// order in which they were posted; the side that comes second moves the data.
// Order: the n-th send from s to d under a tag meets the n-th recv of d that can take it; a recv_any and a recv that
//   could both take a send: the one posted first does.
// Determinism: a recv_any that finds sends of several members takes the one that the schedule chooses
//   (ChoiceKind::kAnySource).
// Failure: a message that can no longer be delivered (a timeout, a dropped work, an abort, a mismatch) fails the group:
//   nothing that waits could ever be matched in order again.
// Cost: no allocation beyond the work, but for new (source, destination, tag); recv_any is linear in the channels of
// its member.
// Thread-safety: all methods.
class Mailbox : public std::enable_shared_from_this<Mailbox>, public Rendezvous::FailsAlong {
 public:
  // `rendezvous`: where the group's collectives meet. A group fails as a whole: a rank that waits for a member whose
  // other call failed would wait for ever.
  Mailbox(WorldState* world, std::shared_ptr<const Group> group, std::shared_ptr<Rendezvous> rendezvous);
  ~Mailbox() override;

  // Files a message; moves the data if the other side is there. A send of at most `eager_bytes` is copied and done at
  // once, whatever becomes of the message.
  // Never blocks on another member.
  absl::Status post(const std::shared_ptr<Message>& message, size_t eager_bytes);

  // A send of a member elsewhere has come: its peer is a member here. `number`: by which its process knows it, which
  // is told how it ended. `bytes`: its data, which `call` has no memory for.
  void arrive(int64_t number, int sender, CollectiveCall&& call, std::string_view bytes);
  // A send to a member elsewhere has ended there.
  void received(int64_t number, const absl::Status& status);

  // Takes a message back whose data has not moved, and ends it; waits for a move under way. True: it ended with
  // `ended`. False: as others had it end, before or at the same time.
  bool withdraw(Message& message, const Withdrawal& why, const absl::Status& ended);

  // The group's failure, of which the rendezvous tells.
  void set_failed(const absl::Status& cause) override;
  void spread(const absl::Status& cause) override;
  // When all messages of member `rank` are done or withdrawn: waits for data that another thread moves, for as long as
  // a copy takes.
  void await_moves(int rank) const override;
  // As of Rendezvous: `group_rank` makes no such send or recv.
  void lose(RankState& rank, int group_rank, const CollectiveCall& call, const absl::Status& cause);
  // The group had failed before its mailbox was made, in whichever step that was: no search need know of it.
  void begin_failed(const absl::Status& cause);

  // The messages that member `rank` has not finished, oldest first.
  std::vector<std::shared_ptr<Message>> unfinished(int rank) const;

  // When nobody uses the group any more: notes what was never matched, lets go of it, and fails with `cause`.
  void close(const absl::Status& cause);

  const Group& group() const { return *group_; }
  WorldState& world() const { return world_; }

 private:
  friend class Message;
  struct Queue;
  struct Channel;
  struct Inbox;

  // Rendezvous::fail().
  bool fail(
      const absl::Status& cause, absl::FunctionRef<void(const absl::Status&)> taken = [](const absl::Status&) {}) {
    return rendezvous_->fail(cause, taken);
  }
  // A send that has been filed and whose receiver is elsewhere: gives it its number.
  void note_travel(const std::shared_ptr<Message>& message);

  // The messages that a withdrawal found in the inbox. Both are held alive.
  struct TakenOut {
    std::shared_ptr<Message> self;
    std::shared_ptr<Message> partner;  // of a pair that waited for its step
    bool moves = false;                // too late: the data move, or have moved
  };

  TakenOut take_out(Inbox& inbox, Message& message, const Withdrawal& why);
  // Waits until a message that is taken is done, for as long as a copy takes.
  void await_move(Inbox& inbox, const Message& message, bool unwinds);
  // For look_at_unwound().
  void remember_unwound(const Message& message, const absl::Status& cause);
  void remember(RankState& rank, int group_rank, const CollectiveCall& call, const absl::Status& cause, bool apart);
  Inbox& inbox_of(int destination);
  Inbox* existing_inbox(int destination) const;
  // Has a pair that waited for its step taken; false: one of the two was withdrawn meanwhile.
  bool unpair(Message& send, Message& recv);
  // Compares, moves the data and completes both. On a device the data moves later.
  void move(const std::shared_ptr<Message>& send, const std::shared_ptr<Message>& recv);
  // Starts the move on a device: end() follows, but for an error.
  absl::Status start_on_device(const std::shared_ptr<Message>& send, const std::shared_ptr<Message>& recv);
  void end(Message& send, Message& recv, const absl::Status& status);
  absl::Status agree(const Message& send, const Message& recv) const;
  absl::Status describe_difference(const Message& send, const Message& recv) const;
  // Whether a message from anyone might have come from a member, `but` one, that has ended: none of the others has
  // called wrongly then.
  bool waits_for_ended(const Message& recv, int but) const;
  // The Mismatch of `message` with one that waits for the same rank under another tag; OK if there is none.
  absl::Status tag_difference(const Message& message) const;
  // The sends that nobody has received of the member that `recv` waits for, to others or under other tags: "rank 1
  // waits for a send from rank 0 (tag 0), which has sent instead: send seq 1 to rank 2 [ring.cc:7] (not received)".
  // Empty: there are none, or the group is large.
  std::string stray_sends(const Message& recv) const;
  void finish(Message& message, const absl::Status& status);
  // An eager send's data outlive the call.
  static void copy_aside(Message& send);
  void count(Message& message);
  void uncount(Message& message);
  absl::Status refusal(const Message& message) const;
  // As of Rendezvous. `mine`: the calling task is about to post it, so what it has unwound out of is needed.
  void look_at_unwound(const Message* mine = nullptr);
  // The cause, if a member has unwound out of a message that `message` could have met; else OK.
  absl::Status unwound_cause(const Message& message) const;
  // As of Rendezvous: tells an explored run of something that posts in this group do not commute with.
  void touched_group(Access how) const {
    if (record_ != nullptr) [[unlikely]]
      record_->access(object_, how);
  }
  // Tells an explored run what the posting of `mine`, which met `match` or nobody, depends on.
  void record_post(Message& mine, Message* match);

  WorldState& world_;
  Scheduler& scheduler_;
  StepRecord* const record_;  // explored runs only
  const std::shared_ptr<Rendezvous> rendezvous_;
  const std::shared_ptr<const Group> group_;
  const std::shared_ptr<MembersElsewhere> elsewhere_;  // null if all members run in this process
  const bool poison_;
  const bool late_;

  mutable ObservedMutex mu_;
  std::atomic<bool> failed_{false};  // set before the inboxes are emptied, read under an inbox's mutex
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  // Sends to members elsewhere: how many so far, those that have not ended there, and those that go with spread().
  int64_t travelled_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::shared_ptr<Message>> travelling_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int64_t, std::shared_ptr<Message>> ends_with_spread_ ABSL_GUARDED_BY(mu_);
  struct UnwoundMessage;
  std::vector<UnwoundMessage> unwound_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> any_unwound_{false};                  // written under mu_
  const uint64_t object_;                                 // explored runs: the name of the group's calls
  const std::unique_ptr<std::atomic<Inbox*>[]> inboxes_;  // [destination], each made at its first message
};

}  // namespace rankloom::internal
