#include "collectives/mpi/gathered_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/wire.h"
#include "rankloom/faults.h"
#include "world/run_data.h"

namespace rankloom::internal {

namespace {

void write_group(const RunData::GroupData& group, WireWriter* out) {
  out->text(group.name).text(group.description);
  out->number(group.first).number(group.stride).number(group.size);
  out->number(static_cast<uint32_t>(group.ranks.size()));
  for (const int rank : group.ranks) out->number(rank);
}
RunData::GroupData read_group(WireReader* in) {
  RunData::GroupData group;
  group.name = in->text();
  group.description = in->text();
  group.first = in->number<int>();
  group.stride = in->number<int>();
  group.size = in->number<int>();
  for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) group.ranks.push_back(in->number<int>());
  return group;
}

void write_kind(const RunData::Kind& kind, WireWriter* out) {
  out->text(kind.op);
  write_code(kind.code, out);
  out->number(kind.is_p2p).number(kind.root).number(kind.tag).number(kind.dtype);
  out->number(kind.inputs).number(kind.outputs).number(kind.timeout_ns);
  for (size_t i = 0; i < kind.shapes.size(); ++i) out->number(kind.shapes[i]);
}
RunData::Kind read_kind(WireReader* in) {
  RunData::Kind kind;
  kind.op = kept_text(in->text());
  kind.code = read_code(in);
  kind.is_p2p = in->number<bool>();
  kind.root = in->number<int>();
  kind.tag = in->number<int>();
  kind.dtype = in->number<uint8_t>();
  kind.inputs = in->number<decltype(kind.inputs)>();
  kind.outputs = in->number<decltype(kind.outputs)>();
  kind.timeout_ns = in->number<int64_t>();
  for (auto dimensions = in->number<int64_t>(); in->ok(); dimensions = in->number<int64_t>()) {
    std::vector<int64_t> sizes;
    for (; dimensions > 0 && in->ok(); --dimensions) sizes.push_back(in->number<int64_t>());
    kind.shapes.add(sizes.data(), sizes.size());
  }
  return kind;
}

void write_operation(const StoreOperation& operation, int64_t begin_ns, WireWriter* out) {
  out->text(operation.op);
  write_code(operation.code, out);
  out->text(operation.key).number(operation.keys);
  for (const StoreOperation::Value* value : {&operation.given, &operation.got})
    out->text(value->shown).number(value->bytes);
  out->number(operation.state).number(operation.begun_ns - begin_ns);
  out->number(operation.ended_ns < 0 ? int64_t{-1} : operation.ended_ns - begin_ns);
}
StoreOperation read_operation(int64_t begin_ns, WireReader* in) {
  StoreOperation operation;
  operation.op = kept_text(in->text());
  operation.code = read_code(in);
  operation.key = in->text();
  operation.keys = in->number<int64_t>();
  for (StoreOperation::Value* value : {&operation.given, &operation.got}) {
    value->shown = in->text();
    value->bytes = in->number<int64_t>();
  }
  operation.state = in->number<StoreOperation::State>();
  operation.begun_ns = begin_ns + in->number<int64_t>();
  const auto ended_ns = in->number<int64_t>();
  operation.ended_ns = ended_ns < 0 ? -1 : begin_ns + ended_ns;
  return operation;
}

// The part of a run file that is of this process's ranks.
std::string written(const RunData& data, RanksHere here, bool with_calls) {
  WireWriter out;
  out.number(data.logged).number(data.end_ns);
  out.number(static_cast<uint32_t>(data.groups.size()));
  for (const RunData::GroupData& group : data.groups) write_group(group, &out);
  out.number(static_cast<uint32_t>(data.kinds.size()));
  for (const RunData::Kind& kind : data.kinds) {
    WireWriter facts;
    write_kind(kind, &facts);
    out.number(kind.group).text(facts.bytes());
  }
  out.number(static_cast<uint32_t>(here.count));
  for (int rank = here.first; rank < here.first + here.count; ++rank) {
    const RunData::Rank& own = data.ranks[static_cast<size_t>(rank)];
    out.number(rank).number(own.made).number(static_cast<uint32_t>(with_calls ? own.calls.size() : 0));
    for (size_t i = 0; with_calls && i < own.calls.size(); ++i) out.number(own.calls[i]);
    out.number(own.store.made).number(static_cast<uint32_t>(own.store.last.size()));
    for (const StoreOperation& operation : own.store.last) write_operation(operation, data.begin_ns, &out);
  }
  return out.take();
}

// Run data of all ranks, made of those of each.
class Merger {
 public:
  explicit Merger(const RunData& own) : data_(std::make_shared<RunData>(own)) {
    data_->groups.clear();
    data_->kinds.clear();
    for (RunData::Rank& rank : data_->ranks) rank = {};
  }

