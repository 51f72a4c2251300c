#include "tests/campaign/values.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

template <typename T>
T small(Prng& prng) {
  const int value = static_cast<int>(prng.below(4));
  if constexpr (std::is_same_v<T, bool>) return value % 2 == 1;
  if constexpr (std::is_unsigned_v<T>) return static_cast<T>(value);
  return T(static_cast<float>(prng.below(2) == 0 ? value : -value));
}

template <typename T>
T special(Prng& prng) {
  if constexpr (std::is_integral_v<T>) {
    const T values[] = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T(0), T(1), T(-1)};
    return values[prng.below(5)];
  } else {
    using Limits = std::numeric_limits<std::conditional_t<std::is_same_v<T, double>, double, float>>;
    constexpr auto kInfinity = Limits::infinity();
    const decltype(Limits::max()) values[] = {
        0, -0.0f, kInfinity, -kInfinity, Limits::quiet_NaN(), Limits::max(), Limits::denorm_min(),
        1, -1.5f, 65504,     0.1f};
    return T(values[prng.below(11)]);
  }
}

template <typename T>
void fill(Prng& prng, Values values, Bytes* bytes) {
  for (size_t at = 0; at + sizeof(T) <= bytes->size(); at += sizeof(T)) {
    const T value = values == Values::kSmall || prng.below(2) == 0 ? small<T>(prng) : special<T>(prng);
    std::memcpy(bytes->data() + at, &value, sizeof(T));
  }
}

void fill_bits(Prng& prng, Bytes* bytes) {
  for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(prng.next() >> 56);
}

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t word = a ^ (b * 0x9e3779b97f4a7c15);
  return Prng::splitmix64(word);
}

}  // namespace

int64_t between(const JobCall& call, int i, int j) { return call.count + call.uneven * ((i + 2 * j) % 3); }

ReduceOp reduce_of(const JobCall& call) {
  const auto kind = static_cast<ReduceOp::Kind>(call.reduce);
  constexpr double kFactors[] = {0.5, 1.0 / 3, -2.7, 1e-3, 3};  // most round
  return kind == ReduceOp::Kind::kPremulSum ? ReduceOp::premul_sum(kFactors[call.factor % 5]) : ReduceOp(kind);
}

ReduceOp::Order order_of(const JobCall& call, int act) {
  return {.kind = static_cast<ReduceOp::Order::Kind>(call.order % 8),
          .seed = static_cast<uint64_t>(act),
          .accumulate_in_float = call.order < 8};
}

JobCall in_order_of(const Job& job, JobCall call) {
  if (call.order == 0) call.order = job.order;
  return call;
}

CallShape shape_of(const JobCall& call, int size, int member) {
  const int64_t c = call.count;
  const bool is_root = call.root % size == member;
  CallShape shape;
  const auto for_all = [size](std::vector<int64_t>* list, auto numel) {
    for (int i = 0; i < size; ++i) list->push_back(numel(i));
  };
  switch (call.type()) {
    case OpType::kBroadcast:
    case OpType::kAllReduce:
    case OpType::kReduce:
      shape = {{c}, {c}, true};
      break;
    case OpType::kAllReduceCoalesced:
      shape = {{c, c + 2}, {c, c + 2}, true};
      break;
    case OpType::kAllGather:
      shape.inputs = {c + call.uneven * member};
      for_all(&shape.outputs, [&](int i) { return c + call.uneven * i; });
      break;
    case OpType::kAllGatherIntoTensor:
      shape = {{c}, {size * c}};
      break;
    case OpType::kAllGatherIntoTensorCoalesced:
      shape = {{c, c + 1}, {size * c, size * (c + 1)}};
      break;
    case OpType::kGather:
      shape.inputs = {c};
      if (is_root) for_all(&shape.outputs, [&](int) { return c; });
      break;
    case OpType::kScatter:
      if (is_root) for_all(&shape.inputs, [&](int) { return c; });
      shape.outputs = {c};
      break;
    case OpType::kReduceScatter:
      for_all(&shape.inputs, [&](int i) { return c + call.uneven * i; });
      shape.outputs = {c + call.uneven * member};
      break;
    case OpType::kReduceScatterTensor:
      shape = {{size * c}, {c}};
      break;
    case OpType::kReduceScatterTensorCoalesced:
      shape = {{size * c, size * (c + 1)}, {c, c + 1}};
      break;
    case OpType::kAllToAll:
      for_all(&shape.inputs, [&](int i) { return between(call, member, i); });
      for_all(&shape.outputs, [&](int i) { return between(call, i, member); });
      break;
    case OpType::kAllToAllSingle: {
      int64_t in = 0, out = 0;
      for (int i = 0; i < size; ++i) {
        in += between(call, member, i);
        out += between(call, i, member);
      }
      shape = {{in * call.rows}, {out * call.rows}};
      break;
    }
    case OpType::kBarrier:
      break;
    default:
      no_such("collective", call.op);
  }
  return shape;
}

