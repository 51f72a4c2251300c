#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ops/op_table.h"
#include "collectives/records/call_record_state.h"
#include "collectives/records/trace_text.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#include "world/run_data.h"
#include "world/run_file.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr size_t kMostCalls = size_t{1} << 21;  // of all ranks together, as in other run files

// The calls of records as the data of a run whose ranks are lanes.
class LanesOfRecords {
 public:
  explicit LanesOfRecords(const std::vector<std::shared_ptr<CallRecord>>& records)
      : records_(records), fake_(data_.fake.emplace(RunData::FakeWorld())) {}

  RunReport report() {
    for (const std::shared_ptr<CallRecord>& record : records_) make_lanes(*record);
    const size_t most = std::max<size_t>(1, kMostCalls / std::max<size_t>(1, records_.size()));
    for (size_t r = 0; r < records_.size(); ++r) {
      add_calls(r, most);
      add_totals(r);
    }
    RunReport made;
    made.outcomes.resize(fake_.lanes.size());
    for (RunReport::Outcome& outcome : made.outcomes) outcome.state = RunReport::Outcome::State::kReturned;
    made.engine = made.schedule = "none";
    made.kept = std::make_shared<RunData>(std::move(data_));
    return made;
  }

 private:
  // One for the computation and one for each group that was called. The other members of a group are not there.
  void make_lanes(const CallRecord& record) {
    const int rank = record.global_rank();
    fake_.world_size = std::max(fake_.world_size, record.world_size());
    std::vector<int>& lanes = lanes_.emplace_back(record.groups().size() + 1, -1);
    for (size_t i = 0; i < record.size(); ++i) {
      const CallRecordState& state = CallRecordState::of(record);
      const CallRecordState::Kind& kind = state.kinds[state.entry(i).kind];
      lanes[kind.is_compute() ? 0 : static_cast<size_t>(kind.group()) + 1] = 0;
    }
    for (size_t g = 0; g < lanes.size(); ++g) {
      if (lanes[g] < 0) continue;
      const int lane = lanes[g] = static_cast<int>(fake_.lanes.size());
      RunData::GroupData group = {.id = lane,
                                  .name = "compute",
                                  .description = "computation",
                                  .ranks = {},
                                  .first = lane,
                                  .stride = 1,
                                  .size = 1,
                                  .of = 1};
      std::string label = "compute";
      if (g > 0) {
        const CallRecord::GroupInfo& info = record.groups()[g - 1];
        label = info.dim.empty() ? absl::StrCat("group ", info.name()) : info.dim;
        group.name = info.name();
        group.description = info.group->description();
        group.of = info.group->size();
        lane_of_.try_emplace({rank, info.name()}, lane);
      }
      fake_.lanes.push_back(absl::StrCat(rank, " ", label));
      data_.groups.push_back(std::move(group));
    }
    data_.ranks.resize(fake_.lanes.size());
  }

  uint32_t add_kind(const CallRecord::Call& call, int lane) {
    RunData::Kind kind;
    kind.group = lane;  // the lane's number is that of its group
    if (call.is_compute) {
      kind.op = fake_.names.emplace_back(call.name).c_str();
      kind.code = {"", 0};
      kind.is_p2p = true;  // nobody else takes part
      kind.dtype = static_cast<uint8_t>(DType::kFloat32);
    } else {
      kind.op = op_row(call.op).name;
      kind.code = call.code;
      kind.is_p2p = call.op == OpType::kSend || call.op == OpType::kRecv;
      kind.root = call.root;
      kind.tag = call.tag;
      kind.dtype = static_cast<uint8_t>(internal::dtype_of(call));
      kind.inputs = static_cast<uint32_t>(call.inputs.size());
      kind.outputs = static_cast<uint32_t>(call.outputs.size());
      kind.wire = call.ring.bytes;
      for (const auto* const list : {&call.inputs, &call.outputs}) {
        for (const CallRecord::Call::Tensor& tensor : *list) kind.shapes.add(tensor.sizes.data(), tensor.sizes.size());
      }
      if (!call.in_splits.empty() || !call.out_splits.empty()) {
        for (const auto* const splits : {&call.in_splits, &call.out_splits})
          kind.shapes.add(splits->data(), splits->size());
      }
    }
    data_.kinds.push_back(std::move(kind));
    return static_cast<uint32_t>(data_.kinds.size() - 1);
  }

