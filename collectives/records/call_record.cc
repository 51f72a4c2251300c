#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "collectives/ops/op_table.h"
#include "collectives/records/call_record_state.h"
#include "rankloom/records.h"
#include "sim/base/saturating.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

int64_t sum_of_bytes(const std::vector<CallRecord::Call::Tensor>& tensors) {
  int64_t sum = 0;
  for (const CallRecord::Call::Tensor& tensor : tensors) sum = saturating_add(sum, tensor.bytes());
  return sum;
}

// "1.25 GB"; 999,999 bytes, which rounded would be a thousand kB, are "1.00 MB".
std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= (unit == 0 ? 1000 : 999.995) && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

}  // namespace

int64_t CallRecord::Call::Tensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : sizes) product = saturating_mul(product, size);  // of which one may be 0
  return product;
}

int64_t CallRecord::Call::Tensor::bytes() const {
  return saturating_mul(numel(), static_cast<int64_t>(dtype_size(dtype)));
}

int64_t CallRecord::Call::input_bytes() const { return sum_of_bytes(inputs); }
int64_t CallRecord::Call::output_bytes() const { return sum_of_bytes(outputs); }

CallRecord::CallRecord(CostModel model) : state_(new CallRecordState(std::move(model))) {}
CallRecord::~CallRecord() = default;

void CallRecord::compute(absl::Duration duration, std::string_view name) {
  state_->used().compute(absl::ToInt64Nanoseconds(duration), name);
}
void CallRecord::clear() { state_->used().clear(); }

size_t CallRecord::size() const { return state_->used().size; }
CallRecord::Call CallRecord::operator[](size_t index) const { return state_->used().call_at(index); }
const std::vector<CallRecord::GroupInfo>& CallRecord::groups() const { return state_->used().groups; }
absl::Duration CallRecord::now() const { return absl::Nanoseconds(state_->used().now_ns); }
absl::Duration CallRecord::end() const { return absl::Nanoseconds(state_->used().end_ns); }
int64_t CallRecord::peak_buffer_bytes() const { return state_->used().peak_bytes; }
int64_t CallRecord::live_buffer_bytes() const { return state_->used().live_buffer_bytes(); }
size_t CallRecord::memory_bytes() const { return state_->used().memory_bytes(); }

int CallRecord::global_rank() const {
  return state_->used().groups.empty() ? -1
                                       : state_->used().groups[0].group->global_rank(state_->used().groups[0].rank);
}
int CallRecord::world_size() const {
  return state_->used().groups.empty() ? 0 : state_->used().groups[0].group->size();
}

std::vector<CallRecord::Totals> CallRecord::totals() const {
  std::map<std::pair<int, OpType>, CallRecord::Totals> sums;
  for (const CallRecordState::Kind& kind : state_->used().kinds) {
    if (kind.is_compute() || kind.calls == 0) continue;
    const int group = kind.group();
    const OpType op = kind.op();
    CallRecord::Totals& sum = sums[{group, op}];
    sum.op = op;
    sum.group = group;
    sum.calls += kind.calls;
    sum.payload = saturating_add(sum.payload, saturating_mul(kind.payload, kind.calls));
    sum.ring.steps = saturating_add(sum.ring.steps, saturating_mul(kind.ring.steps, kind.calls));
    sum.ring.bytes = saturating_add(sum.ring.bytes, saturating_mul(kind.ring.bytes, kind.calls));
    sum.tree.steps = saturating_add(sum.tree.steps, saturating_mul(kind.tree.steps, kind.calls));
    sum.tree.bytes = saturating_add(sum.tree.bytes, saturating_mul(kind.tree.bytes, kind.calls));
    sum.time += absl::Nanoseconds(kind.total_ns);
  }
  std::vector<CallRecord::Totals> all;
  for (const auto& [key, sum] : sums) all.push_back(sum);
  return all;
}

int64_t CallRecord::calls() const {
  int64_t count = 0;
  for (const CallRecordState::Kind& kind : state_->used().kinds) count += kind.calls;
  return count;
}

int64_t CallRecord::calls(OpType op) const {
  int64_t count = 0;
  for (const CallRecord::Totals& sum : totals()) count += sum.op == op ? sum.calls : 0;
  return count;
}

int64_t CallRecord::calls(OpType op, std::string_view group) const {
  int64_t count = 0;
  for (const CallRecord::Totals& sum : totals()) {
    const GroupInfo& info = state_->used().groups[static_cast<size_t>(sum.group)];
    if (sum.op != op) continue;
    if (info.label() == group || info.name() == group || info.group->description() == group) count += sum.calls;
  }
  return count;
}

std::string CallRecord::text() const {
  std::string text;
  for (const CallRecord::Totals& sum : totals()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", sum.calls, " x ", op_row(sum.op).name, " on ",
                    state_->used().groups[static_cast<size_t>(sum.group)].label());
  }
  return text.empty() ? "no calls" : text;
}

