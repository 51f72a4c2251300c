#include "collectives/ops/shape_rules.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/kernels/kernels.h"
#include "collectives/ops/group_request.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Rules test inline and build their texts in cold functions: the good path pays for the tests alone.

// How a text calls a tensor: "input", "inputs[2]".
struct Name {
  const char* name;
  int index = -1;

  std::string text() const { return index < 0 ? std::string(name) : absl::StrCat(name, "[", index, "]"); }
};

std::string counted(int64_t count, const char* noun) { return absl::StrCat(count, " ", noun, count == 1 ? "" : "s"); }

// ---- one tensor ----

bool tensor_ok(const TensorView& t) {
  return t.numel() >= 0 && is_dtype(t.dtype()) && t.is_contiguous() &&
         (t.data() != nullptr || t.numel() == 0 || t.device().kind == Device::Kind::kMeta);
}

[[gnu::cold, gnu::noinline]] absl::Status bad_tensor(const TensorView& t, Name name) {
  if (const absl::Status shape = t.shape_status(); !shape.ok()) {
    return invalid_argument(name.text(), "'s ", shape.message());
  }
  if (!is_dtype(t.dtype())) {
    return invalid_argument(name.text(), "'s dtype is ", static_cast<int>(t.dtype()), ", want 0 <= dtype < ",
                            kDTypeCount, ", a value of DType");
  }
  if (!t.is_contiguous()) {
    const Dims& sizes = t.sizes();
    Dims want(sizes.size(), 1);
    for (size_t d = sizes.size(); d-- > 1;) want[d - 1] = want[d] * sizes[d];
    return invalid_argument(name.text(), " is not contiguous: shape ", dims_text(sizes), " has strides ",
                            dims_text(t.strides()), ", want ", dims_text(want));
  }
  return invalid_argument(name.text(), " has a null pointer, want the address of ", counted(t.numel(), "element"),
                          " of ", sv(dtype_name(t.dtype())));
}

absl::Status check_tensor(const TensorView& t, Name name) {
  if (!tensor_ok(t)) return bad_tensor(t, name);
  return absl::OkStatus();
}

// ---- a tensor beside another one ----

[[gnu::cold, gnu::noinline]] absl::Status unlike(const TensorView& t, Name name, const TensorView& model,
                                                 Name model_name) {
  if (t.dtype() != model.dtype()) {
    return invalid_argument(name.text(), " has dtype ", sv(dtype_name(t.dtype())), ", want ", model_name.text(), "'s ",
                            sv(dtype_name(model.dtype())));
  }
  return invalid_argument(name.text(), " is on ", t.device().name(), ", want ", model_name.text(), "'s ",
                          model.device().name());
}

// A good tensor with the dtype and device of `model`.
absl::Status check_like(const TensorView& t, Name name, const TensorView& model, Name model_name) {
  if (!tensor_ok(t)) return bad_tensor(t, name);
  if (t.dtype() != model.dtype() || t.device() != model.device()) return unlike(t, name, model, model_name);
  return absl::OkStatus();
}

[[gnu::cold, gnu::noinline]] absl::Status wrong_numel(const TensorView& t, Name name, const TensorView& model,
                                                      Name model_name) {
  return invalid_argument(name.text(), " has ", counted(t.numel(), "element"), ", want ", model_name.text(), "'s ",
                          model.numel());
}

absl::Status check_numel(const TensorView& t, Name name, const TensorView& model, Name model_name) {
  if (t.numel() != model.numel()) return wrong_numel(t, name, model, model_name);
  return absl::OkStatus();
}

[[gnu::cold, gnu::noinline]] absl::Status wrong_product(const TensorView& big, Name big_name, int size,
                                                        const TensorView& part, Name part_name) {
  int64_t want;
  const std::string product = __builtin_mul_overflow(part.numel(), size, &want) ? "more than 2^63" : absl::StrCat(want);
  return invalid_argument(big_name.text(), " has ", counted(big.numel(), "element"), ", want size * ", part_name.text(),
                          " = ", size, " * ", part.numel(), " = ", product);
}

