#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/records/call_record_state.h"
#include "collectives/records/trace_text.h"
#include "rankloom/records.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr size_t kListed = 30;  // longer lists are cut, as Kineto does

// `scope`: empty if the call was made in none.
std::string arguments(const CallRecord& record, const CallRecord::Call& call, std::string_view scope) {
  const CallRecord::GroupInfo& info = record.groups()[static_cast<size_t>(call.group)];
  const Group& group = *info.group;
  std::string text = absl::StrCat(
      "\"Collective name\": ", json_string(internal::torch_collective(call.op)),
      ", \"dtype\": ", json_string(internal::torch_dtype(internal::dtype_of(call))),
      ", \"In msg nelems\": ", internal::input_elements(call),
      ", \"Out msg nelems\": ", internal::output_elements(call),
      ", \"In split size\": ", json_string(json_list(call.in_splits, kListed)),
      ", \"Out split size\": ", json_string(json_list(call.out_splits, kListed)),
      ", \"Global rank start\": ", group.global_rank(0), ", \"Global rank stride\": ", internal::rank_stride(group),
      ", \"Group size\": ", group.size(), ", \"Process Group Name\": ", json_string(group.name()),
      ", \"Process Group Description\": ", json_string(group.description()), ", \"Process Group Ranks\": ",
      json_string(json_list(internal::first_ranks(group, static_cast<int>(kListed) + 1), kListed)),
      ", \"Rank\": ", record.global_rank());
  if (call.op == OpType::kSend || call.op == OpType::kRecv) {
    const int peer = call.peer >= 0 ? group.global_rank(call.peer) : -1;
    absl::StrAppend(&text, ", \"Src Rank\": ", call.op == OpType::kSend ? record.global_rank() : peer,
                    ", \"Dst Rank\": ", call.op == OpType::kSend ? peer : record.global_rank());
  } else if (call.root >= 0) {
    absl::StrAppend(&text, ", \"Root rank\": ", group.global_rank(call.root));
  }
  absl::StrAppend(&text, ", \"Seq\": ", call.seq, ", \"Ring bytes\": ", call.ring.bytes,
                  ", \"Tree bytes\": ", call.tree.bytes,
                  ", \"Call site\": ", json_string(absl::StrCat(sv(base_name(call.code.file)), ":", call.code.line)));
  if (!scope.empty()) absl::StrAppend(&text, ", \"Module\": ", json_string(scope));
  return text;
}

// The key that members of one call share. Of a send and its recv: the group, -1, sender, receiver, tag, the how many-th
// of these; of a collective: the group, the sequence number, -1, the operation, 0, the how many-th of these.
using CallKey = std::tuple<int, int64_t, int, int, int, int64_t>;

struct Bound {  // where an arrow begins or ends
  int pid;
  int tid;
  absl::Duration start;
};

class TimelineWriter {
 public:
  std::string write(const std::vector<std::shared_ptr<CallRecord>>& ranks) {
    single_ = ranks.size() == 1;  // without an arrow
    for (const std::shared_ptr<CallRecord>& record : ranks) write_rank(*record);
    write_arrows();
    int world_size = 0;
    for (const std::shared_ptr<CallRecord>& record : ranks) world_size = std::max(world_size, record->world_size());
    // As Kineto names what a trace is of; of several ranks, the first.
    const int rank = ranks.empty() ? -1 : ranks.front()->global_rank();
    const std::string of = absl::StrCat("{\"rank\": ", rank, ", \"world_size\": ", world_size, "}");
    return absl::StrCat("{\"displayTimeUnit\": \"ns\", \"distributedInfo\": ", of, ", \"traceEvents\": [", events_,
                        "\n]}\n");
  }

 private:
  void event(const std::string& fields) { absl::StrAppend(&events_, events_.empty() ? "\n{" : ",\n{", fields, "}"); }

  void name(const char* kind, int pid, int tid, std::string_view what) {
    event(absl::StrCat("\"name\": \"", kind, "\", \"ph\": \"M\", \"pid\": ", pid, ", \"tid\": ", tid,
                       ", \"args\": {\"name\": ", json_string(what), "}"));
  }

