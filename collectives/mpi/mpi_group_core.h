#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/mpi_work.h"
#include "collectives/mpi/piece_exchange.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"

namespace rankloom::internal {

// One member's side of a group whose members are processes: its collectives, one after another, and its messages.
//
// A collective begins with a frame: a few bytes of every member, by MPI_Iallgather, that say which call it is. So all
// members know that all have come before a byte of the caller's is given to MPI: a wait that ends early takes the call
// back before that, and waits for MPI after it. If the frames differ, descriptions of the calls follow, and every
// member makes the same Mismatch of them. Data that are small enough travel in the frame, and the call is done.
// A call that its rank gives up goes on with memory of the engine's own, so that the others get what they were
// promised.
//
// Messages: a header that waits to be matched, with the bytes of a small one. The receiver compares it with its recv
// and answers; then the send is done, or the bytes of a large one follow. So both sides get the same Mismatch.
// Nothing is posted for a recv before its message is there: what is not matched can be taken back.
// All is guarded by the engine's lock.
class MpiGroupCore final : public MpiMember {
 public:
  MpiGroupCore(MpiEngine* engine, std::shared_ptr<const Group> group, std::string key, int rank);

  // --- calls of the member
  absl::Status file(const std::shared_ptr<MpiCollective>& work);
  absl::Status post(const std::shared_ptr<MpiMessage>& message, size_t eager_bytes);
  bool take_back(MpiCollective& work) override;
  bool take_back(MpiMessage& message) override;
  void fail(const absl::Status& cause, bool told) override;
  std::vector<std::shared_ptr<WorkState>> unfinished() const;

  bool progress(int64_t now_ns) override;
  bool busy() const override {
    return !queue_.empty() || !recvs_.empty() || !sends_.empty() || !moves_.empty() || !sends_waiting_.empty();
  }
  int64_t calls() const override { return frames_ + waiting_calls(); }
  int64_t call_number(const MpiCollective& work) const override;
  void want() override;
  void close_up_to(int64_t calls) override;
  void nothing_from(int rank, bool unknown, const std::vector<int32_t>& tags) override;
  std::vector<int32_t> sends_to(int rank) const override;
  void received(int64_t send, bool wanted, const absl::Status& status) override;
  bool describing() const override {
    return !queue_.empty() &&
           (queue_.front()->stage == Stage::kLengths || queue_.front()->stage == Stage::kDescriptions);
  }
  void tell_unmatched(bool aborted, std::vector<Leftover>* leftovers) override;
  bool discard(std::vector<Leftover>* leftovers) override;

 private:
  enum class Stage : uint8_t { kQueued, kFrames, kLengths, kDescriptions, kCross, kVote, kPiece, kDone };

  // A collective of this member.
  struct Call {
    std::shared_ptr<MpiCollective> work;  // null: given up by its rank, or closed
    CollectiveCall own;                   // given up: with memory of the engine's
    GroupRequest own_request;
    std::vector<std::unique_ptr<char[]>> memory;
    bool closed = false;
    Stage stage = Stage::kQueued;
    int64_t number = 0;  // from 1, once begun
    int64_t begun_ns = 0;
    std::vector<int> asked;  // members that have ended, which were asked to say so in this call
    std::vector<const CollectiveCall*> pieces;
    size_t piece = 0;
    std::vector<int64_t> sizes;  // kCross
    std::vector<int64_t> expected;
    int fault = 0;  // kVote
    int any_fault = 0;
    std::string description;
    std::vector<int> lengths;
    std::vector<int> offsets;
    std::string descriptions;
    absl::InlinedVector<MPI_Request, 4> requests;

    const CollectiveCall& call() const { return work != nullptr ? work->call() : own; }
  };

  struct FrameHead {
    uint64_t likeness = 0;
    int64_t uniform = -1;  // elements of each part, if all that this member sends and expects is of one size
    int32_t color = 0;     // split_group
    int32_t key = 0;
    int32_t inline_bytes = -1;  // of the call's data, behind the head; -1: they are not there
    uint8_t closed = 0;         // 1: the rank has ended
  };
  static constexpr size_t kHead = 64;
  static_assert(sizeof(FrameHead) <= kHead);

  // A send, or the sending half of a message whose rank has given it up.
  struct Send {
    std::shared_ptr<MpiMessage> work;  // null: done for its rank
    std::unique_ptr<char[]> staged;    // header, and the bytes of a small one
    size_t staged_bytes = 0;
    std::unique_ptr<char[]> owned;  // the bytes of a large one that is done for its rank
    const void* data = nullptr;     // of a large one
    size_t bytes = 0;
    int count = 0;  // elements, and what MPI takes them for: counts of bytes would be too large for it
    MPI_Datatype type = MPI_BYTE;
    int to = -1;
    int tag = 0;
    int64_t number = 0;     // among this member's, by which the receiver answers
    bool received = false;  // the receiver has answered
    int bulk_tag = -1;      // -1: small, or nobody wants it
    bool bulk = false;      // MPI has the large one's memory
    int64_t begun_ns = 0;
    bool told_stuck = false;
    MPI_Request request = MPI_REQUEST_NULL;

