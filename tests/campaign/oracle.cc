#include "tests/campaign/oracle.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/campaign/store_script.h"
#include "tests/collectives/kernels/reduce_oracle.h"

namespace rankloom {

namespace {

void append(const Bytes& bytes, std::string* text) { text->append(bytes.begin(), bytes.end()); }

Bytes part(const Bytes& bytes, size_t begin, size_t count) {
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

class Oracle {
 public:
  Oracle(const Plan& plan, Given* given)
      : plan_(plan), job_(plan.job()), log_(ranks()), open_(ranks()), state_(ranks()), given_(given) {
    for (size_t rank = 0; rank < ranks(); ++rank) state_[rank] = first_state(static_cast<int>(rank));
  }

  JobLog run() {
    for (size_t i = 0; i < job_.acts.size(); ++i) {
      if (plan_.where(i) != nullptr) step(job_.acts[i], *plan_.where(i));
    }
    for (int rank = 0; rank < job_.world_size; ++rank) {
      while (!open_[at(rank)].empty()) finish(rank, open_[at(rank)].begin()->first);
    }
    return std::move(log_);
  }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  size_t ranks() const { return at(job_.world_size); }

  void see(int rank, int act, std::string saw) {
    state_[at(rank)] = fold(state_[at(rank)], act, saw);
    log_[at(rank)].seen.push_back({act, std::move(saw)});
  }
  void finish(int rank, int act) {
    const auto it = open_[at(rank)].find(act);
    if (it == open_[at(rank)].end()) return;
    std::string saw = std::move(it->second);
    open_[at(rank)].erase(it);
    see(rank, act, std::move(saw));
  }
  // The rank has made its calls; `saw` is for when it has waited.
  void issued(int rank, const Act& act, std::string saw) {
    const auto way = static_cast<Way>(act.way);
    if (way == Way::kGivesAway && act.type() == ActKind::kCollective) {
      log_[at(rank)].late[act.id] = std::move(saw);
      return;
    }
    open_[at(rank)][act.id] = std::move(saw);
    if (way == Way::kAtOnce) finish(rank, act.id);
  }

  void step(const Act& act, const Partition& where) {
    switch (act.type()) {
      case ActKind::kCollective:
      case ActKind::kCoalesced:
      case ActKind::kMessage:
      case ActKind::kAnySource:
      case ActKind::kRing:
      case ActKind::kCrossed:
        for (const std::vector<int>& members : where.sets) call(act, members);
        return;
      case ActKind::kTwoGroups:
        return two_groups(act, where);
      case ActKind::kWait:
        return finish(act.rank, act.a);
      case ActKind::kDropWork:
        open_[at(act.rank)].erase(act.a);
        return;
      case ActKind::kNewGroup:
      case ActKind::kSplitGroup:
      case ActKind::kMesh:
      case ActKind::kInitGroup:
        return made(act, where);
      case ActKind::kOptions:
        if (where.has(act.rank)) see(act.rank, act.id, group_text(where.of(act.rank), where.member(act.rank)));
        return;
      case ActKind::kRefused:
        for (int rank = 0; rank < job_.world_size; ++rank) {
          if (where.has(rank)) see(rank, act.id, kRefused);
        }
        return;
      case ActKind::kStoreScript:
      case ActKind::kHelper:
        return see(act.rank, act.id, script_of(act).saw);
      case ActKind::kStoreMeeting:
        for (int rank = 0; rank < job_.world_size; ++rank) see(rank, act.id, meeting_text(act, job_.world_size, rank));
        return;
      case ActKind::kStoreTimeout:
        return see(act.rank, act.id, kTimedOut);
      case ActKind::kSharedCount:
        for (int rank = 0; rank < job_.world_size; ++rank) see(rank, act.id, shared_count_text(job_.world_size));
        return;
      case ActKind::kSleep:
        return see(act.rank, act.id, kSlept);
      case ActKind::kRandom:
        return see(act.rank, act.id, kDrawn);
      case ActKind::kNestedWorld:
        return see(act.rank, act.id, kNestedWentWell);
      case ActKind::kMonitored:
      case ActKind::kDestroyGroup:
      case ActKind::kYield:
      case ActKind::kThrow:
      case ActKind::kAbortWorld:
      case ActKind::kAbortGroup:
      case ActKind::kLeave:
      case ActKind::kOtherCall:
      case ActKind::kGroupTimeout:
        return;
      case ActKind::kCount:
        no_such("act", act.kind);
    }
  }

  void made(const Act& act, const Partition& where) {
    for (int rank = 0; rank < job_.world_size; ++rank) {
      if (!where.has(rank)) continue;
      std::string saw;
      for (int dim = 0; dim < (act.type() == ActKind::kMesh ? 2 : 1); ++dim) {
        const Partition& groups = *plan_.made(act.id, dim);
        if (act.type() == ActKind::kInitGroup && !groups.has(rank)) continue;  // makes no call
        saw += groups.has(rank) ? group_text(groups.of(rank), groups.member(rank)) : "none";
      }
      if (!saw.empty()) see(rank, act.id, saw);
    }
  }

  // A rank that is in both groups gives both calls what it has seen before.
  void two_groups(const Act& act, const Partition& where) {
    std::vector<std::string> saw(ranks());
    std::vector<bool> takes_part(ranks());
    const Partition* const groups[] = {&where, plan_.made(act.a, act.b)};
    for (int part = 0; part < 2; ++part) {
      for (const std::vector<int>& members : groups[part]->sets) {
        std::vector<std::string> own(members.size());
        collective(act, part == 0 ? act.call : act.parts[0], part, members, &own);
        for (size_t member = 0; member < members.size(); ++member) {
          saw[at(members[member])] += own[member];
          takes_part[at(members[member])] = true;
        }
      }
    }
    for (int rank = 0; rank < job_.world_size; ++rank) {
      if (takes_part[at(rank)]) issued(rank, act, std::move(saw[at(rank)]));
    }
  }

  // The sight of the member that takes the messages, in its order.
  std::string crossed(const Act& act, int from) {
    const Crossing crossing = crossing_of(act);
    std::vector<Bytes> sent;
    for (size_t i = 0; i < crossing.tags.size(); ++i) {
      sent.push_back(message_bytes(act, from, state_[at(from)], static_cast<int>(i)));
    }
    std::string saw;
    for (const int i : crossing.taken) append(sent[at(i)], &saw);
    if (given_ != nullptr) (*given_)[{from, act.id}] = {sent};
    return saw;
  }

  void call(const Act& act, const std::vector<int>& members) {
    const int n = static_cast<int>(members.size());
    const auto given = [&](int member) {
      const int rank = members[at(member)];
      Bytes bytes = message_bytes(act, rank, state_[at(rank)]);
      if (given_ != nullptr) (*given_)[{rank, act.id}].resize(act.parts.size() + 1);
      if (given_ != nullptr) (*given_)[{rank, act.id}].back() = {bytes};
      return bytes;
    };
    std::vector<std::string> saw(members.size());
    std::vector<bool> takes_part(members.size(), true);
    switch (act.type()) {
      case ActKind::kMessage: {
        const int from = act.a % n, to = act.b % n;
        std::fill(takes_part.begin(), takes_part.end(), false);
        takes_part[at(from)] = takes_part[at(to)] = true;
        append(given(from), &saw[at(to)]);
        break;
      }
      case ActKind::kCrossed: {
        const int from = act.a % n, to = act.b % n;
        std::fill(takes_part.begin(), takes_part.end(), false);
        takes_part[at(from)] = takes_part[at(to)] = true;
        saw[at(to)] = crossed(act, members[at(from)]);
        break;
      }
      case ActKind::kAnySource: {
        const int to = act.a % n;
        for (int from = 0; from < n; ++from) {
          if (from == to) continue;
          absl::StrAppend(&saw[at(to)], from, ":");
          append(given(from), &saw[at(to)]);
        }
        break;
      }
      case ActKind::kRing:
        for (int to = 0; to < n; ++to) append(given((to + n - act.a % n) % n), &saw[at(to)]);
        break;
      case ActKind::kCollective:
        collective(act, act.call, 0, members, &saw);
        break;
      case ActKind::kCoalesced:
        for (size_t p = 0; p < act.parts.size(); ++p) {
          collective(act, act.parts[p], static_cast<int>(p), members, &saw);
        }
        if (act.a == 1) {
          for (int to = 0; to < n; ++to) append(given((to + n - 1) % n), &saw[at(to)]);
        }
        break;
      default:
        no_such("call of one group", act.kind);
    }
    for (int member = 0; member < n; ++member) {
      if (takes_part[at(member)]) issued(members[at(member)], act, std::move(saw[at(member)]));
    }
  }

  void collective(const Act& act, const JobCall& call, int part, const std::vector<int>& members,
                  std::vector<std::string>* saw) {
    std::vector<std::vector<Bytes>> inputs;
    for (int member = 0; member < static_cast<int>(members.size()); ++member) {
      const int rank = members[at(member)];
      inputs.push_back(inputs_of(call, act.id, part, members, member, state_[at(rank)]));
      if (given_ == nullptr) continue;
      std::vector<std::vector<Bytes>>& parts = (*given_)[{rank, act.id}];
      parts.resize(std::max(parts.size(), static_cast<size_t>(part) + 1));
      parts[static_cast<size_t>(part)] = inputs.back();
    }
    for (int member = 0; member < static_cast<int>(members.size()); ++member) {
      (*saw)[at(member)] += result_of(in_order_of(job_, call), act.id, inputs, member);
    }
  }

  const Plan& plan_;
  const Job& job_;
  JobLog log_;
  std::vector<std::map<int, std::string>> open_;  // by rank: [act] what its calls will have given
  std::vector<uint64_t> state_;
  Given* const given_;  // null: nobody asks
};

}  // namespace

std::vector<Bytes> inputs_of(const JobCall& call, int act, int part, const std::vector<int>& ranks, int member,
                             uint64_t state) {
  const CallShape shape = shape_of(call, static_cast<int>(ranks.size()), member);
  std::vector<Bytes> inputs;
  for (size_t i = 0; i < shape.inputs.size(); ++i) {
    inputs.push_back(input_bytes(call, act, part, ranks[static_cast<size_t>(member)], i, shape.inputs[i], state));
  }
  return inputs;
}

Bytes message_bytes(const Act& act, int global_rank, uint64_t state, int i) {
  return input_bytes(act.call, act.id, 63 - i, global_rank, 0, act.call.count + i, state);
}

std::string result_of(const JobCall& call, int act, const std::vector<std::vector<Bytes>>& inputs, int me) {
  const size_t n = inputs.size();
  const size_t m = static_cast<size_t>(me);
  const size_t root = static_cast<size_t>(call.root) % n;
  const size_t width = dtype_size(call.element());
  std::string out;
  // Tensor `i` of all members, or a part of it, reduced. A ring's chunks are parts of the tensor, or the members'
  // parts.
  const auto reduced = [&](size_t i, size_t begin, size_t count, bool scattered) {
    std::vector<Bytes> all;
    for (const auto& own : inputs) all.push_back(part(own[i], begin, count));
    const size_t chunk = std::max<size_t>(1, (count / width + n - 1) / n);
    return expected_reduction(call.element(), reduce_of(call), order_of(call, act), all,
                              [&](size_t element) { return scattered ? m : element / chunk; });
  };
  const auto gathered = [&](size_t i) {
    for (const auto& own : inputs) append(own[i], &out);
  };
  switch (call.type()) {
    case OpType::kBroadcast:
      append(inputs[root][0], &out);
      break;
    case OpType::kAllReduce:
    case OpType::kAllReduceCoalesced:
      for (size_t i = 0; i < inputs[0].size(); ++i) append(reduced(i, 0, inputs[0][i].size(), false), &out);
      break;
    case OpType::kReduce:
      append(m == root ? reduced(0, 0, inputs[0][0].size(), false) : inputs[m][0], &out);
      break;
    case OpType::kAllGather:
    case OpType::kAllGatherIntoTensor:
    case OpType::kAllGatherIntoTensorCoalesced:
      for (size_t i = 0; i < inputs[0].size(); ++i) gathered(i);
      break;
    case OpType::kGather:
      if (m == root) gathered(0);
      break;
    case OpType::kScatter:
      append(inputs[root][m], &out);
      break;
    case OpType::kReduceScatter:
      append(reduced(m, 0, inputs[0][m].size(), true), &out);
      break;
    case OpType::kReduceScatterTensor:
    case OpType::kReduceScatterTensorCoalesced:
      for (size_t i = 0; i < inputs[0].size(); ++i) {
        const size_t bytes = inputs[0][i].size() / n;
        append(reduced(i, m * bytes, bytes, true), &out);
      }
      break;
    case OpType::kAllToAll:
      for (const auto& own : inputs) append(own[m], &out);
      break;
    case OpType::kAllToAllSingle:
      for (size_t from = 0; from < n; ++from) {
        int64_t first = 0;
        for (int j = 0; j < me; ++j) first += between(call, static_cast<int>(from), j);
        const size_t row = width * static_cast<size_t>(call.rows);
        append(part(inputs[from][0], static_cast<size_t>(first) * row,
                    static_cast<size_t>(between(call, static_cast<int>(from), me)) * row),
               &out);
      }
      break;
    case OpType::kBarrier:
      break;
    default:
      no_such("collective", call.op);
  }
  return out;
}

JobLog oracle(const Plan& plan) { return Oracle(plan, nullptr).run(); }

JobLog oracle(const Plan& plan, Given* given) { return Oracle(plan, given).run(); }

}  // namespace rankloom
