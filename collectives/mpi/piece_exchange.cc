#include "collectives/mpi/piece_exchange.h"

#include <algorithm>
#include <cstring>

#include "absl/container/fixed_array.h"
#include "collectives/kernels/kernels.h"
#include "collectives/mpi/mpi_calls.h"
#include "collectives/ops/shape_rules.h"

namespace rankloom::internal {
namespace {

using Pointers = absl::FixedArray<void*, 64>;

char* bytes_of(const TensorView& tensor) { return static_cast<char*>(tensor.data()); }
size_t element(const TensorView& tensor) { return dtype_size(tensor.dtype()); }

// The tensors whose data a member gives to the others.
const TensorList& given_list(const CollectiveCall& call, int rank) {
  static const TensorList none;
  if (call.op == OpType::kBroadcast) return rank == call.root ? call.outputs : none;
  return call.inputs;  // of scatter, the others have none
}

// A place of a row of parts, each of which begins as memory of the heap does.
constexpr size_t kAlign = 16;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

int64_t PieceExchange::given_bytes(const CollectiveCall& call, int rank, int64_t most) {
  int64_t all = 0;
  for (const TensorView& tensor : given_list(call, rank)) {
    all += static_cast<int64_t>(aligned(tensor.bytes()));
    if (all > most) return -1;
  }
  return all;
}

void PieceExchange::write_given(const CollectiveCall& call, int rank, char* to) {
  for (const TensorView& tensor : given_list(call, rank)) {
    copy(to, tensor.data(), tensor.bytes());
    to += aligned(tensor.bytes());
  }
}

int64_t PieceExchange::taken_bytes(const CollectiveCall& call, int rank) {
  // All others read as much as their own calls give.
  int64_t most = 0;
  for (const TensorView& tensor : call.outputs) most = std::max(most, static_cast<int64_t>(tensor.bytes()));
  switch (call.op) {
    case OpType::kBroadcast:
    case OpType::kAllGather:
    case OpType::kGather:
      return most;
    case OpType::kScatter:
      return (rank + 1) * static_cast<int64_t>(aligned(static_cast<size_t>(most)));
    default:
      return 0;
  }
}

namespace {

// run_given() of the reductions: the i-th tensor's elements from `first` on of every member.
Pointers given_inputs(int size, absl::FunctionRef<const char*(int)> given, size_t offset) {
  Pointers inputs(static_cast<size_t>(size));
  for (int member = 0; member < size; ++member)
    inputs[static_cast<size_t>(member)] = const_cast<char*>(given(member)) + offset;
  return inputs;
}

void reduce_given(const CollectiveCall& call, int rank, int size, absl::FunctionRef<const char*(int)> given) {
  size_t offset = 0;
  if (call.op == OpType::kReduceScatter) {
    for (int i = 0; i < rank; ++i) offset += aligned(call.inputs[i].bytes());
    const Pointers inputs = given_inputs(size, given, offset);
    reduce_gathered_chunk(call, call.outputs[0].dtype(), rank, call.outputs[0].numel(), inputs, call.outputs[0].data());
    return;
  }
  const bool scatters = call.op == OpType::kReduceScatterTensor || call.op == OpType::kReduceScatterTensorCoalesced;
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorView& output = call.outputs[i];
    if (scatters) {
      const Pointers inputs = given_inputs(size, given, offset + static_cast<size_t>(rank) * output.bytes());
      reduce_gathered_chunk(call, output.dtype(), rank, output.numel(), inputs, output.data());
    } else if (call.op != OpType::kReduce || rank == call.root) {
      const Pointers inputs = given_inputs(size, given, offset);
      reduce_gathered(call, output.dtype(), output.numel(), inputs, output.data());
    }
    offset += aligned(call.inputs[i].bytes());
  }
}

void exchange_given(const CollectiveCall& call, int rank, int size, absl::FunctionRef<const char*(int)> given) {
  if (call.op == OpType::kAllToAll) {
    // The sizes of a sender's other parts are known to be those of this member's: all are alike, or the call was not
    // given so.
    const size_t part = aligned(call.inputs[0].bytes());
    for (int member = 0; member < size; ++member)
      copy(call.outputs[member].data(), given(member) + static_cast<size_t>(rank) * part, call.outputs[member].bytes());
    return;
  }
  char* to = bytes_of(call.outputs[0]);
  const size_t part = call.outputs[0].bytes() / static_cast<size_t>(size);
  for (int member = 0; member < size; ++member, to += part)
    copy(to, given(member) + static_cast<size_t>(rank) * part, part);
}

}  // namespace

void PieceExchange::run_given(const CollectiveCall& call, int rank, int size,
                              absl::FunctionRef<const char*(int)> given) {
  switch (call.op) {
    case OpType::kBroadcast:
      if (rank != call.root) copy(call.outputs[0].data(), given(call.root), call.outputs[0].bytes());
      return;
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      return reduce_given(call, rank, size, given);
    case OpType::kAllGather:
    case OpType::kGather:
      for (int member = 0; member < call.outputs.size(); ++member)
        copy(call.outputs[member].data(), given(member), call.outputs[member].bytes());
      return;
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced: {
      size_t offset = 0;
      for (int i = 0; i < call.inputs.size(); ++i) {
        const size_t part = call.inputs[i].bytes();
        for (int member = 0; member < size; ++member)
          copy(bytes_of(call.outputs[i]) + static_cast<size_t>(member) * part, given(member) + offset, part);
        offset += aligned(part);
      }
      return;
    }
    case OpType::kScatter: {
      const size_t part = call.outputs[0].bytes();
      copy(call.outputs[0].data(), given(call.root) + static_cast<size_t>(rank) * aligned(part), part);
      return;
    }
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
      return exchange_given(call, rank, size, given);
    default:
      return;  // barriers, and what makes groups
  }
}

char* PieceExchange::room(size_t bytes) {
  if (rooms_used_ == rooms_.size()) rooms_.emplace_back();
  Room& room = rooms_[rooms_used_++];
  if (room.size < bytes) {
    room.bytes = nullptr;
    room.bytes = std::make_unique_for_overwrite<char[]>(bytes);
    room.size = bytes;
  }
  return room.bytes.get();
}

int* PieceExchange::ints(size_t count) {
  ints_.push_back(std::make_unique<int[]>(count));
  return ints_.back().get();
}

absl::Status PieceExchange::begin(const CollectiveCall& call, MPI_Comm comm, int rank, int size, Requests* requests) {
  call_ = &call;
  comm_ = comm;
  rank_ = rank;
  size_ = size;
  stage_ = Stage::kLast;
  copies_.clear();
  parts_.clear();
  ints_.clear();
  rooms_used_ = 0;
  // Memory of one large call is not kept for many small ones.
  constexpr size_t kMostKept = 64 << 20;
  std::erase_if(rooms_, [](const Room& room) { return room.size > kMostKept; });
  switch (call.op) {
    case OpType::kBroadcast: {
      const TensorView& buffer = call.outputs[0];
      return mpi_status(MPI_Ibcast(buffer.data(), static_cast<int>(buffer.numel()), mpi_element(element(buffer)),
                                   call.root, comm, &requests->emplace_back()),
                        "MPI_Ibcast");
    }
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
      return begin_reduction(requests);
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      return begin_reduce_scatter(requests);
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kGather:
    case OpType::kScatter:
      return begin_gathers(requests);
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
      return begin_all_to_all(requests);
    default:
      return absl::OkStatus();
  }
}

// Chunk r of each tensor goes to member r, but its own.
absl::Status PieceExchange::begin_reduction(Requests* requests) {
  const auto n = static_cast<size_t>(size_);
  stage_ = Stage::kReduce;
  for (int i = 0; i < call_->inputs.size(); ++i) {
    const TensorView& input = call_->inputs[i];
    const int64_t chunk = std::max<int64_t>(gathered_chunk(input.numel(), size_), 1);
    const auto of = [&](int r) { return std::clamp<int64_t>(input.numel() - r * chunk, 0, chunk); };
    const int64_t mine = of(rank_);
    int* const send = ints(4 * n);
    int* const from = send + n;
    int* const recv = from + n;
    int* const to = recv + n;
    for (int r = 0; r < size_; ++r) {
      send[r] = r == rank_ ? 0 : static_cast<int>(of(r));
      from[r] = static_cast<int>(std::min(r * chunk, input.numel()));
      recv[r] = r == rank_ ? 0 : static_cast<int>(mine);
      to[r] = static_cast<int>(r * mine);
    }
    char* const parts = room(n * static_cast<size_t>(mine) * element(input));
    parts_.push_back(parts);
    const MPI_Datatype type = mpi_element(element(input));
    if (absl::Status s = mpi_status(
            MPI_Ialltoallv(input.data(), send, from, type, parts, recv, to, type, comm_, &requests->emplace_back()),
            "MPI_Ialltoallv");
        !s.ok())
      return s;
  }
  return absl::OkStatus();
}

absl::Status PieceExchange::begin_reduce_scatter(Requests* requests) {
  const auto n = static_cast<size_t>(size_);
  stage_ = Stage::kReduce;
  const bool list = call_->op == OpType::kReduceScatter;
  for (int i = 0; i < (list ? 1 : call_->inputs.size()); ++i) {
    const TensorView& output = call_->outputs[i];
    const size_t bytes = element(output);
    int* const send = ints(4 * n);
    int* const from = send + n;
    int* const recv = from + n;
    int* const to = recv + n;
    int64_t all = 0;
    for (int r = 0; r < size_; ++r) {
      const int64_t part = list ? call_->inputs[r].numel() : output.numel();
      send[r] = r == rank_ ? 0 : static_cast<int>(part);
      from[r] = static_cast<int>(all);
      all += part;
      recv[r] = r == rank_ ? 0 : static_cast<int>(output.numel());
      to[r] = static_cast<int>(r * output.numel());
    }
    const char* input = bytes_of(call_->inputs[i]);
    if (list) {
      char* const packed = room(static_cast<size_t>(all) * bytes);
      for (int r = 0; r < size_; ++r)
        copy(packed + static_cast<size_t>(from[r]) * bytes, call_->inputs[r].data(), call_->inputs[r].bytes());
      input = packed;
    }
    char* const parts = room(n * output.bytes());
    parts_.push_back(parts);
    const MPI_Datatype type = mpi_element(bytes);
    if (absl::Status s =
            mpi_status(MPI_Ialltoallv(input, send, from, type, parts, recv, to, type, comm_, &requests->emplace_back()),
                       "MPI_Ialltoallv");
        !s.ok())
      return s;
  }
  return absl::OkStatus();
}

absl::Status PieceExchange::begin_scatter(Requests* requests) {
  const CollectiveCall& call = *call_;
  const TensorView& output = call.outputs[0];
  char* packed = nullptr;
  if (rank_ == call.root) {
    packed = room(static_cast<size_t>(size_) * output.bytes());
    for (int r = 0; r < size_; ++r)
      copy(packed + static_cast<size_t>(r) * output.bytes(), call.inputs[r].data(), output.bytes());
  }
  const int count = static_cast<int>(output.numel());
  const MPI_Datatype type = mpi_element(element(output));
  return mpi_status(
      MPI_Iscatter(packed, count, type, output.data(), count, type, call.root, comm_, &requests->emplace_back()),
      "MPI_Iscatter");
}

absl::Status PieceExchange::begin_gathers(Requests* requests) {
  const auto n = static_cast<size_t>(size_);
  const CollectiveCall& call = *call_;
  if (call.op == OpType::kScatter) return begin_scatter(requests);
  if (call.op == OpType::kAllGather || call.op == OpType::kGather) {
    const TensorView& input = call.inputs[0];
    const MPI_Datatype type = mpi_element(element(input));
    stage_ = Stage::kCopy;
    int* const counts = ints(2 * n);
    int* const places = counts + n;
    int64_t all = 0;
    for (int r = 0; r < call.outputs.size(); ++r) {
      counts[r] = static_cast<int>(call.outputs[r].numel());
      places[r] = static_cast<int>(all);
      all += call.outputs[r].numel();
    }
    char* const gathered = room(static_cast<size_t>(all) * element(input));
    for (int r = 0; r < call.outputs.size(); ++r)
      copies_.push_back({call.outputs[r].data(), gathered + static_cast<size_t>(places[r]) * element(input),
                         call.outputs[r].bytes()});
    const int count = static_cast<int>(input.numel());
    if (call.op == OpType::kAllGather) {
      return mpi_status(
          MPI_Iallgatherv(input.data(), count, type, gathered, counts, places, type, comm_, &requests->emplace_back()),
          "MPI_Iallgatherv");
    }
    return mpi_status(
        MPI_Igather(input.data(), count, type, gathered, count, type, call.root, comm_, &requests->emplace_back()),
        "MPI_Igather");
  }
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorView& input = call.inputs[i];
    const MPI_Datatype type = mpi_element(element(input));
    const int count = static_cast<int>(input.numel());
    const void* from = input.data();
    // MPI_IN_PLACE is one of all members, or of none; a rank may do as it likes.
    if (from == bytes_of(call.outputs[i]) + static_cast<size_t>(rank_) * input.bytes() && count > 0) {
      char* const aside = room(input.bytes());
      copy(aside, from, input.bytes());
      from = aside;
    }
    if (absl::Status s = mpi_status(
            MPI_Iallgather(from, count, type, call.outputs[i].data(), count, type, comm_, &requests->emplace_back()),
            "MPI_Iallgather");
        !s.ok())
      return s;
  }
  return absl::OkStatus();
}