// `big` holds `size` times what `part` holds.
absl::Status check_product(const TensorView& big, Name big_name, int size, const TensorView& part, Name part_name) {
  int64_t want;
  if (__builtin_mul_overflow(part.numel(), size, &want) || big.numel() != want) {
    return wrong_product(big, big_name, size, part, part_name);
  }
  return absl::OkStatus();
}

// ---- memory ----

struct Range {  // empty where a tensor has no bytes
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool empty() const { return begin == end; }
};

Range range_of(const TensorView& t) {
  if (t.data() == nullptr) return {};
  const auto begin = reinterpret_cast<uintptr_t>(t.data());
  return {begin, begin + t.bytes()};
}

bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end && !a.empty() && !b.empty(); }

[[gnu::cold, gnu::noinline]] absl::Status overlapping(Name name, Name other, const char* want) {
  return invalid_argument(name.text(), " overlaps ", other.text(), ", want ", want);
}

constexpr char kSeparate[] = "separate memory";
constexpr char kSeparateOrSame[] = "separate memory or exactly the same";

// `a` and `b`, of one size, are one memory or separate.
absl::Status check_same_or_separate(const TensorView& a, Name a_name, const TensorView& b, Name b_name) {
  if (a.data() != b.data() && overlap(range_of(a), range_of(b))) return overlapping(a_name, b_name, kSeparateOrSame);
  return absl::OkStatus();
}

[[gnu::cold, gnu::noinline]] absl::Status wrong_slice(const TensorView& part, Name part_name, const TensorView& big,
                                                      Name big_name, int rank) {
  const auto at = static_cast<int64_t>(range_of(part).begin - range_of(big).begin);
  const auto bytes = static_cast<int64_t>(part.bytes());
  return invalid_argument(part_name.text(), " starts at byte ", at, " of ", big_name.text(),
                          ", want separate memory or its own part, byte rank * ", part_name.text(), " = ", rank, " * ",
                          bytes, " = ", rank * bytes);
}

// `part` is the part of `rank` in `big`, or separate from all of it.
absl::Status check_slice_or_separate(const TensorView& part, Name part_name, const TensorView& big, Name big_name,
                                     int rank) {
  const Range small = range_of(part);
  const Range whole = range_of(big);
  if (!overlap(small, whole)) return absl::OkStatus();
  if (small.begin == whole.begin + static_cast<uintptr_t>(rank) * part.bytes()) return absl::OkStatus();
  return wrong_slice(part, part_name, big, big_name, rank);
}

// Whether the non-empty ranges of a list ascend, or all descend, without touching each other: the usual case.
bool in_order(const TensorList& list) {
  bool ascend = true;
  bool descend = true;
  uintptr_t last_end = 0;
  uintptr_t last_begin = std::numeric_limits<uintptr_t>::max();
  for (const TensorView& t : list) {
    const Range range = range_of(t);
    if (range.empty()) continue;
    ascend &= range.begin >= last_end;
    descend &= range.end <= last_begin;
    last_end = range.end;
    last_begin = range.begin;
  }
  return ascend || descend;
}

struct Indexed {
  Range range;
  int index;
};

// The non-empty ranges of a list, ascending.
[[gnu::cold, gnu::noinline]] std::vector<Indexed> sorted_ranges(const TensorList& list) {
  std::vector<Indexed> sorted;
  for (int i = 0; i < list.size(); ++i) {
    if (const Range range = range_of(list[i]); !range.empty()) sorted.push_back({range, i});
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Indexed& a, const Indexed& b) { return a.range.begin < b.range.begin; });
  return sorted;
}

[[gnu::cold, gnu::noinline]] absl::Status check_separate_unordered(const TensorList& list, const char* name) {
  const std::vector<Indexed> sorted = sorted_ranges(list);
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (!overlap(sorted[i - 1].range, sorted[i].range)) continue;
    const auto [low, high] = std::minmax(sorted[i - 1].index, sorted[i].index);
    return overlapping({name, high}, {name, low}, kSeparate);
  }
  return absl::OkStatus();
}

// No tensor of the list overlaps another one of it.
absl::Status check_separate(const TensorList& list, const char* name) {
  if (in_order(list)) return absl::OkStatus();
  return check_separate_unordered(list, name);
}