  void add_calls(size_t number, size_t most) {
    const CallRecord& record = *records_[number];
    const CallRecordState& state = CallRecordState::of(record);
    std::map<uint32_t, uint32_t> kinds;  // of the record, of the file
    const size_t first = record.size() - std::min(record.size(), most);
    for (size_t i = 0; i < record.size(); ++i) {
      const CallRecordState::Entry& entry = state.entry(i);
      const CallRecordState::Kind& of = state.kinds[entry.kind];
      const int lane = lanes_[number][of.is_compute() ? 0 : static_cast<size_t>(of.group()) + 1];
      RunData::Rank& to = data_.ranks[static_cast<size_t>(lane)];
      ++to.made;
      if (i < first) continue;
      const auto [kind, added] = kinds.try_emplace(entry.kind, 0);
      const CallRecord::Call call = state.call_at(i);
      if (added) kind->second = add_kind(call, lane);
      const bool ended = entry.duration_ns >= 0;
      to.calls.push_back({.kind = kind->second,
                          .state = ended ? FlightEntry::State::kCompleted : FlightEntry::State::kScheduled,
                          .peer = call.is_compute ? -1 : lane_of_peer(record, call),
                          .seq = call.is_compute ? to.made : entry.seq,
                          .issued_ns = entry.issued_ns,
                          .arrived_ns = entry.start_ns,
                          .ended_ns = ended ? absl::ToInt64Nanoseconds(call.end()) : -1});
    }
  }

  // The lane of the other side of a message, if its rank was traced; -1: none.
  int lane_of_peer(const CallRecord& record, const CallRecord::Call& call) const {
    if (call.peer < 0) return -1;
    const CallRecord::GroupInfo& info = record.groups()[static_cast<size_t>(call.group)];
    const auto at = lane_of_.find({info.group->global_rank(call.peer), info.name()});
    return at == lane_of_.end() ? -1 : at->second;
  }

  void add_totals(size_t number) {
    const CallRecord& record = *records_[number];
    const CallRecordState& state = CallRecordState::of(record);
    RunData::FakeWorld::Rank rank = {.rank = record.global_rank(),
                                     .calls = record.calls(),
                                     .compute_ns = 0,
                                     .end_ns = absl::ToInt64Nanoseconds(record.end()),
                                     .peak_buffer_bytes = record.peak_buffer_bytes(),
                                     .totals = {}};
    for (size_t i = 0; i < record.size(); ++i) {
      const CallRecordState::Entry& entry = state.entry(i);
      if (!state.kinds[entry.kind].is_compute()) continue;
      // Up to the end of time: a program may compute forever.
      rank.compute_ns += std::min(entry.duration_ns, std::numeric_limits<int64_t>::max() - rank.compute_ns);
    }
    for (const CallRecord::Totals& sum : record.totals()) {
      rank.totals.push_back({.op = op_row(sum.op).name,
                             .group = lanes_[number][static_cast<size_t>(sum.group) + 1],
                             .calls = sum.calls,
                             .payload = sum.payload,
                             .ring_bytes = sum.ring.bytes,
                             .tree_bytes = sum.tree.bytes,
                             .time_ns = absl::ToInt64Nanoseconds(sum.time)});
    }
    data_.end_ns = std::max(data_.end_ns, rank.end_ns);
    fake_.ranks.push_back(std::move(rank));
  }

  const std::vector<std::shared_ptr<CallRecord>>& records_;
  RunData data_;
  RunData::FakeWorld& fake_;
  std::vector<std::vector<int>> lanes_;                 // [record][group + 1]; 0: the computation; -1: was not called
  std::map<std::pair<int, std::string>, int> lane_of_;  // by rank and name of the group
};

}  // namespace

std::string traces::run_text(const std::vector<std::shared_ptr<CallRecord>>& ranks, CodeSite code) {
  require_records(ranks, "run_text", code);
  return internal::run_file_text(LanesOfRecords(ranks).report());
}

void traces::write_run(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view path, CodeSite code) {
  require_records(ranks, "write_run", code);
  internal::write_file(path, traces::run_text(ranks, code), "write_run", code);
}

}  // namespace rankloom