    // The rank may change its memory from now on.
    void keep_data();
  };
  struct MessageHead {
    int64_t numel = 0;
    int64_t seq = 0;
    int64_t number = 0;
    int32_t dtype = 0;
    int32_t bulk_tag = -1;
    int32_t line = 0;
    uint8_t eager = 0;               // done for its rank, whatever becomes of it
    std::array<char, 35> file = {};  // the beginning of its name, without folders
  };
  static constexpr size_t kMessageHead = 80;
  static_assert(sizeof(MessageHead) <= kMessageHead);
  static constexpr size_t kStagedBytes = 16 << 10;
  // A call that has waited so long asks members that have ended whether they will come.
  static constexpr int64_t kStuckNs = 20'000'000;

  struct Recv {
    std::shared_ptr<MpiMessage> work;
    int64_t begun_ns = 0;
    std::vector<int> asked;         // ended members that were asked whether they will send
    std::vector<int> nothing_from;  // ended members that will send nothing more
  };
  // A message that was matched and moves.
  struct Move {
    std::shared_ptr<MpiMessage> work;  // null: nobody wants it
    std::unique_ptr<char[]> staged;
    size_t staged_bytes = 0;
    int source = -1;
    int tag = 0;
    bool bulk = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  int64_t waiting_calls() const;
  std::string group_text() const;
  // "WHO: the group failed before: ...", of a call made later.
  absl::Status failed_before(std::string_view who) const;
  bool advance(int64_t now_ns);
  absl::Status begin(Call& call, int64_t now_ns);
  absl::Status begin_frame(Call& call);
  int64_t uniform_of(const CollectiveCall& call) const;
  // The stage after one whose requests are done.
  absl::Status next(Call& call);
  absl::Status after_frames(Call& call);
  absl::Status closed_by(const Call& call) const;
  absl::Status after_agreement(Call& call);
  absl::Status begin_describing(Call& call);
  absl::Status exchange_descriptions(Call& call);
  absl::Status mismatch(Call& call);
  // Of the only member: whether what it gives itself is what it expects.
  absl::Status fits_itself(const CollectiveCall& call) const;
  // Of this member in the group, a line each.
  std::vector<std::string> last_calls() const;
  // The parts of the call whose sizes pairs of members compare.
  static void choose_crossed(Call* call);
  absl::Status begin_cross(Call& call);
  absl::Status begin_vote(Call& call);
  absl::Status begin_piece(Call& call);
  absl::Status next_piece(Call& call);
  void make_groups(const Call& call);
  void end(Call& call, const absl::Status& status);
  void give_up(Call& call);
  const FrameHead& head_of(int member) const;
  const char* inline_of(int member) const;
  // Asks the members that have ended, each once.
  // Has members want the communicator that may not call for long, or only when this call is done.
  void press_others(int64_t now_ns);
  void ask_ended(std::vector<int>* asked, int64_t call);

  // Header and data of a message. An eager one is done for its rank then.
  Send send_of(const std::shared_ptr<MpiMessage>& message, size_t eager_bytes);
  // Gives MPI those that wait; the group fails if it takes one not.
  void begin_sends();
  // Whether nothing is here but sends that are done for their rank and wait for the communicator.
  bool has_only_eager_sends() const;
  bool progress_sends(int64_t now_ns);
  bool progress_recvs(int64_t now_ns);
  bool progress_moves();
  absl::Status match(MPI_Message* message, const MPI_Status& status, std::shared_ptr<MpiMessage> work);
  void end_header(Move& move);
  absl::Status difference(const MpiMessage& recv, const MessageHead& head, int source) const;
  void look_for_ended(Recv& recv, int64_t now_ns);
  // Of a message that nobody received, by its header and the group ranks of both sides.
  Leftover leftover_of(const char* staged, int from, int to, int tag) const;

  const size_t payload_;  // of a frame
  int64_t wanted_ns_ = 0;
  int64_t pressed_ns_ = 0;  // when other members were last told that this one waits for the communicator
  std::vector<int> asked_;  // members that have ended, which were asked whether they know the group

  absl::Status failed_;
  std::deque<std::unique_ptr<Call>> queue_;  // the first one is begun, or waits for the communicator
  int64_t frames_ = 0;                       // calls begun
  std::vector<char> frame_;                  // this member's
  std::vector<char> frames_of_all_;
  PieceExchange exchange_;

  std::list<Send> sends_;
  std::list<Send> sends_waiting_;  // for the communicator
  std::list<Recv> recvs_;
  std::list<Move> moves_;
  int64_t sends_begun_ = 0;
  bool went_well_ = false;  // until the run ended
  std::vector<Leftover>* discarded_ = nullptr;
};

}  // namespace rankloom::internal