Range hull(const TensorList& list) {
  Range all;
  for (const TensorView& t : list) {
    const Range range = range_of(t);
    if (range.empty()) continue;
    if (all.empty()) all = range;
    all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
  }
  return all;
}

[[gnu::cold, gnu::noinline]] absl::Status check_separate_lists_sorted(const TensorList& inputs,
                                                                      const TensorList& outputs, bool but_own) {
  const std::vector<Indexed> sorted = sorted_ranges(outputs);
  for (int i = 0; i < inputs.size(); ++i) {
    const Range input = range_of(inputs[i]);
    if (input.empty()) continue;
    auto at = std::upper_bound(sorted.begin(), sorted.end(), input.begin,
                               [](uintptr_t begin, const Indexed& b) { return begin < b.range.end; });
    for (; at != sorted.end() && at->range.begin < input.end; ++at) {
      if (but_own && at->index == i) continue;
      return overlapping({"inputs", i}, {"outputs", at->index}, kSeparate);
    }
  }
  return absl::OkStatus();
}

// No input overlaps an output; `but_own`: of another index. Outputs are separate from each other.
absl::Status check_separate_lists(const TensorList& inputs, const TensorList& outputs, bool but_own) {
  if (!overlap(hull(inputs), hull(outputs))) return absl::OkStatus();
  return check_separate_lists_sorted(inputs, outputs, but_own);
}

// ---- lists ----

[[gnu::cold, gnu::noinline]] absl::Status wrong_count(const TensorList& list, const char* name, int want) {
  return invalid_argument(name, " has ", counted(list.size(), "tensor"), ", want ", want);
}

absl::Status check_single(const TensorList& list, const char* name) {
  if (list.size() != 1) return wrong_count(list, name, 1);
  return absl::OkStatus();
}

absl::Status check_per_member(const TensorList& list, const char* name, int size) {
  if (list.size() != size) {
    return invalid_argument(name, " has ", counted(list.size(), "tensor"), ", want size = ", size);
  }
  return absl::OkStatus();
}

