#include "collectives/mpi/mpi_group_core.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_calls.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/mismatch.h"
#include "collectives/ops/op_table.h"
#include "collectives/ops/shape_rules.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/fnv.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// Of more members a frame has no room for data: every member gets the frames of all.
constexpr int kMostWithPayload = 64;
constexpr size_t kPayload = 192;

// Elements, or rows, that this member sends to `peer` and expects of it.
struct PairSizes {
  int64_t sent;
  int64_t sent_row;
  int64_t expected;
  int64_t expected_row;
};
PairSizes sizes_for(const CollectiveCall& call, int peer, int size) {
  switch (call.op) {
    case OpType::kAllGather:
      return {call.inputs[0].numel(), 1, call.outputs[peer].numel(), 1};
    case OpType::kAllToAll:
      return {call.inputs[peer].numel(), 1, call.outputs[peer].numel(), 1};
    default: {
      const SplitRows sent = rows_sent(call, peer, size);
      const SplitRows expected = rows_expected(call, peer, size);
      return {sent.rows, sent.rows == 0 ? 0 : sent.row_elements, expected.rows,
              expected.rows == 0 ? 0 : expected.row_elements};
    }
  }
}

}  // namespace

MpiGroupCore::MpiGroupCore(MpiEngine* engine, std::shared_ptr<const Group> group, std::string key, int rank)
    : MpiMember(engine, std::move(group), std::move(key), rank), payload_(size_ <= kMostWithPayload ? kPayload : 0) {
  frame_.resize(kHead + payload_);
  frames_of_all_.resize(frame_.size() * static_cast<size_t>(size_));
}

std::string MpiGroupCore::group_text() const { return absl::StrCat("group ", group_->name()); }

absl::Status MpiGroupCore::failed_before(std::string_view who) const {
  return blamed_as(make_error(ErrorKind::kAborted, sv(who), ": the group failed before: ", failed_.message()), failed_);
}

// ---- calls of the member

absl::Status MpiGroupCore::file(const std::shared_ptr<MpiCollective>& work) {
  const CollectiveCall& call = work->call();
  if (!failed_.ok()) {
    return failed_before(absl::StrCat("rank ", global_rank(rank_), ", ", group_text(), ", ", op_row(call.op).name,
                                      " seq ", call.seq, site_place(Site{.code = call.code})));
  }
  asked_.clear();  // for an eager send their answer meant nothing
  auto filed = std::make_unique<Call>();
  filed->work = work;
  queue_.push_back(std::move(filed));
  if (queue_.size() == 1) advance(monotonic_ns());
  if (!queue_.empty()) engine_.wake();
  return absl::OkStatus();
}

std::vector<std::shared_ptr<WorkState>> MpiGroupCore::unfinished() const {
  std::vector<std::shared_ptr<WorkState>> works;
  const auto add = [&works](const std::shared_ptr<WorkState>& work) {
    if (work != nullptr && !work->is_over()) works.push_back(work);
  };
  for (const std::unique_ptr<Call>& call : queue_) add(call->work);
  for (const Send& send : sends_waiting_) add(send.work);
  for (const Send& send : sends_) add(send.work);
  for (const Recv& recv : recvs_) add(recv.work);
  for (const Move& move : moves_) add(move.work);
  engine_.append_untold(*group_, &works);
  return works;
}

int64_t MpiGroupCore::waiting_calls() const {
  return std::count_if(queue_.begin(), queue_.end(),
                       [](const std::unique_ptr<Call>& call) { return call->stage == Stage::kQueued; });
}

int64_t MpiGroupCore::call_number(const MpiCollective& work) const {
  int64_t waiting = 0;
  for (const std::unique_ptr<Call>& call : queue_) {
    if (call->stage == Stage::kQueued) ++waiting;
    if (call->work.get() == &work) return call->stage == Stage::kQueued ? frames_ + waiting : call->number;
  }
  return frames_;
}