  void write_rank(const CallRecord& record) {
    const int pid = record.global_rank();
    name("process_name", pid, 0, absl::StrCat("rank ", pid));
    name("thread_name", pid, 0, "compute");
    for (size_t g = 0; g < record.groups().size(); ++g) {
      name("thread_name", pid, static_cast<int>(g) + 1, absl::StrCat("group ", record.groups()[g].label()));
    }
    std::vector<int> groups;  // numbers of those of the record
    for (const CallRecord::GroupInfo& info : record.groups()) groups.push_back(number_of(*info.group));
    std::map<CallKey, int64_t> numbers;
    for (size_t i = 0; i < record.size(); ++i) {
      const CallRecord::Call call = record[i];
      const int tid = call.is_compute ? 0 : call.group + 1;
      const bool ended = call.duration >= absl::ZeroDuration();
      std::string fields =
          absl::StrCat("\"name\": ", json_string(call.name), ", \"cat\": \"",
                       call.is_compute ? "compute" : "collective", "\", \"ph\": \"", ended ? "X" : "B",
                       "\", \"pid\": ", pid, ", \"tid\": ", tid, ", \"ts\": ", json_micros(call.start));
      if (ended) absl::StrAppend(&fields, ", \"dur\": ", json_micros(call.duration));
      if (!call.is_compute) {
        const std::string_view scope = CallRecordState::of(record).scope_at(i);
        absl::StrAppend(&fields, ", \"args\": {", arguments(record, call, scope), "}");
      }
      event(fields);
      if (call.is_compute) continue;
      const Group& group = *record.groups()[static_cast<size_t>(call.group)].group;
      const bool send = call.op == OpType::kSend;
      // Parts of a coalesced call have one number: their place among those of the operation tells them apart.
      if (single_) continue;
      const int group_number = groups[static_cast<size_t>(call.group)];
      CallKey key = {group_number, call.seq, -1, static_cast<int>(call.op), 0, 0};
      if (send || call.op == OpType::kRecv) {
        // A record that has lost its first calls does not tell the how many-th a message is.
        if (CallRecordState::of(record).lacks_first) continue;
        const int peer = call.peer >= 0 ? group.global_rank(call.peer) : -1;
        key = {group_number, -1, send ? pid : peer, send ? peer : pid, call.tag, 0};
      }
      std::get<5>(key) = numbers[key]++;
      calls_[key].push_back({pid, tid, call.start});
    }
  }

  // Of a group, by its name and ranks: others may have the name, and records of several worlds share no object.
  int number_of(const Group& group) {
    if (single_) return 0;
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(group.global_rank(rank));
    const int next = static_cast<int>(numbers_.size());
    return numbers_.try_emplace({group.name(), std::move(ranks)}, next).first->second;
  }

  void write_arrows() {
    int64_t id = 0;
    for (const auto& [key, members] : calls_) {
      if (members.size() < 2) continue;
      size_t first = 0;
      for (size_t i = 1; i < members.size(); ++i) {
        if (members[i].start < members[first].start) first = i;
      }
      for (size_t i = 0; i < members.size(); ++i) {
        if (i == first) continue;
        ++id;
        arrow("s", id, members[first]);
        arrow("f", id, members[i]);
      }
    }
  }

  void arrow(const char* phase, int64_t id, const Bound& at) {
    event(absl::StrCat("\"name\": \"members\", \"cat\": \"collective\", \"ph\": \"", phase,
                       "\", \"bp\": \"e\", \"id\": ", id, ", \"pid\": ", at.pid, ", \"tid\": ", at.tid,
                       ", \"ts\": ", json_micros(at.start)));
  }

  std::string events_;
  bool single_ = false;
  std::map<std::pair<std::string, std::vector<int>>, int> numbers_;
  std::map<CallKey, std::vector<Bound>> calls_;
};

}  // namespace

std::string traces::perfetto_json(const std::vector<std::shared_ptr<CallRecord>>& ranks, CodeSite code) {
  require_records(ranks, "perfetto_json", code);
  return TimelineWriter().write(ranks);
}

void traces::write_perfetto(const std::vector<std::shared_ptr<CallRecord>>& ranks, std::string_view path,
                            CodeSite code) {
  require_records(ranks, "write_perfetto", code);
  internal::write_file(path, traces::perfetto_json(ranks, code), "write_perfetto", code);
}

}  // namespace rankloom