absl::Status PieceExchange::begin_all_to_all(Requests* requests) {
  const auto n = static_cast<size_t>(size_);
  const CollectiveCall& call = *call_;
  const bool list = call.op == OpType::kAllToAll;
  const size_t bytes = element(call.inputs[0]);
  int* const send = ints(4 * n);
  int* const from = send + n;
  int* const recv = from + n;
  int* const to = recv + n;
  int64_t sent = 0;
  int64_t received = 0;
  const auto elements = [](const SplitRows& split) { return split.rows * split.row_elements; };
  for (int r = 0; r < size_; ++r) {
    const int64_t out = list ? call.inputs[r].numel() : elements(rows_sent(call, r, size_));
    const int64_t in = list ? call.outputs[r].numel() : elements(rows_expected(call, r, size_));
    send[r] = static_cast<int>(out);
    recv[r] = static_cast<int>(in);
    from[r] = static_cast<int>(sent);
    to[r] = static_cast<int>(received);
    sent += out;
    received += in;
  }
  const char* input = bytes_of(call.inputs[0]);
  char* output = bytes_of(call.outputs[0]);
  if (list) {
    char* const packed = room(static_cast<size_t>(sent) * bytes);
    output = room(static_cast<size_t>(received) * bytes);
    stage_ = Stage::kCopy;
    for (int r = 0; r < size_; ++r) {
      copy(packed + static_cast<size_t>(from[r]) * bytes, call.inputs[r].data(), call.inputs[r].bytes());
      copies_.push_back({call.outputs[r].data(), output + static_cast<size_t>(to[r]) * bytes, call.outputs[r].bytes()});
    }
    input = packed;
  }
  const MPI_Datatype type = mpi_element(bytes);
  return mpi_status(MPI_Ialltoallv(input, send, from, type, output, recv, to, type, comm_, &requests->emplace_back()),
                    "MPI_Ialltoallv");
}

