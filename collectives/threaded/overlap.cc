#include "collectives/threaded/overlap.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// The bytes of a tensor; empty: it has none.
OpenOutputs::Range range_of(const TensorView& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  return {begin, begin + tensor.bytes()};
}

void append_outputs(const CollectiveCall& call, int rank, std::vector<OpenOutputs::Range>* ranges) {
  for (const CollectiveCall& part : call.parts) append_outputs(part, rank, ranges);
  if (!writes_outputs(call, rank)) return;
  for (const TensorView& output : call.outputs) {
    if (output.bytes() > 0) ranges->push_back(range_of(output));
  }
}

// Not inlined: few calls have lists.
[[gnu::noinline]] bool open_many(OpenOutputs& list, WorkState& work, const CollectiveCall& call, int rank,
                                 std::string* other) {
  std::vector<OpenOutputs::Range> ranges;
  append_outputs(call, rank, &ranges);
  return ranges.empty() || list.add(work, std::move(ranges), other);
}

void append_inputs(const CollectiveCall& call, int rank, std::vector<OpenOutputs::Range>* ranges) {
  for (const CollectiveCall& part : call.parts) append_inputs(part, rank, ranges);
  const auto append = [ranges](const TensorList& list) {
    for (const TensorView& tensor : list) {
      if (tensor.bytes() > 0) ranges->push_back(range_of(tensor));
    }
  };
  append(call.inputs);
  if (op_row(call.op).writes == Writes::kOthers && !writes_outputs(call, rank))
    append(call.outputs);  // a broadcast's source
}

// Which tensors of a call meet the outputs of one that is open, `other`; `which` is null: none do.
struct Overlap {
  const char* which = nullptr;
  std::string other;
};

// Of calls beside that of `work`. Not inlined: most ranks have one call on its way at a time.
[[gnu::noinline]] void read_beside(const OpenOutputs& list, const OpenCall& work, const CollectiveCall& call, int rank,
                                   Overlap* overlap) {
  std::vector<OpenOutputs::Range> ranges;
  append_inputs(call, rank, &ranges);
  if (list.written_beside(work, ranges, &overlap->other))
    overlap->which = ranges.size() == 1 ? "its input overlaps the output" : "one of its inputs overlaps the output";
}

// Takes note of where the call of `work` writes. False: an open call of its rank writes there, or to what this one
// reads.
bool open_outputs(RankState& rank, MemberWork& work, int group_rank, Overlap* overlap) {
  OpenOutputs& list = rank.open_outputs();
  const CollectiveCall& call = work.call();
  if (!call.outputs.empty() && writes_outputs(call, group_rank)) {
    work.outputs_open_in(&list);
    if (call.outputs.size() == 1) work.memo()->writes = range_of(call.outputs[0]);
    const bool apart = call.outputs.size() > 1
                           ? open_many(list, work, call, group_rank, &overlap->other)
                           : call.outputs[0].bytes() == 0 || list.add(work, range_of(call.outputs[0]), &overlap->other);
    if (!apart) [[unlikely]] {
      overlap->which = call.outputs.size() == 1 ? "its output overlaps that" : "one of its outputs overlaps that";
      return false;
    }
  }
  if (list.others(work)) [[unlikely]]
    read_beside(list, work, call, group_rank, overlap);
  return overlap->which == nullptr;
}

constexpr std::string_view kOwnOutputs = "want outputs of their own";

// `who`: "rank 1, group 0, recv from rank 0: ".
[[gnu::noinline]] absl::Status refuse_overlap(std::string_view who, const Overlap& overlap) {
  return invalid_argument(sv(who), overlap.which, " of ", overlap.other, ", which this rank has not waited for, ",
                          sv(kOwnOutputs), " until wait()");
}