// Every tensor of the list is good and like `model`.
absl::Status check_all_like(const TensorList& list, const char* name, const TensorView& model, Name model_name) {
  for (int i = 0; i < list.size(); ++i) {
    if (absl::Status s = check_like(list[i], {name, i}, model, model_name); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// ---- arguments ----

absl::Status check_root(const CollectiveCall& call, int size) {
  if (call.root < 0 || call.root >= size) {
    return invalid_argument("root is ", call.root, ", want 0 <= root < size = ", size);
  }
  return absl::OkStatus();
}

const char* supported_dtypes(ReduceOp op) {
  switch (op.kind()) {
    case ReduceOp::Kind::kSum:
    case ReduceOp::Kind::kProduct:
      return "any dtype but float8";
    case ReduceOp::Kind::kMin:
    case ReduceOp::Kind::kMax:
      return "any dtype but complex and float8";
    case ReduceOp::Kind::kAvg:
      return "a floating or complex dtype";
    case ReduceOp::Kind::kBand:
    case ReduceOp::Kind::kBor:
    case ReduceOp::Kind::kBxor:
      return "an integer dtype or bool";
    case ReduceOp::Kind::kPremulSum:
      return "a floating dtype";
  }
  return "";
}

[[gnu::cold, gnu::noinline]] absl::Status unsupported_reduction(ReduceOp op, DType dtype) {
  const bool is_float8 = dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2;
  return invalid_argument("reduce op ", op.name(), " has no kernel for ", sv(dtype_name(dtype)),
                          is_float8 ? " (float8 only moves)" : "", ", want ", supported_dtypes(op));
}

absl::Status check_reduction(const CollectiveCall& call, DType dtype) {
  if (call.reduce_op.kind() <= ReduceOp::Kind::kMax && call.order.kind <= ReduceOp::Order::Kind::kSeeded &&
      (dtype == DType::kFloat32 || dtype == DType::kFloat64)) [[likely]]
    return absl::OkStatus();
  if (static_cast<int>(call.reduce_op.kind()) >= kReduceOpCount) {
    return invalid_argument("reduce op has the unknown kind ", static_cast<int>(call.reduce_op.kind()));
  }
  if (call.order.kind > ReduceOp::Order::Kind::kSeeded) {
    return invalid_argument("order of reduction has the unknown kind ", static_cast<int>(call.order.kind));
  }
  if (!reduction_supported(call.reduce_op, dtype)) return unsupported_reduction(call.reduce_op, dtype);
  return absl::OkStatus();
}

// ---- parts of several rules ----

// inputs[0] and outputs[0] are one buffer, or two alike.
absl::Status check_in_place_pair(const CollectiveCall& call) {
  // The usual case, in few steps: the same sound tensor twice.
  if (call.inputs.size() == 1 && call.outputs.size() == 1) [[likely]] {
    const TensorView& input = call.inputs[0];
    const TensorView& output = call.outputs[0];
    if (input.data() == output.data() && input.data() != nullptr && input.numel() == output.numel() &&
        input.numel() > 0 && input.is_contiguous() && output.is_contiguous() && input.dtype() == output.dtype() &&
        input.device() == output.device()) [[likely]] {
      return absl::OkStatus();
    }
  }
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  if (absl::Status s = check_tensor(input, {"buffer"}); !s.ok()) return s;
  if (absl::Status s = check_like(output, {"output"}, input, {"buffer"}); !s.ok()) return s;
  if (absl::Status s = check_numel(output, {"output"}, input, {"buffer"}); !s.ok()) return s;
  return check_same_or_separate(output, {"output"}, input, {"buffer"});
}

// `big` is `size` times `part`; the part may lie in its place.
absl::Status check_big_and_part(const TensorView& big, Name big_name, const TensorView& part, Name part_name, int rank,
                                int size) {
  if (absl::Status s = check_tensor(part, part_name); !s.ok()) return s;
  if (absl::Status s = check_like(big, big_name, part, part_name); !s.ok()) return s;
  if (absl::Status s = check_product(big, big_name, size, part, part_name); !s.ok()) return s;
  return check_slice_or_separate(part, part_name, big, big_name, rank);
}

// `one` beside a list of `size` tensors, of which that of `rank` may be the same memory.
absl::Status check_one_and_list(const TensorView& one, Name one_name, const TensorList& list, const char* list_name,
                                int rank, int size) {
  if (absl::Status s = check_per_member(list, list_name, size); !s.ok()) return s;
  if (absl::Status s = check_all_like(list, list_name, one, one_name); !s.ok()) return s;
  if (absl::Status s = check_numel(list[rank], {list_name, rank}, one, one_name); !s.ok()) return s;
  const Range range = range_of(one);
  for (int i = 0; i < size; ++i) {
    if (!overlap(range, range_of(list[i]))) continue;
    if (i == rank && list[i].data() == one.data()) continue;
    return overlapping(one_name, {list_name, i}, i == rank ? kSeparateOrSame : kSeparate);
  }
  return absl::OkStatus();
}

[[gnu::cold, gnu::noinline]] absl::Status in_pair(int index, const absl::Status& status) {
  return invalid_argument("pair ", index, ": ", status.message());
}

// inputs and outputs of a coalesced form, pairwise.
absl::Status check_pairs(const CollectiveCall& call, bool inputs_are_big, int rank, int size) {
  if (call.inputs.empty() || call.inputs.size() != call.outputs.size()) {
    return invalid_argument("inputs has ", counted(call.inputs.size(), "tensor"), " and outputs ", call.outputs.size(),
                            ", want as many of both and at least 1");
  }
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorView& input = call.inputs[i];
    const TensorView& output = call.outputs[i];
    absl::Status s = inputs_are_big ? check_big_and_part(input, {"input"}, output, {"output"}, rank, size)
                                    : check_big_and_part(output, {"output"}, input, {"input"}, rank, size);
    if (!s.ok()) return in_pair(i, s);
    if (output.device() != call.outputs[0].device()) {
      return invalid_argument("outputs[", i, "] is on ", output.device().name(), ", want outputs[0]'s ",
                              call.outputs[0].device().name());
    }
  }
  if (absl::Status s = check_separate(call.outputs, "outputs"); !s.ok()) return s;
  return check_separate_lists(call.inputs, call.outputs, /*but_own=*/true);
}

// ---- splits ----

int64_t rows_of(const TensorView& t) { return t.sizes().empty() ? 0 : t.sizes()[0]; }
int64_t row_elements_of(const TensorView& t) {
  const int64_t rows = rows_of(t);
  return rows == 0 ? 0 : t.numel() / rows;
}

[[gnu::cold, gnu::noinline]] absl::Status wrong_total(const std::vector<int64_t>& splits, const char* splits_name,
                                                      const TensorView& t, Name name) {
  return invalid_argument(splits_name, " add up to ", absl::StrJoin(splits, " + "), ", want dimension 0 of ",
                          name.text(), " = ", rows_of(t));
}

absl::Status check_splits(const std::vector<int64_t>& splits, const char* splits_name, const TensorView& t, Name name,
                          int size) {
  if (t.sizes().empty()) return invalid_argument(name.text(), " has no dimension 0 to split: its shape is []");
  const int64_t rows = rows_of(t);
  if (splits.empty()) {
    if (rows % size != 0) {
      return invalid_argument(name.text(), " has ", counted(rows, "row"), " (dimension 0) and no ", splits_name,
                              ", want a multiple of size = ", size);
    }
    return absl::OkStatus();
  }
  if (splits.size() != static_cast<size_t>(size)) {
    return invalid_argument(splits_name, " has ", splits.size(), splits.size() == 1 ? " entry" : " entries",
                            ", want size = ", size);
  }
  int64_t total = 0;
  bool overflow = false;
  for (int i = 0; i < size; ++i) {
    const int64_t split = splits[static_cast<size_t>(i)];
    if (split < 0) return invalid_argument(splits_name, "[", i, "] is ", split, ", want 0 or more");
    overflow |= __builtin_add_overflow(total, split, &total);
  }
  if (overflow || total != rows) return wrong_total(splits, splits_name, t, name);
  return absl::OkStatus();
}

SplitRows split_rows(const std::vector<int64_t>& splits, const TensorView& t, int peer, int size) {
  return {.rows = splits.empty() ? rows_of(t) / size : splits[static_cast<size_t>(peer)],
          .row_elements = row_elements_of(t)};
}

// ---- point to point ----

[[gnu::cold, gnu::noinline]] absl::Status bad_peer(const CollectiveCall& call, int size, bool any_source) {
  // By the name that the parameter has: those of a recv may be any source.
  const char* const name = any_source ? "source" : "destination";
  return invalid_argument(name, " is ", call.peer, ", want 0 <= ", name, " < size = ", size,
                          any_source ? ", or recv_any()" : "");
}

absl::Status check_p2p(const CollectiveCall& call, const TensorList& list, const char* list_name, Name name, int size,
                       bool any_source) {
  if (call.peer < 0 || call.peer >= size) {
    if (!any_source || call.peer != CollectiveCall::kAnySource) return bad_peer(call, size, any_source);
  }
  if (call.tag < 0) return invalid_argument("tag is ", call.tag, ", want 0 or more");
  if (absl::Status s = check_single(list, list_name); !s.ok()) return s;
  return check_tensor(list[0], name);
}

}  // namespace

absl::Status check_broadcast(const CollectiveCall& call, int /*rank*/, int size) {
  if (absl::Status s = check_root(call, size); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  return check_tensor(call.outputs[0], {"buffer"});
}

absl::Status check_all_reduce(const CollectiveCall& call, int /*rank*/, int /*size*/) {
  if (absl::Status s = check_in_place_pair(call); !s.ok()) return s;
  return check_reduction(call, call.inputs[0].dtype());
}

absl::Status check_all_reduce_coalesced(const CollectiveCall& call, int /*rank*/, int /*size*/) {
  if (call.inputs.empty() || call.inputs.size() != call.outputs.size()) {
    return invalid_argument("buffers has ", counted(call.inputs.size(), "input"), " and ",
                            counted(call.outputs.size(), "output"), ", want as many of both and at least 1");
  }
  const TensorView& first = call.inputs[0];
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorView& input = call.inputs[i];
    const TensorView& output = call.outputs[i];
    if (absl::Status s = check_like(input, {"buffers", i}, first, {"buffers", 0}); !s.ok()) return s;
    if (absl::Status s = check_like(output, {"outputs", i}, first, {"buffers", 0}); !s.ok()) return s;
    if (absl::Status s = check_numel(output, {"outputs", i}, input, {"buffers", i}); !s.ok()) return s;
    if (absl::Status s = check_same_or_separate(output, {"outputs", i}, input, {"buffers", i}); !s.ok()) return s;
  }
  if (absl::Status s = check_separate(call.outputs, "buffers"); !s.ok()) return s;
  if (absl::Status s = check_separate_lists(call.inputs, call.outputs, /*but_own=*/true); !s.ok()) return s;
  return check_reduction(call, first.dtype());
}

absl::Status check_reduce(const CollectiveCall& call, int /*rank*/, int size) {
  if (absl::Status s = check_root(call, size); !s.ok()) return s;
  if (absl::Status s = check_in_place_pair(call); !s.ok()) return s;
  return check_reduction(call, call.inputs[0].dtype());
}

absl::Status check_all_gather(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  const TensorView& input = call.inputs[0];
  if (absl::Status s = check_tensor(input, {"input"}); !s.ok()) return s;
  if (absl::Status s = check_one_and_list(input, {"input"}, call.outputs, "outputs", rank, size); !s.ok()) return s;
  return check_separate(call.outputs, "outputs");
}

absl::Status check_all_gather_into_tensor(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  return check_big_and_part(call.outputs[0], {"output"}, call.inputs[0], {"input"}, rank, size);
}

absl::Status check_all_gather_into_tensor_coalesced(const CollectiveCall& call, int rank, int size) {
  return check_pairs(call, /*inputs_are_big=*/false, rank, size);
}

absl::Status check_gather(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_root(call, size); !s.ok()) return s;
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  const TensorView& input = call.inputs[0];
  if (absl::Status s = check_tensor(input, {"input"}); !s.ok()) return s;
  if (rank != call.root) {
    if (call.outputs.empty()) return absl::OkStatus();
    return invalid_argument("outputs has ", counted(call.outputs.size(), "tensor"), ", want none: only the root, ",
                            call.root, ", gathers");
  }
  if (absl::Status s = check_one_and_list(input, {"input"}, call.outputs, "outputs", rank, size); !s.ok()) return s;
  for (int i = 0; i < size; ++i) {
    if (absl::Status s = check_numel(call.outputs[i], {"outputs", i}, input, {"input"}); !s.ok()) return s;
  }
  return check_separate(call.outputs, "outputs");
}