bool MpiGroupCore::take_back(MpiCollective& work) {
  const auto at = std::find_if(queue_.begin(), queue_.end(),
                               [&work](const std::unique_ptr<Call>& call) { return call->work.get() == &work; });
  if (at == queue_.end()) return true;  // about to be told how the call ended
  Call& call = **at;
  if (call.stage == Stage::kPiece) return false;
  give_up(call);
  return true;
}

void MpiGroupCore::give_up(Call& call) {
  // Kept until the section ends: its last handle may go.
  const std::shared_ptr<MpiCollective> work = std::exchange(call.work, nullptr);
  const auto keep = [&call](const TensorView& tensor, bool with_data) {
    call.memory.push_back(std::make_unique<char[]>(std::max<size_t>(tensor.bytes(), 1)));
    char* const bytes = call.memory.back().get();
    if (with_data && tensor.bytes() > 0) std::memcpy(bytes, tensor.data(), tensor.bytes());
    return TensorView(bytes, tensor.dtype(), tensor.sizes());
  };
  const auto kept = [&](const CollectiveCall& from) {
    CollectiveCall copy = from;
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    for (const TensorView& tensor : from.inputs) inputs.push_back(keep(tensor, true));
    for (const TensorView& tensor : from.outputs) outputs.push_back(keep(tensor, true));
    // In place: the result may be written over the input.
    copy.inputs = inputs.size() == 1 ? TensorList(inputs[0]) : TensorList(std::move(inputs));
    copy.outputs = outputs.size() == 1 ? TensorList(outputs[0]) : TensorList(std::move(outputs));
    copy.keep_alive = nullptr;
    return copy;
  };
  call.own = kept(work->call());
  std::vector<CollectiveCall> parts;
  for (const CollectiveCall& part : work->call().parts) parts.push_back(kept(part));
  call.own.parts = std::move(parts);
  if (work->call().way.request != nullptr) {
    call.own_request = *work->call().way.request;
    call.own.way.request = &call.own_request;
  }
  call.pieces.clear();
}

void MpiGroupCore::fail(const absl::Status& cause, bool told) {
  if (!failed_.ok()) return;
  failed_ = cause;
  if (!told) engine_.tell_group_failed(*this, cause);
  for (const std::unique_ptr<Call>& call : queue_) {
    if (call->work == nullptr || call->stage == Stage::kPiece) continue;
    engine_.finished(call->work, cause);
    call->stage == Stage::kQueued ? call->work.reset() : give_up(*call);
  }
  // Calls that were never begun are nobody's business.
  std::erase_if(queue_, [](const std::unique_ptr<Call>& call) {
    return call->stage == Stage::kQueued && call->work == nullptr && !call->closed;
  });
  for (Send& send : sends_waiting_) {
    if (send.work != nullptr) engine_.finished(std::move(send.work), cause);
  }
  sends_waiting_.clear();
  for (Recv& recv : recvs_) engine_.finished(std::move(recv.work), cause);
  recvs_.clear();
  for (Send& send : sends_) {
    if (send.work == nullptr || send.bulk) continue;
    const std::shared_ptr<MpiMessage> work = send.work;
    (void)take_back(*work);
    engine_.finished(work, cause);
  }
}

// ---- collectives

