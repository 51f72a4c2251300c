#include "world/run_data.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace rankloom::internal {
namespace {

constexpr size_t kMostCalls = size_t{1} << 21;

struct KindKey {
  const RunData::Kind* kind;

  friend bool operator==(const KindKey& a, const KindKey& b) {
    const auto fields = [](const RunData::Kind& kind) {
      return std::tuple(kind.op, kind.group, kind.code.file, kind.code.line, kind.is_p2p, kind.root, kind.tag,
                        kind.dtype, kind.inputs, kind.outputs, kind.timeout_ns);
    };
    return fields(*a.kind) == fields(*b.kind) && a.kind->shapes == b.kind->shapes;
  }
  template <typename H>
  friend H AbslHashValue(H state, const KindKey& key) {
    const RunData::Kind& kind = *key.kind;
    state = H::combine(std::move(state), kind.op, kind.group, kind.code.file, kind.code.line, kind.root, kind.tag,
                       kind.dtype, kind.timeout_ns);
    for (size_t i = 0; i < kind.shapes.size(); ++i) state = H::combine(std::move(state), kind.shapes[i]);
    return state;
  }
};

class Gatherer {
 public:
  Gatherer(int64_t begin_ns, int recorded_calls) : begin_ns_(begin_ns), data_(std::make_shared<RunData>()) {
    data_->recorded_calls = recorded_calls;
  }

  std::shared_ptr<RunData> gather(size_t ranks, const Group& all, absl::FunctionRef<FlightEntries(int)> entries_of) {
    const size_t most = std::max<size_t>(1, kMostCalls / ranks);
    data_->most_calls = static_cast<int64_t>(most);
    data_->ranks.resize(ranks);
    group_of(&all);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const FlightEntries entries = entries_of(static_cast<int>(rank));
      RunData::Rank& to = data_->ranks[rank];
      if (entries.empty()) continue;
      to.made = entries[entries.size() - 1].record_id + 1;
      const size_t left_out = entries.size() > most ? entries.size() - most : 0;
      to.calls.reserve(entries.size() - left_out);
      for (size_t i = left_out; i < entries.size(); ++i) add(entries[i], &to);
      held_.push_back(entries.groups());
      if (held_.back() == last_held_) {
        held_.pop_back();
      } else {
        last_held_ = held_.back();
      }
    }
    for (const RunData::Kind* kind : kinds_) data_->kinds.push_back(*kind);
    return std::move(data_);
  }

 private:
  int group_of(const Group* group) {
    const auto [at, added] = groups_.try_emplace(group, static_cast<int>(data_->groups.size()));
    if (!added) return at->second;
    RunData::GroupData to = {.id = group->id(),
                             .name = group->name(),
                             .description = group->description(),
                             .ranks = {},
                             .first = group->global_rank(0),
                             .stride = group->size() > 1 ? group->global_rank(1) - group->global_rank(0) : 1,
                             .size = group->size()};
    for (int rank = 0; !group->evenly_spaced() && rank < group->size(); ++rank)
      to.ranks.push_back(group->global_rank(rank));
    data_->groups.push_back(std::move(to));
    return at->second;
  }

  uint32_t kind_of(RunData::Kind kind) {
    if (const auto at = index_.find(KindKey{&kind}); at != index_.end()) return at->second;
    const auto index = static_cast<uint32_t>(kinds_.size());
    kinds_.push_back(owned_.emplace_back(std::make_unique<RunData::Kind>(std::move(kind))).get());
    index_.emplace(KindKey{kinds_.back()}, index);
    return index;
  }

  void add(const FlightEntry& from, RunData::Rank* to) {
    const auto since = [this](int64_t at_ns) { return at_ns < 0 ? -1 : at_ns - begin_ns_; };
    to->calls.push_back({.kind = kind_of({.op = from.op,
                                          .group = group_of(from.group),
                                          .code = from.code,
                                          .is_p2p = from.is_p2p,
                                          .root = from.root,
                                          .tag = from.tag,
                                          .dtype = from.dtype,
                                          .inputs = from.inputs,
                                          .outputs = from.outputs,
                                          .timeout_ns = from.timeout_ns,
                                          .shapes = from.shapes}),
                         .state = from.state,
                         .peer = from.peer >= 0 ? from.group->global_rank(from.peer) : -1,
                         .seq = from.seq,
                         .issued_ns = from.created_ns - begin_ns_,
                         .arrived_ns = since(from.started_ns),
                         .ended_ns = since(from.completed_ns),
                         .issued_step = from.issued_step,
                         .ended_step = from.ended_step});
  }

  const int64_t begin_ns_;
  std::shared_ptr<RunData> data_;
  absl::flat_hash_map<const Group*, int> groups_;
  // Groups of the entries, so that none of another rank is made at an address that stands in `groups_`.
  std::vector<std::vector<std::shared_ptr<const Group>>> held_;
  std::vector<std::shared_ptr<const Group>> last_held_;
  std::vector<std::unique_ptr<RunData::Kind>> owned_;
  std::vector<const RunData::Kind*> kinds_;
  absl::flat_hash_map<KindKey, uint32_t> index_;
};

}  // namespace

std::shared_ptr<RunData> run_data_of(int ranks, const Group& all, absl::FunctionRef<FlightEntries(int)> entries_of,
                                     int64_t begin_ns, int recorded_calls) {
  return Gatherer(begin_ns, recorded_calls).gather(static_cast<size_t>(ranks), all, entries_of);
}

}  // namespace rankloom::internal