Within within_of(const JobCall& call, const CallShape& shape) {
  if (call.in_place == 0) return Within::kNothing;
  switch (call.type()) {
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kGather:
      return shape.outputs.empty() ? Within::kNothing : Within::kOutputs;
    case OpType::kScatter:
    case OpType::kReduceScatter:
    case OpType::kReduceScatterTensor:
      return shape.inputs.empty() ? Within::kNothing : Within::kInputs;
    case OpType::kBroadcast:
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
    case OpType::kReduce:
    case OpType::kAllGatherIntoTensorCoalesced:
    case OpType::kReduceScatterTensorCoalesced:
    case OpType::kAllToAll:
    case OpType::kAllToAllSingle:
    case OpType::kBarrier:
      return Within::kNothing;
    default:
      no_such("collective", call.op);
  }
}

Bytes input_bytes(const JobCall& call, int act, int part, int global_rank, size_t tensor, int64_t numel,
                  uint64_t state) {
  Prng prng(
      mixed(mixed(state, static_cast<uint64_t>(act * 64 + part)), static_cast<uint64_t>(global_rank) * 64 + tensor));
  Bytes bytes(static_cast<size_t>(numel) * dtype_size(call.element()));
  const auto values = static_cast<Values>(call.values);
  if (values == Values::kBits) {
    fill_bits(prng, &bytes);
    return bytes;
  }
  switch (call.element()) {
    case DType::kFloat16:
      fill<Half>(prng, values, &bytes);
      break;
    case DType::kBFloat16:
      fill<BFloat16>(prng, values, &bytes);
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      fill<float>(prng, values, &bytes);
      break;
    case DType::kFloat64:
    case DType::kComplex128:
      fill<double>(prng, values, &bytes);
      break;
    case DType::kInt8:
      fill<int8_t>(prng, values, &bytes);
      break;
    case DType::kUInt8:
      fill<uint8_t>(prng, values, &bytes);
      break;
    case DType::kInt16:
      fill<int16_t>(prng, values, &bytes);
      break;
    case DType::kInt32:
      fill<int32_t>(prng, values, &bytes);
      break;
    case DType::kInt64:
      fill<int64_t>(prng, values, &bytes);
      break;
    case DType::kBool:
      fill<bool>(prng, Values::kSmall, &bytes);
      break;
    case DType::kFloat8E4M3FN:  // which only move
    case DType::kFloat8E5M2:
      fill_bits(prng, &bytes);
      break;
    default:
      no_such("dtype", call.dtype);
  }
  return bytes;
}

uint64_t first_state(int global_rank) { return mixed(0x0b5e55ed, static_cast<uint64_t>(global_rank)); }

uint64_t fold(uint64_t state, int act, std::string_view saw) {
  state = mixed(state, static_cast<uint64_t>(act) << 32 | saw.size());
  for (size_t at = 0; at < saw.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, saw.data() + at, std::min<size_t>(8, saw.size() - at));
    state = mixed(state, word);
  }
  return state;
}

}  // namespace rankloom