  void add(std::string_view bytes) {
    WireReader in(bytes);
    data_->logged = in.number<bool>() && data_->logged;
    data_->end_ns = std::max(data_->end_ns, in.number<int64_t>());
    // The n-th group of its name and ranks is that of the others.
    std::map<std::string, int> before;
    std::vector<int> groups;
    for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left)
      groups.push_back(group_of(read_group(&in), &before));
    std::vector<uint32_t> kinds;
    for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) {
      const auto group = in.number<int>();
      const std::string facts = in.text();
      if (group < 0 || static_cast<size_t>(group) >= groups.size()) return;
      kinds.push_back(kind_of(groups[static_cast<size_t>(group)], facts));
    }
    for (auto ranks = in.number<uint32_t>(); ranks > 0 && in.ok(); --ranks) add_rank(kinds, &in);
  }

  std::shared_ptr<RunData> take() { return std::move(data_); }

 private:
  void add_rank(const std::vector<uint32_t>& kinds, WireReader* in) {
    const auto rank = static_cast<size_t>(in->number<int>());
    if (rank >= data_->ranks.size()) return;
    RunData::Rank& to = data_->ranks[rank];
    to.made = in->number<int64_t>();
    for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) {
      to.calls.push_back(in->number<RunData::Call>());
      uint32_t& kind = to.calls.back().kind;
      kind = kind < kinds.size() ? kinds[kind] : 0;
    }
    to.store.made = in->number<int64_t>();
    for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left)
      to.store.last.push_back(read_operation(data_->begin_ns, in));
  }
  int group_of(RunData::GroupData group, std::map<std::string, int>* before) {
    WireWriter key;
    write_group(group, &key);
    const std::string alike = key.take();
    const std::string one = absl::StrCat((*before)[alike]++, " ", alike);
    const auto [at, added] = groups_.try_emplace(one, static_cast<int>(data_->groups.size()));
    if (added) {
      group.id = at->second;  // ids are a process's own
      data_->groups.push_back(std::move(group));
    }
    return at->second;
  }
  uint32_t kind_of(int group, const std::string& facts) {
    const auto [at, added] = kinds_.try_emplace({group, facts}, static_cast<uint32_t>(data_->kinds.size()));
    if (added) {
      WireReader in(facts);
      data_->kinds.push_back(read_kind(&in));
      data_->kinds.back().group = group;
    }
    return at->second;
  }

  std::shared_ptr<RunData> data_;
  std::map<std::string, int> groups_;
  std::map<std::pair<int, std::string>, uint32_t> kinds_;
};

// The part of this process, in at most `most` bytes: without calls, without all that is for a run file, or without
// notes and faults, if need be.
std::string told_of(const RunReport& report, RanksHere here, size_t most) {
  const std::string who = here.count == 1 ? absl::StrCat("rank ", here.first)
                                          : absl::StrCat("ranks ", here.first, "-", here.first + here.count - 1);
  std::vector<std::string> notes = report.notes;
  std::vector<std::string> faults;
  for (const Fault& fault : report.faults) faults.push_back(fault.text());
  const auto told = [&](std::string_view data) {
    WireWriter out;
    write_texts(notes, &out);
    write_texts(faults, &out);
    out.text(data);
    return out.take();
  };
  if (report.kept == nullptr) {
    if (std::string all = told(""); all.size() <= most) return all;
  } else {
    std::string all;
    for (const bool with_calls : {true, false}) {
      all = told(written(*report.kept, here, with_calls));
      if (all.size() <= most) return all;
    }
    notes.push_back(
        absl::StrCat(who, ": its part of the run file is left out: have ", all.size(), " bytes, want at most ", most));
    if (all = told(""); all.size() <= most) return all;
  }
  const size_t left_out = notes.size() + faults.size();
  notes = {absl::StrCat(who, ": ", left_out, " notes and faults are left out, of more than ", most, " bytes")};
  faults.clear();
  return told("");
}

std::vector<std::string> of_all(MPI_Comm processes, const std::string& mine) {
  int size = 1;
  MPI_Comm_size(processes, &size);
  const int bytes = static_cast<int>(mine.size());
  std::vector<int> lengths(static_cast<size_t>(size));
  MPI_Allgather(&bytes, 1, MPI_INT, lengths.data(), 1, MPI_INT, processes);
  std::vector<int> places;
  int64_t all = 0;  // no more than an int
  for (const int length : lengths) {
    places.push_back(static_cast<int>(all));
    all += length;
  }
  std::string joined(static_cast<size_t>(all), '\0');
  MPI_Allgatherv(mine.data(), bytes, MPI_BYTE, joined.data(), lengths.data(), places.data(), MPI_BYTE, processes);
  std::vector<std::string> texts;
  for (size_t process = 0; process < lengths.size(); ++process)
    texts.push_back(joined.substr(static_cast<size_t>(places[process]), static_cast<size_t>(lengths[process])));
  return texts;
}

}  // namespace

void gather_report(MPI_Comm processes, RanksHere here, int64_t most_bytes, RunReport* report) {
  int size = 1;
  MPI_Comm_size(processes, &size);
  const size_t most = static_cast<size_t>(most_bytes) / static_cast<size_t>(size);
  const std::vector<std::string> all = of_all(processes, told_of(*report, here, most));
  report->notes.clear();
  report->faults.clear();
  std::unique_ptr<Merger> merger;
  if (report->kept != nullptr) merger = std::make_unique<Merger>(*report->kept);
  std::set<std::string> noted;  // of a message that nobody received, both sides may tell
  for (size_t process = 0; process < all.size(); ++process) {
    WireReader in(all[process]);
    for (std::string& note : read_texts(&in)) {
      if (noted.insert(note).second) report->notes.push_back(std::move(note));
    }
    for (const std::string& fault : read_texts(&in)) {
      const absl::StatusOr<FaultPlan> parsed = FaultPlan::parse(fault);
      if (parsed.ok()) report->faults.insert(report->faults.end(), parsed->faults().begin(), parsed->faults().end());
    }
    const std::string data = in.text();
    if (merger != nullptr && !data.empty()) merger->add(data);
  }
  if (merger != nullptr) report->kept = merger->take();
}

void share_text(MPI_Comm processes, std::string* text) {
  int bytes = static_cast<int>(text->size());
  MPI_Bcast(&bytes, 1, MPI_INT, 0, processes);
  text->resize(static_cast<size_t>(bytes));
  MPI_Bcast(text->data(), bytes, MPI_BYTE, 0, processes);
}

}  // namespace rankloom::internal
