#include "tests/campaign/mpi_calls.h"

#include <algorithm>
#include <functional>

#include "tests/campaign/mpi_reduction.h"

namespace rankloom {

namespace {

// Parts of a buffer, one of each member.
struct Parts {
  std::vector<int> sizes, begins;
  int total = 0;

  Parts(int members, const std::function<int64_t(int)>& size_of) {
    for (int i = 0; i < members; ++i) {
      sizes.push_back(static_cast<int>(size_of(i)));
      begins.push_back(total);
      total += sizes.back();
    }
  }
};

// MPICH 4.0.2 copies from MPI_IN_PLACE, which is no address, where the root is not the first process and the tensor has
// over two kilobytes.
#ifdef OPEN_MPI
constexpr bool kReducesInPlace = true;
#else
constexpr bool kReducesInPlace = false;
#endif

// Memory for so many bytes, never null.
Bytes room(int size) {
  Bytes bytes;
  bytes.reserve(static_cast<size_t>(size) + 1);
  bytes.resize(static_cast<size_t>(size), 0xC3);
  return bytes;
}

Bytes joined(const std::vector<Bytes>& tensors) {
  Bytes all = room(0);
  for (const Bytes& bytes : tensors) all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

int size_of(const Bytes& bytes) { return static_cast<int>(bytes.size()); }

class MpiCall {
 public:
  MpiCall(const JobCall& call, const std::vector<Bytes>& inputs, MPI_Comm comm)
      : call_(call), inputs_(inputs), comm_(comm), width_(static_cast<int>(dtype_size(call.element()))) {
    MPI_Comm_size(comm, &size_);
    MPI_Comm_rank(comm, &me_);
    root_ = call.root % size_;
  }

  std::string make() {
    switch (call_.type()) {
      case OpType::kBroadcast:
        return broadcast();
      case OpType::kAllReduce:
      case OpType::kAllReduceCoalesced:
        return of_each_tensor(&MpiCall::all_reduce);
      case OpType::kReduce:
        return reduce();
      case OpType::kAllGather:
        return all_gather_v();
      case OpType::kAllGatherIntoTensor:
      case OpType::kAllGatherIntoTensorCoalesced:
        return of_each_tensor(&MpiCall::all_gather);
      case OpType::kGather:
        return gather();
      case OpType::kScatter:
        return scatter();
      case OpType::kReduceScatter:
        return reduce_scatter();
      case OpType::kReduceScatterTensor:
      case OpType::kReduceScatterTensorCoalesced:
        return of_each_tensor(&MpiCall::reduce_scatter_block);
      case OpType::kAllToAll:
      case OpType::kAllToAllSingle:
        return all_to_all();
      case OpType::kBarrier:
        MPI_Barrier(comm_);
        return "";
      default:
        no_such("collective", call_.op);
    }
  }

 private:
  static std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
  bool in_place() const { return call_.in_place != 0; }
  int elements(const Bytes& bytes) const { return size_of(bytes) / width_; }
  std::string result(const Bytes& reduced) const { return text(finished(call_, static_cast<size_t>(size_), reduced)); }
  std::string of_each_tensor(Bytes (MpiCall::*make)(Bytes)) {
    std::string all;
    for (const Bytes& input : inputs_) all += text((this->*make)(joined({input})));
    return all;
  }

  std::string broadcast() {
    Bytes buffer = joined(inputs_);
    MPI_Bcast(buffer.data(), size_of(buffer), MPI_BYTE, root_, comm_);
    return text(buffer);
  }

  Bytes all_reduce(Bytes tensor) {
    const auto [type, op] = *mpi_reduction(call_);
    const Bytes input = prepared(call_, std::move(tensor));
    Bytes output = in_place() ? input : room(size_of(input));
    output.reserve(1);
    MPI_Allreduce(in_place() ? MPI_IN_PLACE : input.data(), output.data(), elements(output), type, op, comm_);
    return finished(call_, static_cast<size_t>(size_), output);
  }

  std::string reduce() {
    const auto [type, op] = *mpi_reduction(call_);
    const bool at_root = me_ == root_;
    Bytes input = prepared(call_, joined(inputs_));
    Bytes output = at_root ? room(size_of(input)) : Bytes();
    if (at_root && in_place() && kReducesInPlace) {
      MPI_Reduce(MPI_IN_PLACE, input.data(), elements(input), type, op, root_, comm_);
      output = input;
    } else {
      MPI_Reduce(input.data(), output.data(), elements(input), type, op, root_, comm_);
    }
    return at_root ? result(output) : text(inputs_[0]);
  }

  Bytes all_gather(Bytes input) {
    const int own = size_of(input);
    Bytes output = room(own * size_);
    if (in_place()) std::copy(input.begin(), input.end(), output.begin() + own * me_);
    MPI_Allgather(in_place() ? MPI_IN_PLACE : input.data(), own, MPI_BYTE, output.data(), own, MPI_BYTE, comm_);
    return output;
  }

  std::string all_gather_v() {
    if (call_.uneven == 0) return text(all_gather(joined(inputs_)));
    const Parts parts(size_, [this](int i) { return (call_.count + call_.uneven * i) * width_; });
    const Bytes input = joined(inputs_);
    Bytes output = room(parts.total);
    if (in_place()) std::copy(input.begin(), input.end(), output.begin() + parts.begins[static_cast<size_t>(me_)]);
    MPI_Allgatherv(in_place() ? MPI_IN_PLACE : input.data(), size_of(input), MPI_BYTE, output.data(),
                   parts.sizes.data(), parts.begins.data(), MPI_BYTE, comm_);
    return text(output);
  }

  std::string gather() {
    const Bytes input = joined(inputs_);
    Bytes output = room(me_ == root_ ? size_of(input) * size_ : 0);
    MPI_Gather(input.data(), size_of(input), MPI_BYTE, output.data(), size_of(input), MPI_BYTE, root_, comm_);
    return text(output);
  }

  std::string scatter() {
    const Bytes input = joined(inputs_);
    Bytes output = room(call_.count * width_);
    MPI_Scatter(input.data(), size_of(output), MPI_BYTE, output.data(), size_of(output), MPI_BYTE, root_, comm_);
    return text(output);
  }

  std::string reduce_scatter() {
    const auto [type, op] = *mpi_reduction(call_);
    const Parts parts(size_, [this](int i) { return call_.count + call_.uneven * i; });
    const Bytes input = prepared(call_, joined(inputs_));
    Bytes output = room(parts.sizes[static_cast<size_t>(me_)] * width_);
    MPI_Reduce_scatter(input.data(), output.data(), parts.sizes.data(), type, op, comm_);
    return result(output);
  }

  Bytes reduce_scatter_block(Bytes tensor) {
    const auto [type, op] = *mpi_reduction(call_);
    Bytes input = prepared(call_, std::move(tensor));
    Bytes output = room(size_of(input) / size_);
    if (in_place()) {
      MPI_Reduce_scatter_block(MPI_IN_PLACE, input.data(), elements(output), type, op, comm_);
      std::copy_n(input.begin(), output.size(), output.begin());
    } else {
      MPI_Reduce_scatter_block(input.data(), output.data(), elements(output), type, op, comm_);
    }
    return finished(call_, static_cast<size_t>(size_), output);
  }

  std::string all_to_all() {
    const int row = width_ * (call_.type() == OpType::kAllToAllSingle ? call_.rows : 1);
    const Parts given(size_, [&](int i) { return between(call_, me_, i) * row; });
    const Parts got(size_, [&](int i) { return between(call_, i, me_) * row; });
    const Bytes input = joined(inputs_);
    Bytes output = room(got.total);
    if (call_.uneven == 0) {
      MPI_Alltoall(input.data(), given.sizes[0], MPI_BYTE, output.data(), got.sizes[0], MPI_BYTE, comm_);
    } else {
      MPI_Alltoallv(input.data(), given.sizes.data(), given.begins.data(), MPI_BYTE, output.data(), got.sizes.data(),
                    got.begins.data(), MPI_BYTE, comm_);
    }
    return text(output);
  }

  const JobCall& call_;
  const std::vector<Bytes>& inputs_;
  const MPI_Comm comm_;
  const int width_;
  int size_ = 0, me_ = 0, root_ = 0;
};

}  // namespace

bool mpi_has(const JobCall& call) { return !is_reduction(call.type()) || mpi_reduction(call).has_value(); }

std::string made_by_mpi(const JobCall& call, const std::vector<Bytes>& inputs, MPI_Comm comm) {
  return MpiCall(call, inputs, comm).make();
}

}  // namespace rankloom