absl::Status check_scatter(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_root(call, size); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  const TensorView& output = call.outputs[0];
  if (absl::Status s = check_tensor(output, {"output"}); !s.ok()) return s;
  if (rank != call.root) {
    if (call.inputs.empty()) return absl::OkStatus();
    return invalid_argument("inputs has ", counted(call.inputs.size(), "tensor"), ", want none: only the root, ",
                            call.root, ", scatters");
  }
  if (absl::Status s = check_one_and_list(output, {"output"}, call.inputs, "inputs", rank, size); !s.ok()) return s;
  for (int i = 0; i < size; ++i) {
    if (absl::Status s = check_numel(call.inputs[i], {"inputs", i}, output, {"output"}); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status check_reduce_scatter(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  const TensorView& output = call.outputs[0];
  if (absl::Status s = check_tensor(output, {"output"}); !s.ok()) return s;
  if (absl::Status s = check_one_and_list(output, {"output"}, call.inputs, "inputs", rank, size); !s.ok()) return s;
  return check_reduction(call, output.dtype());
}

absl::Status check_reduce_scatter_tensor(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  if (absl::Status s = check_big_and_part(input, {"input"}, output, {"output"}, rank, size); !s.ok()) return s;
  return check_reduction(call, output.dtype());
}

absl::Status check_reduce_scatter_tensor_coalesced(const CollectiveCall& call, int rank, int size) {
  if (absl::Status s = check_pairs(call, /*inputs_are_big=*/true, rank, size); !s.ok()) return s;
  for (int i = 0; i < call.outputs.size(); ++i) {
    if (absl::Status s = check_reduction(call, call.outputs[i].dtype()); !s.ok()) return in_pair(i, s);
  }
  return absl::OkStatus();
}

absl::Status check_all_to_all(const CollectiveCall& call, int /*rank*/, int size) {
  if (absl::Status s = check_per_member(call.inputs, "inputs", size); !s.ok()) return s;
  if (absl::Status s = check_per_member(call.outputs, "outputs", size); !s.ok()) return s;
  const TensorView& first = call.inputs[0];
  if (absl::Status s = check_all_like(call.inputs, "inputs", first, {"inputs", 0}); !s.ok()) return s;
  if (absl::Status s = check_all_like(call.outputs, "outputs", first, {"inputs", 0}); !s.ok()) return s;
  if (absl::Status s = check_separate(call.outputs, "outputs"); !s.ok()) return s;
  return check_separate_lists(call.inputs, call.outputs, /*but_own=*/false);
}

absl::Status check_all_to_all_single(const CollectiveCall& call, int /*rank*/, int size) {
  if (absl::Status s = check_single(call.inputs, "inputs"); !s.ok()) return s;
  if (absl::Status s = check_single(call.outputs, "outputs"); !s.ok()) return s;
  const TensorView& input = call.inputs[0];
  const TensorView& output = call.outputs[0];
  if (absl::Status s = check_tensor(input, {"input"}); !s.ok()) return s;
  if (absl::Status s = check_like(output, {"output"}, input, {"input"}); !s.ok()) return s;
  if (absl::Status s = check_splits(call.in_splits, "input_splits", input, {"input"}, size); !s.ok()) return s;
  if (absl::Status s = check_splits(call.out_splits, "output_splits", output, {"output"}, size); !s.ok()) return s;
  const int64_t in_row = row_elements_of(input);
  const int64_t out_row = row_elements_of(output);
  if (in_row != out_row && rows_of(input) != 0 && rows_of(output) != 0) {
    return invalid_argument("output has rows of ", counted(out_row, "element"), ", want input's ", in_row);
  }
  if (overlap(range_of(input), range_of(output))) return overlapping({"output"}, {"input"}, kSeparate);
  return absl::OkStatus();
}

absl::Status check_barrier(const CollectiveCall& call, int /*rank*/, int /*size*/) {
  if (!call.inputs.empty()) return wrong_count(call.inputs, "inputs", 0);
  if (!call.outputs.empty()) return wrong_count(call.outputs, "outputs", 0);
  return absl::OkStatus();
}

absl::Status check_send(const CollectiveCall& call, int /*rank*/, int size) {
  return check_p2p(call, call.inputs, "inputs", {"input"}, size, /*any_source=*/false);
}

absl::Status check_recv(const CollectiveCall& call, int /*rank*/, int size) {
  return check_p2p(call, call.outputs, "outputs", {"output"}, size, /*any_source=*/true);
}

absl::Status check_new_group(const CollectiveCall& call, int /*rank*/, int size) {
  if (call.way.request == nullptr) return absl::OkStatus();
  if (call.op == OpType::kSplitGroup) {
    if (call.way.request->color >= GroupRequest::kNoColor) return absl::OkStatus();
    return invalid_argument("color is ", call.way.request->color,
                            ", want 0 or more, or kNoColor = ", GroupRequest::kNoColor);
  }
  if (call.way.request->kind != GroupRequest::Kind::kRanks) return absl::OkStatus();
  const std::vector<int>& ranks = call.way.request->ranks;  // ascending
  if (ranks.empty()) return invalid_argument("ranks is empty, want at least one");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size)
      return invalid_argument("ranks has ", ranks[i], ", want 0 <= rank < size = ", size);
    if (i > 0 && ranks[i] == ranks[i - 1]) return invalid_argument("ranks has ", ranks[i], " twice, want each once");
  }
  return absl::OkStatus();
}

SplitRows rows_sent(const CollectiveCall& call, int peer, int size) {
  return split_rows(call.in_splits, call.inputs[0], peer, size);
}

SplitRows rows_expected(const CollectiveCall& call, int peer, int size) {
  return split_rows(call.out_splits, call.outputs[0], peer, size);
}

}  // namespace rankloom::internal
