#include "collectives/fake/fake_outputs.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/call/complex.h"
#include "collectives/ops/op_table.h"
#include "collectives/ops/shape_rules.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {
namespace {

// ---- moving

struct Part {  // elements [begin, begin + count) of a tensor
  const TensorView* tensor;
  int64_t begin;
  int64_t count;

  char* data() const {
    return static_cast<char*>(tensor->data()) + begin * static_cast<int64_t>(dtype_size(tensor->dtype()));
  }
  size_t bytes() const { return static_cast<size_t>(count) * dtype_size(tensor->dtype()); }
};

Part whole(const TensorView& tensor) { return {&tensor, 0, tensor.numel()}; }
// The `i`-th of `n` equal parts.
Part part(const TensorView& tensor, int64_t i, int64_t n) {
  const int64_t count = tensor.numel() / n;
  return {&tensor, i * count, count};
}

// Repeats `from` as often as `to` has room; zeros if there is nothing to repeat.
void fill(const Part& to, const Part& from) {
  const size_t room = to.bytes();
  if (room == 0 || to.tensor->data() == nullptr) return;
  if (from.count == 0 || from.tensor->data() == nullptr) {
    std::memset(to.data(), 0, room);
    return;
  }
  const size_t have = std::min(room, from.bytes());
  std::memmove(to.data(), from.data(), have);
  for (size_t done = have; done < room; done += std::min(have, room - done)) {
    std::memcpy(to.data() + done, to.data(), std::min(have, room - done));
  }
}

void zero(const TensorView& tensor) { fill(whole(tensor), {&tensor, 0, 0}); }

// ---- reducing `size` equal elements

template <typename T>
T power(T base, int64_t exponent) {
  T result = base;
  for (--exponent; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = result * base;
    if (exponent > 1) base = base * base;
  }
  return result;
}

template <typename T>
T without_payload(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <typename T>
T reduced_float(T x, ReduceOp op, int64_t n) {
  switch (op.kind()) {
    case ReduceOp::Kind::kSum:
      return without_payload(x * static_cast<T>(n));
    case ReduceOp::Kind::kPremulSum:
      return without_payload(x * static_cast<T>(op.factor()) * static_cast<T>(n));
    case ReduceOp::Kind::kProduct:
      return without_payload(power(x, n));
    default:
      return without_payload(x);
  }
}

template <typename T>
T reduced_integer(T x, ReduceOp op, int64_t n) {
  const auto bits = static_cast<uint64_t>(static_cast<int64_t>(x));  // of signed ones as well: wraps alike
  switch (op.kind()) {
    case ReduceOp::Kind::kSum:
      return static_cast<T>(bits * static_cast<uint64_t>(n));
    case ReduceOp::Kind::kProduct:
      return static_cast<T>(power(bits, n));
    case ReduceOp::Kind::kBxor:
      return n % 2 == 0 ? T{0} : x;
    default:
      return x;
  }
}

template <typename T>
std::complex<T> reduced_complex(std::complex<T> x, ReduceOp op, int64_t n) {
  // By parts: the multiplication of std::complex mends infinities, which that of the kernels does not.
  struct Plain {
    T re, im;
    Plain operator*(Plain o) const { return {re * o.re - im * o.im, re * o.im + im * o.re}; }
  };
  Plain y = {x.real(), x.imag()};
  if (op.kind() == ReduceOp::Kind::kSum) y = {y.re * static_cast<T>(n), y.im * static_cast<T>(n)};
  if (op.kind() == ReduceOp::Kind::kProduct) y = power(y, n);
  return {without_payload(y.re), without_payload(y.im)};
}

template <typename T>
T reduced(T x, ReduceOp op, int64_t n) {
  if constexpr (std::is_same_v<T, bool>) {
    return op.kind() == ReduceOp::Kind::kBxor && n % 2 == 0 ? false : x;
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return T(reduced_float(static_cast<float>(x), op, n));
  } else if constexpr (std::is_floating_point_v<T>) {
    return reduced_float(x, op, n);
  } else if constexpr (std::is_integral_v<T>) {
    return reduced_integer(x, op, n);
  } else {
    return reduced_complex(x, op, n);
  }
}

template <typename T>
void reduce_as(const Part& to, const Part& from, ReduceOp op, int64_t n) {
  for (int64_t i = 0; i < to.count; ++i) {
    const auto at = i * static_cast<int64_t>(sizeof(T));
    T x;
    if constexpr (std::is_same_v<T, bool>) {
      x = *(from.data() + at) != 0;  // any byte but 0 is true
    } else {
      std::memcpy(&x, from.data() + at, sizeof(T));
    }
    x = reduced(x, op, n);
    std::memcpy(to.data() + at, &x, sizeof(T));
  }
}

// `to` becomes `from` of `n` members, reduced. Equal counts; one memory or two.
void reduce(const Part& to, const Part& from, ReduceOp op, int64_t n) {
  if (to.tensor->data() == nullptr || from.tensor->data() == nullptr) return;
  switch (to.tensor->dtype()) {
    case DType::kFloat16:
      return reduce_as<Half>(to, from, op, n);
    case DType::kBFloat16:
      return reduce_as<BFloat16>(to, from, op, n);
    case DType::kFloat32:
      return reduce_as<float>(to, from, op, n);
    case DType::kFloat64:
      return reduce_as<double>(to, from, op, n);
    case DType::kInt8:
      return reduce_as<int8_t>(to, from, op, n);
    case DType::kUInt8:
      return reduce_as<uint8_t>(to, from, op, n);
    case DType::kInt16:
      return reduce_as<int16_t>(to, from, op, n);
    case DType::kInt32:
      return reduce_as<int32_t>(to, from, op, n);
    case DType::kInt64:
      return reduce_as<int64_t>(to, from, op, n);
    case DType::kBool:
      return reduce_as<bool>(to, from, op, n);
    case DType::kComplex64:
      return reduce_as<Complex64>(to, from, op, n);
    case DType::kComplex128:
      return reduce_as<Complex128>(to, from, op, n);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      return;  // no reduction passes the check
  }
}

// ---- operations

// `uniform`: reduced as by `size` equal ranks; else as it is.
void keep_part(const Part& to, const Part& from, const CollectiveCall& call, int size, bool uniform) {
  if (uniform) {
    reduce(to, from, call.reduce_op, size);
  } else {
    fill(to, from);
  }
}

void all_to_all_single(const CollectiveCall& call, int rank, int size, bool uniform) {
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  if (!uniform && call.in_splits.empty() && call.out_splits.empty()) return fill(whole(output), whole(input));
  Part from = whole(input);
  if (uniform) {
    from.count = 0;
    for (int i = 0; i <= rank; ++i) {
      const SplitRows sent = rows_sent(call, i, size);
      from.begin += from.count;
      from.count = sent.rows * sent.row_elements;
    }
  }
  Part to = {&output, 0, 0};
  for (int i = 0; i < size; ++i) {
    const SplitRows expected = rows_expected(call, i, size);
    to.begin += to.count;
    to.count = expected.rows * expected.row_elements;
    fill(to, from);
  }
}

void write(const CollectiveCall& call, int rank, int size, bool uniform) {
  const TensorList& inputs = call.inputs;
  const TensorList& outputs = call.outputs;
  switch (call.op) {
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
      if (!uniform || !writes_outputs(call, rank)) return;
      for (int i = 0; i < outputs.size(); ++i) reduce(whole(outputs[i]), whole(inputs[i]), call.reduce_op, size);
      return;
    case OpType::kAllGather:
    case OpType::kGather:
      for (const TensorView& output : outputs) fill(whole(output), whole(inputs[0]));
      return;
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
      for (int k = 0; k < outputs.size(); ++k) {
        if (outputs[k].numel() == 0) continue;
        // A part may be the input itself: read before anything is written there.
        for (int i = 0; i < size; ++i) fill(part(outputs[k], i, size), whole(inputs[k]));
      }
      return;
    case OpType::kScatter:
      if (rank == call.root) {
        fill(whole(outputs[0]), whole(inputs[rank]));
      } else if (uniform) {
        zero(outputs[0]);
      }
      return;
    case OpType::kReduceScatter:
      return keep_part(whole(outputs[0]), whole(inputs[rank]), call, size, uniform);
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      for (int k = 0; k < outputs.size(); ++k)
        keep_part(whole(outputs[k]), part(inputs[k], rank, size), call, size, uniform);
      return;
    case OpType::kAllToAll:
      for (int i = 0; i < size; ++i) fill(whole(outputs[i]), whole(inputs[uniform ? rank : i]));
      return;
    case OpType::kAllToAllSingle:
      return all_to_all_single(call, rank, size, uniform);
    case OpType::kRecv:
      if (uniform) zero(outputs[0]);
      return;
    case OpType::kCoalesced:
      for (const CollectiveCall& one : call.parts) write(one, rank, size, uniform);
      return;
    case OpType::kBroadcast:  // equal data: the root's is this rank's
    case OpType::kBarrier:
    case OpType::kMonitoredBarrier:
    case OpType::kSend:
    case OpType::kNewGroup:
    case OpType::kSplitGroup:
      return;
  }
}

absl::Status check_memory(const CollectiveCall& call) {
  for (const CollectiveCall& one : call.parts) {
    if (absl::Status checked = check_memory(one); !checked.ok()) return checked;
  }
  for (const TensorList* const list : {&call.inputs, &call.outputs}) {
    for (const TensorView& tensor : *list) {
      if (tensor.device().kind != Device::Kind::kCuda) continue;
      return make_error(ErrorKind::kCollectiveError, op_row(call.op).name,
                        ": a fake group writes outputs in CPU memory only, have ", tensor.text(),
                        ", want FakeOptions::Outputs::kShapesOnly");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status write_fake_outputs(FakeOptions::Outputs mode, const CollectiveCall& call, int rank, int size) {
  if (mode == FakeOptions::Outputs::kShapesOnly) return absl::OkStatus();
  if (absl::Status checked = check_memory(call); !checked.ok()) return checked;
  write(call, rank, size, mode == FakeOptions::Outputs::kUniformRanks);
  return absl::OkStatus();
}

}  // namespace rankloom::internal
