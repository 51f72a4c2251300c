// Reductions for compare_with_torch.py, one JSON object a line: of every operation and dtype, with values of each kind,
// what each rank gives, and what rankloom gives all, by the oracle whose bits the kernels have; null where rankloom has
// no such reduction. Three ranks in rank order, and five in other orders where those matter.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "rankloom/random.h"
#include "tests/campaign/values.h"
#include "tests/collectives/kernels/reduce_oracle.h"

namespace {

using namespace rankloom;
using namespace rankloom::internal;
using Kind = ReduceOp::Kind;
using Order = ReduceOp::Order;

constexpr int kCount = 200;
constexpr int kKinds = internal::kReduceOpCount;
constexpr const char* kOps[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
constexpr const char* kValues[] = {"small", "bits", "special", "dense"};
constexpr int kSpecial = 2;  // of kValues
constexpr int kDense = 3;    // floats of like size, whose sums and products round
constexpr const char* kOrders[] = {"rank", "reversed", "ring", "tree", "seeded"};
constexpr double kFactors[] = {1.0 / 3, 0.5, -3, 65536};  // 1/3 rounds in each dtype; 65536 is above all of float16

struct Row {
  DType dtype = DType::kFloat32;
  Kind kind = Kind::kSum;
  double factor = 1;
  int values = 0;
  Order order = {};

  bool has_floats() const { return is_floating(dtype) || is_complex(dtype); }
  bool is_half() const { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
  int ranks() const { return order.kind == Order::Kind::kRank ? 3 : 5; }
  // Draws the values: the same whether it rounds after each step or not.
  int act() const { return ((static_cast<int>(dtype) * kKinds + static_cast<int>(kind)) * 4 + values) * 5 + orders(); }
  int orders() const { return static_cast<int>(order.kind); }
};

template <typename T>
void fill_densely(Prng& prng, Bytes* bytes) {
  for (size_t at = 0; at + sizeof(T) <= bytes->size(); at += sizeof(T)) {
    const double value = std::ldexp(static_cast<double>(prng.below(uint64_t{1} << 53)), -51) - 2;  // in [-2, 2)
    T element(static_cast<float>(value));
    if constexpr (std::is_same_v<T, double>) element = value;
    std::memcpy(bytes->data() + at, &element, sizeof(T));
  }
}

Bytes dense_bytes(const Row& row, int rank) {
  Prng prng(static_cast<uint64_t>(row.act()) * 8 + static_cast<uint64_t>(rank));
  Bytes bytes(kCount * dtype_size(row.dtype));
  switch (row.dtype) {
    case DType::kFloat16:
      fill_densely<Half>(prng, &bytes);
      break;
    case DType::kBFloat16:
      fill_densely<BFloat16>(prng, &bytes);
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      fill_densely<float>(prng, &bytes);
      break;
    default:
      fill_densely<double>(prng, &bytes);
  }
  return bytes;
}

Bytes given_by(const Row& row, int rank) {
  if (row.values == kDense) return dense_bytes(row, rank);
  const JobCall call = {.dtype = static_cast<int>(row.dtype), .values = row.values};
  return input_bytes(call, row.act(), 0, rank, 0, kCount, first_state(rank));
}

std::string hex(const Bytes& bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return absl::StrCat("\"", absl::BytesToHexString(text), "\"");
}

void write(const Row& row) {
  std::vector<Bytes> inputs;
  std::vector<std::string> given;
  for (int rank = 0; rank < row.ranks(); ++rank) {
    inputs.push_back(given_by(row, rank));
    given.push_back(hex(inputs.back()));
  }
  std::string output = "null";
  if (has_kernel(row.kind, row.dtype)) {
    const ReduceOp op = row.kind == Kind::kPremulSum ? ReduceOp::premul_sum(row.factor) : ReduceOp(row.kind);
    const auto chunk = static_cast<size_t>(kCount / row.ranks());
    output = hex(expected_reduction(row.dtype, op, row.order, inputs, [&](size_t element) { return element / chunk; }));
  }
  const std::string_view dtype = dtype_name(row.dtype);
  absl::PrintF("{\"dtype\": \"%s\", \"op\": \"%s\", \"factor\": %.17g, \"values\": \"%s\", \"order\": \"%s\", ",
               absl::string_view(dtype.data(), dtype.size()), kOps[static_cast<int>(row.kind)], row.factor,
               kValues[row.values], kOrders[row.orders()]);
  absl::PrintF("\"rounds_each_step\": %s, \"inputs\": [%s], \"output\": %s}\n",
               row.order.accumulate_in_float ? "false" : "true", absl::StrJoin(given, ", "), output);
}

// And, of float16 and bfloat16, the same with a rounding after each step.
void write_both(Row row) {
  write(row);
  if (!row.is_half()) return;
  row.order.accumulate_in_float = false;
  write(row);
}

void write_orders(Row row) {
  for (const auto kind : {Order::Kind::kReversed, Order::Kind::kRing, Order::Kind::kTree, Order::Kind::kSeeded}) {
    row.order = {.kind = kind, .seed = static_cast<uint64_t>(row.act())};
    write_both(row);
  }
}

void write_all(Row row) {
  if (!has_kernel(row.kind, row.dtype)) {
    row.factor = row.kind == Kind::kPremulSum ? 0.5 : 1;
    return write(row);
  }
  for (row.values = 0; row.values <= kDense; ++row.values) {
    if (row.values == kDense && !row.has_floats()) continue;
    if (row.kind != Kind::kPremulSum) {
      write_both(row);
    } else {
      for (const double factor : kFactors) {
        row.factor = factor;
        write_both(row);
      }
      row.factor = kFactors[0];
    }
    if (row.has_floats() && row.values >= kSpecial) write_orders(row);
  }
}

}  // namespace

int main() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int kind = 0; kind < kKinds; ++kind) {
      write_all({.dtype = static_cast<DType>(dtype), .kind = static_cast<Kind>(kind)});
    }
  }
  return 0;
}