// OK, if no two parts of a coalesced call write to one byte, and none reads what another writes.
absl::Status look_for_common_bytes(const CollectiveCall& call, int rank, std::string_view who) {
  struct Output {
    OpenOutputs::Range range;
    const CollectiveCall* part;
  };
  const auto text = [](const CollectiveCall& part) {
    return absl::StrCat(op_row(part.op).name, site_place(Site{.code = part.code}));
  };
  const auto refused = [&](const char* what, const CollectiveCall& first, const char* how,
                           const CollectiveCall& second) {
    return invalid_argument(sv(who), what, text(first), how, text(second), ", a call of the same coalesced call, ",
                            sv(kOwnOutputs));
  };
  std::vector<Output> outputs;
  for (const CollectiveCall& part : call.parts) {
    if (!writes_outputs(part, rank)) continue;
    for (const TensorView& tensor : part.outputs) {
      if (tensor.bytes() > 0) outputs.push_back({range_of(tensor), &part});
    }
  }
  std::stable_sort(outputs.begin(), outputs.end(),
                   [](const Output& a, const Output& b) { return a.range.begin < b.range.begin; });
  for (size_t i = 1; i < outputs.size(); ++i) {
    const Output& first = outputs[i - 1];
    const Output& second = outputs[i];
    if (second.range.begin < first.range.end)
      return refused("the output of ", *first.part, " overlaps that of ", *second.part);
  }
  std::vector<OpenOutputs::Range> inputs;
  for (const CollectiveCall& part : call.parts) {
    inputs.clear();
    append_inputs(part, rank, &inputs);
    for (const OpenOutputs::Range input : inputs) {
      // Outputs share no byte, so they end in the order in which they begin.
      auto output = std::partition_point(outputs.begin(), outputs.end(),
                                         [input](const Output& o) { return o.range.end <= input.begin; });
      for (; output != outputs.end() && output->range.begin < input.end; ++output) {
        if (output->part != &part) return refused("the input of ", part, " overlaps the output of ", *output->part);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Not inlined: its locals would be part of every call's stack.
[[gnu::noinline]] absl::Status open_beside(RankState& rank, MemberWork& work, int group_rank,
                                           absl::FunctionRef<std::string()> who) {
  Overlap overlap;
  if (open_outputs(rank, work, group_rank, &overlap)) return absl::OkStatus();
  absl::Status refused = refuse_overlap(who(), overlap);
  work.complete(refused);
  return refused;
}

absl::StatusOr<PartRanges> separate_parts(const CollectiveCall& call, int group_rank, std::string_view who) {
  if (absl::Status apart = look_for_common_bytes(call, group_rank, who); !apart.ok()) return apart;
  PartRanges ranges;
  append_outputs(call, group_rank, &ranges.outputs);
  append_inputs(call, group_rank, &ranges.inputs);
  return ranges;
}

absl::Status open_parts(RankState& rank, MemberWork& whole, PartRanges ranges, std::string_view who) {
  OpenOutputs& list = rank.open_outputs();
  Overlap overlap;
  whole.outputs_open_in(&list);
  if (!ranges.outputs.empty() && !list.add(whole, std::move(ranges.outputs), &overlap.other)) {
    overlap.which = "one of its outputs overlaps that";
  } else if (list.written_beside(whole, ranges.inputs, &overlap.other)) {
    overlap.which = "one of its inputs overlaps the output";
  }
  if (overlap.which == nullptr) return absl::OkStatus();
  absl::Status refused = refuse_overlap(who, overlap);
  whole.complete(refused);
  return refused;
}

void report_freed_memory(const CollectiveCall& call, int group_rank) {
  const auto look = [](const std::vector<OpenOutputs::Range>& ranges, void (*report)(void*, size_t)) {
    for (const OpenOutputs::Range& range : ranges) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): a range is two addresses
      void* const at = __asan_region_is_poisoned(reinterpret_cast<void*>(range.begin), range.end - range.begin);
      if (at != nullptr && report != nullptr) report(at, 1);
    }
  };
  std::vector<OpenOutputs::Range> read;
  append_inputs(call, group_rank, &read);
  look(read, __asan_report_load_n);
  std::vector<OpenOutputs::Range> written;
  append_outputs(call, group_rank, &written);
  look(written, __asan_report_store_n);
}

}  // namespace rankloom::internal