absl::Status PieceExchange::reduce(Requests* requests) {
  const auto n = static_cast<size_t>(size_);
  const CollectiveCall& call = *call_;
  Pointers inputs(n);
  const auto others = [&](char* parts, size_t part, char* own) {
    for (size_t r = 0; r < n; ++r) inputs[r] = parts + r * part;
    inputs[static_cast<size_t>(rank_)] = own;
  };
  const bool scatters =
      call.op != OpType::kAllReduce && call.op != OpType::kAllReduceCoalesced && call.op != OpType::kReduce;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const TensorView& output = call.outputs[static_cast<int>(i)];
    const size_t bytes = element(output);
    if (scatters) {
      char* const own = call.op == OpType::kReduceScatter
                            ? bytes_of(call.inputs[rank_])
                            : bytes_of(call.inputs[static_cast<int>(i)]) + static_cast<size_t>(rank_) * output.bytes();
      others(parts_[i], output.bytes(), own);
      reduce_gathered_chunk(call, output.dtype(), rank_, output.numel(), inputs, output.data());
      continue;
    }
    const TensorView& input = call.inputs[static_cast<int>(i)];
    const int64_t chunk = std::max<int64_t>(gathered_chunk(input.numel(), size_), 1);
    const auto of = [&](int64_t r) { return std::clamp<int64_t>(input.numel() - r * chunk, 0, chunk); };
    const int64_t mine = of(rank_);
    const auto begin = static_cast<size_t>(std::min(rank_ * chunk, input.numel())) * bytes;
    others(parts_[i], static_cast<size_t>(mine) * bytes, bytes_of(input) + begin);
    const bool gives = call.op == OpType::kReduce && rank_ != call.root;
    char* const result = gives ? room(static_cast<size_t>(mine) * bytes) : bytes_of(output) + begin;
    reduce_gathered_chunk(call, output.dtype(), rank_, mine, inputs, result);
    int* const counts = ints(2 * n);
    int* const places = counts + n;
    for (int r = 0; r < size_; ++r) {
      counts[r] = static_cast<int>(of(r));
      places[r] = static_cast<int>(std::min(r * chunk, input.numel()));
    }
    const MPI_Datatype type = mpi_element(bytes);
    const absl::Status posted =
        call.op == OpType::kReduce
            ? mpi_status(MPI_Igatherv(gives ? result : MPI_IN_PLACE, static_cast<int>(mine), type, output.data(),
                                      counts, places, type, call.root, comm_, &requests->emplace_back()),
                         "MPI_Igatherv")
            : mpi_status(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, output.data(), counts, places, type, comm_,
                                         &requests->emplace_back()),
                         "MPI_Iallgatherv");
    if (!posted.ok()) return posted;
  }
  return absl::OkStatus();
}

void PieceExchange::copy_out() {
  for (const Copy& one : copies_) copy(one.to, one.from, one.bytes);
}

absl::Status PieceExchange::next(Requests* requests) {
  const Stage stage = std::exchange(stage_, Stage::kLast);
  requests->clear();
  switch (stage) {
    case Stage::kReduce:
      return reduce(requests);
    case Stage::kCopy:
      copy_out();
      return absl::OkStatus();
    case Stage::kLast:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace rankloom::internal
