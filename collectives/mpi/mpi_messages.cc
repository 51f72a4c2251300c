// The messages of a group over MPI.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_calls.h"
#include "collectives/mpi/mpi_group_core.h"
#include "collectives/ops/mismatch.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

int highest_tag() {
  void* value = nullptr;
  int there = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &there);
  return there != 0 ? *static_cast<int*>(value) : 32767;
}

}  // namespace

absl::Status MpiGroupCore::post(const std::shared_ptr<MpiMessage>& message, size_t eager_bytes) {
  if (!failed_.ok()) return failed_before(absl::StrCat(message->who(), site_place(Site{.code = message->call().code})));
  static const int highest = highest_tag();
  if (const int tag = message->call().tag; tag < 0 || tag > highest)
    return invalid_argument(message->who(), ": tag is ", tag, ", want 0 <= tag <= MPI_TAG_UB = ", highest);
  if (size_ == 1 && comm_ == MPI_COMM_NULL) {
    if (absl::Status s = mpi_status(MPI_Comm_dup(MPI_COMM_SELF, &comm_), "MPI_Comm_dup"); !s.ok()) return s;
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  want();
  if (!message->sends()) {
    asked_.clear();  // for an eager send their answer meant nothing
    recvs_.push_back({.work = message, .begun_ns = monotonic_ns(), .asked = {}, .nothing_from = {}});
    if (has_communicator()) progress_recvs(monotonic_ns());
  } else {
    sends_waiting_.push_back(send_of(message, eager_bytes));
    if (sends_waiting_.back().work != nullptr) asked_.clear();
    if (has_communicator()) begin_sends();
  }
  engine_.wake();
  return absl::OkStatus();
}

MpiGroupCore::Send MpiGroupCore::send_of(const std::shared_ptr<MpiMessage>& message, size_t eager_bytes) {
  const CollectiveCall& call = message->call();
  const TensorView& tensor = message->tensor();
  const size_t bytes = tensor.bytes();
  Send send;
  send.work = message;
  send.to = call.peer;
  send.tag = call.tag;
  send.number = ++sends_begun_;
  send.bytes = bytes;
  send.count = static_cast<int>(tensor.numel());
  send.type = mpi_element(dtype_size(tensor.dtype()));
  send.begun_ns = monotonic_ns();
  MessageHead head;
  head.numel = tensor.numel();
  head.seq = call.way.message_seq;
  head.number = send.number;
  head.dtype = static_cast<int32_t>(tensor.dtype());
  head.line = call.code.line;
  const std::string_view file = base_name(call.code.file != nullptr ? call.code.file : "");
  std::copy_n(file.data(), std::min(file.size(), head.file.size() - 1), head.file.data());
  const bool small = bytes <= kStagedBytes;
  if (!small) {
    send.bulk_tag = engine_.next_bulk_tag();
    send.data = tensor.data();
  }
  head.bulk_tag = send.bulk_tag;
  const bool eager = eager_bytes > 0 && bytes <= eager_bytes;
  head.eager = eager ? 1 : 0;
  const size_t staged = kMessageHead + (small ? bytes : 0);
  send.staged = std::make_unique_for_overwrite<char[]>(staged);
  send.staged_bytes = staged;
  std::memcpy(send.staged.get(), &head, sizeof(head));
  if (small && bytes > 0) std::memcpy(send.staged.get() + kMessageHead, tensor.data(), bytes);
  if (eager) {  // done at once, also where it waits for the communicator
    send.keep_data();
    engine_.finished(std::exchange(send.work, nullptr), absl::OkStatus());
  }
  return send;
}

void MpiGroupCore::Send::keep_data() {
  if (bulk_tag < 0) return;
  owned = std::make_unique_for_overwrite<char[]>(bytes);
  std::memcpy(owned.get(), data, bytes);
  data = owned.get();
}

void MpiGroupCore::begin_sends() {
  while (!sends_waiting_.empty()) {
    sends_.splice(sends_.end(), sends_waiting_, sends_waiting_.begin());
    Send& send = sends_.back();
    send.begun_ns = monotonic_ns();
    const absl::Status begun = mpi_status(MPI_Isend(send.staged.get(), static_cast<int>(send.staged_bytes), MPI_BYTE,
                                                    send.to, send.tag, comm_, &send.request),
                                          "MPI_Isend");
    if (begun.ok()) continue;
    if (send.work != nullptr) engine_.finished(std::move(send.work), begun);
    sends_.pop_back();
    return fail(begun, /*told=*/false);
  }
}

bool MpiGroupCore::take_back(MpiMessage& message) {
  std::erase_if(sends_waiting_, [&message](const Send& waiting) { return waiting.work.get() == &message; });
  recvs_.remove_if([&message](const Recv& recv) { return recv.work.get() == &message; });
  for (Move& move : moves_) {
    if (move.work.get() != &message) continue;
    if (move.bulk) return false;
    move.work = nullptr;  // the bytes are the engine's still
  }
  for (Send& send : sends_) {
    if (send.work.get() != &message) continue;
    if (send.bulk) return false;
    send.keep_data();
    send.work = nullptr;
  }
  return true;
}

bool MpiGroupCore::progress_sends(int64_t now_ns) {
  bool moved = false;
  for (auto send = sends_.begin(); send != sends_.end();) {
    absl::Status status;
    if (send->request != MPI_REQUEST_NULL) {
      int done = 0;
      status = mpi_status(MPI_Test(&send->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      moved = moved || done != 0;
    }
    const bool waits = send->request != MPI_REQUEST_NULL || !send->received;
    if (status.ok() && waits) {
      const int to = global_rank(send->to);
      if (!send->told_stuck && !send->received && send->work != nullptr && now_ns - send->begun_ns > kStuckNs &&
          engine_.has_ended(to)) {
        send->told_stuck = true;
        engine_.tell_stuck(*this, to, 0);
      }
      ++send;
      continue;
    }
    moved = true;
    if (status.ok() && send->bulk_tag >= 0 && !send->bulk) {
      send->bulk = true;
      status = mpi_status(MPI_Isend(send->data, send->count, send->type, global_rank(send->to), send->bulk_tag,
                                    engine_.bulk(), &send->request),
                          "MPI_Isend");
      if (status.ok()) continue;
    }
    if (send->work != nullptr) engine_.finished(std::move(send->work), status);
    send = sends_.erase(send);
    if (!status.ok()) fail(status, /*told=*/false);
  }
  return moved;
}

void MpiGroupCore::received(int64_t number, bool wanted, const absl::Status& status) {
  const auto send =
      std::find_if(sends_.begin(), sends_.end(), [number](const Send& one) { return one.number == number; });
  if (send == sends_.end()) return;
  send->received = true;
  if (!wanted) send->bulk_tag = -1;
  if (!status.ok()) {
    if (send->work != nullptr) engine_.finished(std::move(send->work), status);
    return fail(status, /*told=*/true);
  }
  progress_sends(monotonic_ns());
}

bool MpiGroupCore::progress_recvs(int64_t now_ns) {
  bool moved = false;
  // A recv takes no message that an earlier one could have taken: of one (source, tag) the first of the list asks.
  absl::InlinedVector<std::pair<int, int>, 8> asked;
  for (auto recv = recvs_.begin(); recv != recvs_.end();) {
    const CollectiveCall& call = recv->work->call();
    const bool any = call.peer == CollectiveCall::kAnySource;
    const std::pair<int, int> key(any ? MPI_ANY_SOURCE : call.peer, call.tag);
    if (std::find(asked.begin(), asked.end(), key) != asked.end()) {
      ++recv;
      continue;
    }
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    if (absl::Status s =
            mpi_status(MPI_Improbe(key.first, key.second, comm_, &found, &message, &status), "MPI_Improbe");
        !s.ok()) {
      fail(s, /*told=*/false);
      return true;
    }
    if (found == 0) {
      asked.push_back(key);
      look_for_ended(*recv, now_ns);
      ++recv;
      continue;
    }
    moved = true;
    // Between the question of an earlier recv and this one the message may have come for that.
    const auto taker = std::find_if(recvs_.begin(), recv, [&](const Recv& earlier) {
      const CollectiveCall& wanted = earlier.work->call();
      return wanted.tag == call.tag && (wanted.peer == CollectiveCall::kAnySource || wanted.peer == status.MPI_SOURCE);
    });
    const std::shared_ptr<MpiMessage> work = taker->work;
    const bool own = taker == recv;
    const auto after = recvs_.erase(taker);
    if (absl::Status s = match(&message, status, work); !s.ok()) {
      engine_.finished(work, s);
      fail(s, /*told=*/false);
      return true;
    }
    if (!failed_.ok()) return true;  // the message was another than the recv wants, and the list is empty
    if (own) recv = after;
  }
  return moved;
}

absl::Status MpiGroupCore::match(MPI_Message* message, const MPI_Status& status, std::shared_ptr<MpiMessage> work) {
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  Move& move = moves_.emplace_back();
  move.work = std::move(work);
  move.source = status.MPI_SOURCE;
  move.tag = status.MPI_TAG;
  move.staged_bytes = static_cast<size_t>(bytes);
  move.staged = std::make_unique_for_overwrite<char[]>(std::max(move.staged_bytes, kMessageHead));
  const absl::Status begun =
      mpi_status(MPI_Imrecv(move.staged.get(), bytes, MPI_BYTE, message, &move.request), "MPI_Imrecv");
  if (!begun.ok()) {
    moves_.pop_back();
    return begun;
  }
  progress_moves();
  return absl::OkStatus();
}

bool MpiGroupCore::progress_moves() {
  bool moved = false;
  for (auto move = moves_.begin(); move != moves_.end();) {
    int done = 0;
    const absl::Status status = mpi_status(MPI_Test(&move->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (status.ok() && done == 0) {
      ++move;
      continue;
    }
    moved = true;
    if (!status.ok()) {
      if (move->work != nullptr) engine_.finished(std::move(move->work), status);
      move = moves_.erase(move);
      fail(status, /*told=*/false);
      return true;
    }
    if (!move->bulk) {
      end_header(*move);
      if (move->bulk) {
        ++move;
        continue;
      }
    }
    if (move->work != nullptr) {
      move->work->came_from(move->source);
      engine_.finished(std::move(move->work), absl::OkStatus());
    }
    move = moves_.erase(move);
  }
  return moved;
}

// A message has come: its bytes, or word of them. Leaves `work` null if it has ended with an error.
void MpiGroupCore::end_header(Move& move) {
  MessageHead head;
  std::memcpy(&head, move.staged.get(), sizeof(head));
  const auto dtype = static_cast<DType>(head.dtype);
  const size_t bytes = static_cast<size_t>(head.numel) * dtype_size(dtype);
  absl::Status wrong;
  if (move.work != nullptr) {
    const TensorView& output = move.work->tensor();
    if (output.numel() != head.numel || output.dtype() != dtype) wrong = difference(*move.work, head, move.source);
  } else if (discarded_ != nullptr && (went_well_ || head.eager != 0)) {
    discarded_->push_back(leftover_of(move.staged.get(), move.source, rank_, move.tag));
  }
  const std::shared_ptr<MpiMessage> work = move.work;
  if (!wrong.ok()) move.work = nullptr;
  if (move.work != nullptr && head.bulk_tag >= 0) {
    move.bulk = true;
    wrong =
        mpi_status(MPI_Irecv(move.work->tensor().data(), static_cast<int>(head.numel), mpi_element(dtype_size(dtype)),
                             global_rank(move.source), head.bulk_tag, engine_.bulk(), &move.request),
                   "MPI_Irecv");
    if (!wrong.ok()) {
      move.bulk = false;
      move.work = nullptr;
    }
  } else if (move.work != nullptr && bytes > 0) {
    std::memcpy(move.work->tensor().data(), move.staged.get() + kMessageHead, bytes);
  }
  engine_.tell_received(*this, global_rank(move.source), head.number, move.work != nullptr, wrong);
  if (wrong.ok()) return;
  engine_.finished(work, wrong);
  fail(wrong, /*told=*/false);
}

absl::Status MpiGroupCore::difference(const MpiMessage& recv, const MessageHead& head, int source) const {
  static char nowhere;
  const std::string file(head.file.data());
  CollectiveCall send;
  send.op = OpType::kSend;
  send.inputs = TensorView(&nowhere, static_cast<DType>(head.dtype), Dims::of(head.numel));
  send.tag = recv.call().tag;
  send.peer = rank_;
  send.code = {file.c_str(), head.line};
  const std::array<const CollectiveCall*, 2> pair = {&send, &recv.call()};
  const std::array<int, 2> ranks = {global_rank(source), global_rank(rank_)};
  const auto global = [&ranks](int i) { return ranks[static_cast<size_t>(i)]; };
  // The sender's are in another process.
  const auto last = [this](int i) { return i == 1 ? last_calls() : std::vector<std::string>(); };
  const auto nowhere_text = [](int) { return std::string(); };
  return describe_mismatch({.group = group_->name(),
                            .seq = head.seq,
                            .global_rank = global,
                            .last_calls = last,
                            .whereabouts = nowhere_text},
                           pair);
}

void MpiGroupCore::look_for_ended(Recv& recv, int64_t now_ns) {
  if (now_ns - recv.begun_ns < kStuckNs || static_cast<int>(recv.asked.size()) == size_) return;
  const int peer = recv.work->call().peer;
  // The rank may send to itself, until it waits.
  if (peer < 0 && !recv.work->is_awaited()) return;
  for (int member = 0; member < size_; ++member) {
    if (member == rank_ || (peer >= 0 && peer != member) || !engine_.has_ended(global_rank(member))) continue;
    if (std::find(recv.asked.begin(), recv.asked.end(), member) != recv.asked.end()) continue;
    recv.asked.push_back(member);
    engine_.tell_stuck(*this, global_rank(member), 0);
  }
}

void MpiGroupCore::tell_unmatched(bool aborted, std::vector<Leftover>* leftovers) {
  went_well_ = failed_.ok() && !aborted;
  if (!went_well_) return;
  for (const Recv& recv : recvs_) {
    leftovers->push_back({absl::StrCat(recv.work->who(), ": was never sent"),
                          site_place(Site{.code = recv.work->call().code, .group = group_->name()})});
  }
  // Those that were begun are found by whom they went to.
  for (const Send& send : sends_waiting_) {
    if (send.work == nullptr) leftovers->push_back(leftover_of(send.staged.get(), rank_, send.to, send.tag));
  }
}

bool MpiGroupCore::discard(std::vector<Leftover>* leftovers) {
  if (!has_communicator()) return false;
  discarded_ = leftovers;
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &message, &status) != MPI_SUCCESS || found == 0)
    return false;
  return match(&message, status, nullptr).ok();
}

MpiMember::Leftover MpiGroupCore::leftover_of(const char* staged, int from, int to, int tag) const {
  MessageHead head;
  std::memcpy(&head, staged, sizeof(head));
  return {absl::StrCat("rank ", global_rank(from), ", group ", group_->name(), ", send to rank ", global_rank(to),
                       tag != 0 ? absl::StrCat(", tag ", tag) : "", ": was never received"),
          site_place(Site{.code = {head.file.data(), head.line}, .group = group_->name()})};
}

}  // namespace rankloom::internal