std::string CallRecord::table() const {
  std::string text = absl::StrFormat("%-12s %9s  %-32s %8s %11s %11s %11s %12s\n", "group", "ranks", "operation",
                                     "calls", "payload", "ring", "tree", "time");
  for (const CallRecord::Totals& sum : totals()) {
    const GroupInfo& info = state_->used().groups[static_cast<size_t>(sum.group)];
    absl::StrAppendFormat(&text, "%-12s %9d  %-32s %8d %11s %11s %11s %12s\n", info.label(), info.group->size(),
                          op_row(sum.op).name, sum.calls, bytes_text(sum.payload), bytes_text(sum.ring.bytes),
                          bytes_text(sum.tree.bytes), absl::StrFormat("%.3f ms", absl::ToDoubleMilliseconds(sum.time)));
  }
  return text;
}

// ---- real worlds

namespace {

OpType op_named(absl::string_view name) {
  for (const OpRow& row : kOps) {
    if (name == row.name) return row.op;
  }
  return OpType::kCoalesced;
}

// The call as far as the flight recorder knows it.
CollectiveCall call_of(const FlightEntry& entry) {
  CollectiveCall call;
  call.op = op_named(entry.op);
  call.seq = entry.seq;
  call.root = entry.root;
  call.peer = entry.peer;
  call.tag = entry.tag;
  call.code = entry.code;
  size_t at = 0;
  std::vector<TensorView> lists[2];
  for (uint32_t i = 0; i < entry.inputs + entry.outputs; ++i) {
    const std::vector<int64_t> sizes = entry.shapes.take(&at);
    lists[i < entry.inputs ? 0 : 1].push_back(
        TensorView::meta(Dims(sizes.begin(), sizes.end()), static_cast<DType>(entry.dtype)));
  }
  call.inputs = TensorList(std::move(lists[0]));
  call.outputs = TensorList(std::move(lists[1]));
  if (at < entry.shapes.size()) {
    call.in_splits = entry.shapes.take(&at);
    call.out_splits = entry.shapes.take(&at);
  }
  return call;
}

}  // namespace

std::shared_ptr<CallRecord> CallRecord::of_rank(RankContext& rank) {
  auto made = std::make_shared<CallRecord>();
  CallRecordState* const record = made->state_.get();
  RankState& state = state_of(rank);
  WorldState& world = state.world();
  if (StepRecord* const steps = world.scheduler().record(); steps != nullptr && Task::current() != nullptr)
    steps->uncovered("flight records, which tell of all calls so far");
  const FlightEntries entries = state.recorder().entries();
  record->lacks_first = !entries.empty() && entries[0].record_id > 0;
  const std::vector<std::shared_ptr<const Group>>& groups = entries.groups();
  std::map<const Group*, int> indices;
  record->add_group(world.world_group(), rank.rank());
  indices[world.world_group().get()] = 0;
  const int64_t begin_ns = world.start_ns();
  // (end, index) of calls on their way, the next to end first. A flight recorder knows of no waits: a call that had
  // ended before the program came to its next call counts as waited for.
  std::priority_queue<std::pair<int64_t, size_t>, std::vector<std::pair<int64_t, size_t>>, std::greater<>> open;
  for (const FlightEntry& from : entries) {
    const CollectiveCall call = call_of(from);
    if (call.op == OpType::kCoalesced || call.op == OpType::kNewGroup || call.op == OpType::kSplitGroup) continue;
    auto at = indices.find(from.group);
    if (at == indices.end()) {
      const auto known =
          std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.get() == from.group; });
      if (known == groups.end()) continue;
      at = indices.emplace(from.group, record->add_group(*known, (*known)->group_rank(rank.rank()))).first;
    }
    record->now_ns = from.created_ns - begin_ns;
    const uint32_t index = record->kind_of(call, at->second);
    CallRecordState::Kind& kind = record->kinds[index];
    CallRecordState::Entry& added = record->append(index, from.seq);
    added.start_ns = (from.started_ns >= 0 ? from.started_ns : from.created_ns) - begin_ns;
    added.duration_ns = from.completed_ns >= 0 ? from.completed_ns - begin_ns - added.start_ns : -1;
    ++kind.calls;
    kind.total_ns = saturating_add(kind.total_ns, std::max<int64_t>(0, added.duration_ns));
    record->end_ns = std::max(record->end_ns, added.start_ns + std::max<int64_t>(0, added.duration_ns));
    const size_t number = record->size - 1;
    for (; !open.empty() && open.top().first <= added.issued_ns; open.pop()) {
      CallRecordState::Entry& ended = record->entry(open.top().second);
      ended.waited_before = static_cast<uint32_t>(number);
      record->live_bytes -= record->kinds[ended.kind].buffer_bytes;
    }
    if (from.completed_ns >= 0) open.emplace(from.completed_ns - begin_ns, number);
    record->live_bytes += kind.buffer_bytes;
    record->peak_bytes = std::max(record->peak_bytes, at_most_int64(record->live_bytes));
  }
  for (; !open.empty(); open.pop())
    record->live_bytes -= record->kinds[record->entry(open.top().second).kind].buffer_bytes;
  record->now_ns = absl::ToInt64Nanoseconds(rank.now());
  return made;
}

std::vector<std::shared_ptr<CallRecord>> CallRecord::of_world(World& world) {
  std::vector<std::shared_ptr<CallRecord>> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(of_rank(world.context(rank)));
  return ranks;
}

}  // namespace rankloom