bool MpiGroupCore::advance(int64_t now_ns) {
  bool moved = false;
  while (!queue_.empty()) {
    Call& call = *queue_.front();
    absl::Status status;
    if (call.stage == Stage::kQueued) {
      if (size_ > 1 && comm_ == MPI_COMM_NULL) {
        want();
        return moved;
      }
      status = begin(call, now_ns);
    } else {
      if (!call.requests.empty()) {
        int done = 0;
        status = mpi_status(
            MPI_Testall(static_cast<int>(call.requests.size()), call.requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
        if (status.ok() && done == 0) {
          if (call.stage == Stage::kFrames && now_ns - call.begun_ns >= kStuckNs) ask_ended(&call.asked, call.number);
          return moved;
        }
        call.requests.clear();
      }
      if (status.ok()) status = next(call);
    }
    moved = true;
    if (!status.ok()) {
      end(call, status);
      fail(status, /*told=*/error_kind(status) == ErrorKind::kMismatch);
    }
    if (!queue_.empty() && queue_.front().get() == &call && call.stage == Stage::kDone) queue_.pop_front();
  }
  return moved;
}

void MpiGroupCore::end(Call& call, const absl::Status& status) {
  call.stage = Stage::kDone;
  if (call.work != nullptr) engine_.finished(std::move(call.work), status);
}

absl::Status MpiGroupCore::begin(Call& call, int64_t now_ns) {
  call.number = ++frames_;
  call.begun_ns = now_ns;
  if (size_ > 1) return begin_frame(call);
  // Nobody else is to come.
  const CollectiveCall* const alone = &call.call();
  if (call.closed) {
    end(call, absl::OkStatus());
    return absl::OkStatus();
  }
  if (absl::Status fits = fits_itself(*alone); !fits.ok()) return fits;
  if (alone->way.request == nullptr) op_row(alone->op).run(MemberCalls(&alone, 1), nullptr);
  make_groups(call);
  end(call, absl::OkStatus());
  return absl::OkStatus();
}

absl::Status MpiGroupCore::fits_itself(const CollectiveCall& call) const {
  const CollectiveCall* const alone = &call;
  bool fault = false;
  if (op_row(call.op).cross != nullptr) {
    op_row(call.op).cross(MemberCalls(&alone, 1), [&fault](const PairFault&) {
      fault = true;
      return false;
    });
  }
  if (!fault) return absl::OkStatus();
  return describe_mismatch({.group = group_->name(),
                            .seq = call.seq,
                            .global_rank = [this](int rank) { return global_rank(rank); },
                            .last_calls = [this](int) { return last_calls(); },
                            .whereabouts = [](int) { return std::string(); }},
                           MemberCalls(&alone, 1));
}

int64_t MpiGroupCore::uniform_of(const CollectiveCall& call) const {
  if (op_row(call.op).cross == nullptr) return 0;
  if (call.op == OpType::kCoalesced) return 0;
  const PairSizes first = sizes_for(call, 0, size_);
  for (int peer = 0; peer < size_; ++peer) {
    const PairSizes sizes = sizes_for(call, peer, size_);
    if (sizes.sent != first.sent || sizes.sent_row != first.sent_row || sizes.expected != first.sent ||
        sizes.expected_row != first.sent_row)
      return -1;
  }
  // Rows of another length are another size, so both count.
  const uint64_t both =
      fnv_step(fnv_step(kFnvBasis, static_cast<uint64_t>(first.sent)), static_cast<uint64_t>(first.sent_row));
  return static_cast<int64_t>(both & INT64_MAX);
}

absl::Status MpiGroupCore::begin_frame(Call& call) {
  FrameHead head;
  if (call.closed) {
    head.closed = 1;
  } else {
    const CollectiveCall& mine = call.call();
    // Groups are made of what all members say, so that they must agree.
    if (engine_.compares() || mine.way.request != nullptr) head.likeness = likeness_of(mine);
    head.uniform = uniform_of(mine);
    if (mine.way.request != nullptr) {
      head.color = mine.way.request->color;
      head.key = mine.way.request->key;
    }
    const bool exchange = mine.op == OpType::kAllToAll || mine.op == OpType::kAllToAllSingle;
    if (mine.op != OpType::kCoalesced && !(exchange && head.uniform < 0)) {
      head.inline_bytes = static_cast<int32_t>(PieceExchange::given_bytes(mine, rank_, static_cast<int64_t>(payload_)));
      if (head.inline_bytes > 0) PieceExchange::write_given(mine, rank_, frame_.data() + kHead);
    }
  }
  std::memcpy(frame_.data(), &head, sizeof(head));
  call.stage = Stage::kFrames;
  const int bytes = static_cast<int>(frame_.size());
  return mpi_status(MPI_Iallgather(frame_.data(), bytes, MPI_BYTE, frames_of_all_.data(), bytes, MPI_BYTE, comm_,
                                   &call.requests.emplace_back()),
                    "MPI_Iallgather");
}

const MpiGroupCore::FrameHead& MpiGroupCore::head_of(int member) const {
  // Frames begin at multiples of 64 bytes of memory of the heap.
  return *reinterpret_cast<const FrameHead*>(frames_of_all_.data() + frame_.size() * static_cast<size_t>(member));
}
const char* MpiGroupCore::inline_of(int member) const {
  return frames_of_all_.data() + frame_.size() * static_cast<size_t>(member) + kHead;
}

absl::Status MpiGroupCore::next(Call& call) {
  switch (call.stage) {
    case Stage::kFrames:
      return after_frames(call);
    case Stage::kLengths:
      return exchange_descriptions(call);
    case Stage::kDescriptions:
      return mismatch(call);
    case Stage::kCross:
      return begin_vote(call);
    case Stage::kVote:
      if (call.any_fault != 0) return begin_describing(call);
      return after_agreement(call);
    case Stage::kPiece:
      if (absl::Status s = exchange_.next(&call.requests); !s.ok()) return s;
      return call.requests.empty() ? next_piece(call) : absl::OkStatus();
    case Stage::kQueued:
    case Stage::kDone:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status MpiGroupCore::closed_by(const Call& call) const {
  std::vector<int> gone;
  for (int member = 0; member < size_; ++member) {
    if (head_of(member).closed != 0) gone.push_back(global_rank(member));
  }
  std::sort(gone.begin(), gone.end());
  const CollectiveCall& mine = call.call();
  return make_error(ErrorKind::kDeadlock, group_text(), ", ", op_row(mine.op).name, " seq ", mine.seq, ": ",
                    short_ranks_text(gone), gone.size() == 1 ? " has" : " have",
                    " ended and will not come; the call can never be complete", site_place(Site{.code = mine.code}));
}

absl::Status MpiGroupCore::after_frames(Call& call) {
  const FrameHead* first = nullptr;  // of a member that has come
  bool closed = false;
  bool same = true;
  bool uniform = true;
  for (int member = 0; member < size_; ++member) {
    const FrameHead& head = head_of(member);
    if (head.closed != 0) {
      closed = true;
      continue;
    }
    if (first == nullptr) first = &head;
    same = same && head.likeness == first->likeness;
    uniform = uniform && head.uniform == first->uniform && head.uniform >= 0;
  }
  // The difference says more than who is missing, and names those, too.
  if (closed && same) {
    if (!call.closed && call.work != nullptr) return closed_by(call);
    end(call, absl::OkStatus());
    return absl::OkStatus();
  }
  if (!same) return begin_describing(call);
  const CollectiveCall& own = call.call();
  if (!engine_.compares()) return after_agreement(call);
  if (op_row(own.op).cross != nullptr && own.op != OpType::kCoalesced && !uniform) return begin_cross(call);
  if (own.op == OpType::kCoalesced) {
    const PartCalls parts = collective_parts(own);
    if (std::any_of(parts.begin(), parts.end(),
                    [](const CollectiveCall* part) { return op_row(part->op).cross != nullptr; }))
      return begin_cross(call);
  }
  return after_agreement(call);
}

absl::Status MpiGroupCore::after_agreement(Call& call) {
  if (call.work != nullptr) call.work->started(monotonic_ns());
  const CollectiveCall& own = call.call();
  bool inlined = own.op != OpType::kCoalesced;
  for (int member = 0; member < size_; ++member) inlined = inlined && head_of(member).inline_bytes >= 0;
  if (inlined) {
    if (!engine_.compares() && PieceExchange::taken_bytes(own, rank_) > static_cast<int64_t>(payload_)) {
      return make_error(ErrorKind::kCollectiveError, group_text(), ", ", op_row(own.op).name, " seq ", own.seq,
                        ": other members give fewer bytes than this call takes, want calls that agree; which of them "
                        "differ is told with compare_calls",
                        site_place(Site{.code = own.code}));
    }
    PieceExchange::run_given(own, rank_, size_, [this](int member) { return inline_of(member); });
    make_groups(call);
    end(call, absl::OkStatus());
    return absl::OkStatus();
  }
  call.pieces.clear();
  if (own.op == OpType::kCoalesced) {
    const PartCalls parts = collective_parts(own);
    call.pieces.assign(parts.begin(), parts.end());
  } else {
    call.pieces.push_back(&own);
  }
  call.piece = 0;
  return begin_piece(call);
}

absl::Status MpiGroupCore::begin_piece(Call& call) {
  call.stage = Stage::kPiece;
  for (; call.piece < call.pieces.size(); ++call.piece) {
    if (absl::Status s = exchange_.begin(*call.pieces[call.piece], comm_, rank_, size_, &call.requests); !s.ok())
      return s;
    if (!call.requests.empty()) return absl::OkStatus();
  }
  end(call, absl::OkStatus());
  return absl::OkStatus();
}

absl::Status MpiGroupCore::next_piece(Call& call) {
  ++call.piece;
  return begin_piece(call);
}

// The groups that the call asks for: the members' wishes are alike, but for what the frames say.
void MpiGroupCore::make_groups(const Call& call) {
  GroupRequest* const mine = call.call().way.request;
  if (mine == nullptr || call.work == nullptr) return;
  std::vector<GroupRequest> requests(static_cast<size_t>(size_), *mine);
  std::vector<CollectiveCall> calls(requests.size());
  std::vector<const CollectiveCall*> members;
  for (size_t member = 0; member < requests.size(); ++member) {
    if (size_ > 1) {
      requests[member].color = head_of(static_cast<int>(member)).color;
      requests[member].key = head_of(static_cast<int>(member)).key;
    }
    calls[member].op = call.call().op;
    calls[member].seq = call.call().seq;
    calls[member].way.request = &requests[member];
    requests[member].made.clear();
    members.push_back(&calls[member]);
  }
  run_new_group(members, nullptr);
  const GroupRequest& done = requests[static_cast<size_t>(rank_)];
  mine->made = done.made;
  mine->seq = call.call().seq;
  // Names are the user's, and may be those of other groups.
  for (const std::shared_ptr<const Group>& group : mine->made)
    engine_.name_group(group, absl::StrCat(key_, "/", mine->number, "/", group->name()));
}

// ---- members that differ

absl::Status MpiGroupCore::begin_describing(Call& call) {
  call.stage = Stage::kLengths;
  call.description = call.closed ? "" : described(call.call(), last_calls());
  call.lengths.assign(static_cast<size_t>(size_) + 1, 0);
  call.lengths.back() = static_cast<int>(call.description.size());
  return mpi_status(MPI_Iallgather(&call.lengths.back(), 1, MPI_INT, call.lengths.data(), 1, MPI_INT, comm_,
                                   &call.requests.emplace_back()),
                    "MPI_Iallgather");
}

absl::Status MpiGroupCore::exchange_descriptions(Call& call) {
  call.stage = Stage::kDescriptions;
  int64_t all = 0;
  call.offsets.clear();
  for (int member = 0; member < size_; ++member) {
    call.offsets.push_back(static_cast<int>(all));
    all += call.lengths[static_cast<size_t>(member)];
    if (all > INT_MAX) {
      return make_error(ErrorKind::kCollectiveError, group_text(), ", ", op_row(call.call().op).name, " seq ",
                        call.call().seq, ": members issued different calls, whose descriptions have ", all,
                        " bytes and more, want less than 2^31 for a table");
    }
  }
  call.descriptions.resize(static_cast<size_t>(all));
  return mpi_status(MPI_Iallgatherv(call.description.data(), static_cast<int>(call.description.size()), MPI_CHAR,
                                    call.descriptions.data(), call.lengths.data(), call.offsets.data(), MPI_CHAR, comm_,
                                    &call.requests.emplace_back()),
                    "MPI_Iallgatherv");
}

absl::Status MpiGroupCore::mismatch(Call& call) {
  if (call.closed) {
    end(call, absl::OkStatus());
    return absl::OkStatus();
  }
  std::vector<std::unique_ptr<DescribedCall>> described;
  std::vector<const CollectiveCall*> calls;
  for (size_t member = 0; member < static_cast<size_t>(size_); ++member) {
    const std::string_view bytes(call.descriptions.data() + call.offsets[member],
                                 static_cast<size_t>(call.lengths[member]));
    described.push_back(call_described_by(bytes, *group_));
    if (bytes.empty()) {
      calls.push_back(nullptr);
      continue;
    }
    if (described.back() == nullptr) {
      return make_error(ErrorKind::kCollectiveError, group_text(), ": the call of rank ",
                        global_rank(static_cast<int>(member)),
                        " cannot be read, want the same version of the program in all processes");
    }
    calls.push_back(&described.back()->call);
  }
  const auto global = [this](int rank) { return global_rank(rank); };
  const auto last = [&described](int rank) { return described[static_cast<size_t>(rank)]->last_calls; };
  const auto ended = [this](int rank) {
    const std::string how = engine_.world().ended_text(global_rank(rank));
    return how.empty() ? std::string("has ended") : how;
  };
  return describe_mismatch({.group = group_->name(),
                            .seq = call.call().seq,
                            .global_rank = global,
                            .last_calls = last,
                            .whereabouts = ended},
                           MemberCalls(calls));
}

std::vector<std::string> MpiGroupCore::last_calls() const {
  return engine_.world().context(global_rank(rank_)).recorder().last_calls(5, group_.get());
}

void MpiGroupCore::choose_crossed(Call* call) {
  const CollectiveCall& own = call->call();
  call->pieces.clear();
  if (own.op != OpType::kCoalesced) return call->pieces.push_back(&own);
  for (const CollectiveCall* part : collective_parts(own)) {
    if (op_row(part->op).cross != nullptr) call->pieces.push_back(part);
  }
}

absl::Status MpiGroupCore::begin_cross(Call& call) {
  call.stage = Stage::kCross;
  choose_crossed(&call);
  // To each member, two numbers of each piece.
  const size_t each = 2 * call.pieces.size();
  call.sizes.clear();
  for (int peer = 0; peer < size_; ++peer) {
    for (const CollectiveCall* piece : call.pieces) {
      const PairSizes sizes = sizes_for(*piece, peer, size_);
      call.sizes.push_back(sizes.sent);
      call.sizes.push_back(sizes.sent_row);
    }
  }
  call.expected.assign(call.sizes.size(), 0);
  const int count = static_cast<int>(each);
  return mpi_status(MPI_Ialltoall(call.sizes.data(), count, MPI_INT64_T, call.expected.data(), count, MPI_INT64_T,
                                  comm_, &call.requests.emplace_back()),
                    "MPI_Ialltoall");
}

absl::Status MpiGroupCore::begin_vote(Call& call) {
  call.stage = Stage::kVote;
  call.fault = 0;
  choose_crossed(&call);  // again: the rank may have given the call up since
  size_t at = 0;
  for (int peer = 0; peer < size_; ++peer) {
    for (const CollectiveCall* piece : call.pieces) {
      const PairSizes sizes = sizes_for(*piece, peer, size_);
      if (call.expected[at] != sizes.expected || call.expected[at + 1] != sizes.expected_row) call.fault = 1;
      at += 2;
    }
  }
  return mpi_status(
      MPI_Iallreduce(&call.fault, &call.any_fault, 1, MPI_INT, MPI_MAX, comm_, &call.requests.emplace_back()),
      "MPI_Iallreduce");
}

// ---- members that have ended

void MpiGroupCore::ask_ended(std::vector<int>* asked, int64_t call) {
  for (int member = 0; member < size_; ++member) {
    if (!engine_.has_ended(global_rank(member))) continue;
    if (std::find(asked->begin(), asked->end(), member) != asked->end()) continue;
    asked->push_back(member);
    engine_.tell_stuck(*this, global_rank(member), call);
  }
}

void MpiGroupCore::want() {
  if (wanted_ || has_communicator() || size_ == 1) return;
  wanted_ = true;
  wanted_ns_ = monotonic_ns();
  engine_.want_communicator(*this);
}

void MpiGroupCore::press_others(int64_t now_ns) {
  if (now_ns - pressed_ns_ < kStuckNs) return;
  pressed_ns_ = now_ns;
  for (int member = 0; member < size_; ++member) {
    if (member != rank_ && !engine_.has_ended(global_rank(member))) {
      engine_.tell_stuck(*this, global_rank(member), 0);
    }
  }
}

void MpiGroupCore::close_up_to(int64_t calls) {
  while (this->calls() < calls) {
    auto closed = std::make_unique<Call>();
    closed->closed = true;
    queue_.push_back(std::move(closed));
  }
  advance(monotonic_ns());
}

std::vector<int32_t> MpiGroupCore::sends_to(int rank) const {
  const int member = group_->group_rank(rank);
  std::vector<int32_t> tags;
  for (const std::list<Send>* sends : {&sends_, &sends_waiting_}) {
    for (const Send& send : *sends) {
      if (send.to == member) tags.push_back(send.tag);
    }
  }
  return tags;
}

bool MpiGroupCore::has_only_eager_sends() const {
  return queue_.empty() && recvs_.empty() && sends_.empty() && moves_.empty() &&
         std::all_of(sends_waiting_.begin(), sends_waiting_.end(),
                     [](const Send& send) { return send.work == nullptr; });
}

void MpiGroupCore::nothing_from(int rank, bool unknown, const std::vector<int32_t>& tags) {
  const int member = group_->group_rank(rank);
  if (member < 0) return;
  const std::string gone = absl::StrCat("rank ", rank, " has ended and will not come");
  if (unknown && comm_ == MPI_COMM_NULL && size_ > 1 && !has_only_eager_sends()) {
    const CollectiveCall* const first =
        !queue_.empty() && queue_.front()->work != nullptr ? &queue_.front()->work->call() : nullptr;
    fail(make_error(ErrorKind::kDeadlock, group_text(),
                    first != nullptr ? absl::StrCat(", ", op_row(first->op).name, " seq ", first->seq) : "", ": ", gone,
                    "; the call can never be complete", first != nullptr ? site_place(Site{.code = first->code}) : ""),
         /*told=*/true);
    return;
  }
  const auto never = [&](const MpiMessage& message, const char* what) {
    return make_error(ErrorKind::kDeadlock, message.who(), ": rank ", rank, " has ended and ", what,
                      site_place(Site{.code = message.call().code}));
  };
  absl::Status cause;
  for (Recv& recv : recvs_) {
    const int source = recv.work->call().peer;
    const auto asked = std::find(recv.asked.begin(), recv.asked.end(), member);
    if (asked == recv.asked.end()) continue;
    if (std::find(tags.begin(), tags.end(), recv.work->call().tag) != tags.end()) {
      recv.asked.erase(asked);  // a message comes, to this recv or to another one
      recv.begun_ns = monotonic_ns();
      continue;
    }
    if (std::find(recv.nothing_from.begin(), recv.nothing_from.end(), member) == recv.nothing_from.end())
      recv.nothing_from.push_back(member);
    const bool nobody = source >= 0 || static_cast<int>(recv.nothing_from.size()) == size_ - 1;
    if (nobody && cause.ok()) cause = never(*recv.work, "will not send");
  }
  for (const Send& send : sends_) {
    if (send.work != nullptr && send.told_stuck && !send.received && send.to == member && cause.ok())
      cause = never(*send.work, "will not receive");
  }
  if (!cause.ok()) fail(cause, /*told=*/false);
}

// ---- progress

bool MpiGroupCore::progress(int64_t now_ns) {
  bool moved = advance(now_ns);
  if (wanted_ && comm_ == MPI_COMM_NULL && now_ns - wanted_ns_ > kStuckNs) {
    ask_ended(&asked_, 0);
    press_others(now_ns);
  }
  if (!sends_waiting_.empty() && has_communicator()) {
    begin_sends();
    moved = true;
  }
  if (!sends_.empty()) moved = progress_sends(now_ns) || moved;
  if (!recvs_.empty() && has_communicator()) moved = progress_recvs(now_ns) || moved;
  if (!moves_.empty()) moved = progress_moves() || moved;
  return moved;
}

}  // namespace rankloom::internal
