#include <algorithm>
#include <array>

#include "rankloom/random.h"
#include "tests/campaign/job.h"
#include "tests/campaign/plan.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr std::array kOps = {
    OpType::kBroadcast,
    OpType::kAllReduce,
    OpType::kReduce,
    OpType::kAllGather,
    OpType::kAllGatherIntoTensor,
    OpType::kGather,
    OpType::kScatter,
    OpType::kReduceScatter,
    OpType::kReduceScatterTensor,
    OpType::kAllToAll,
    OpType::kAllToAllSingle,
    OpType::kBarrier,
    OpType::kAllReduceCoalesced,
    OpType::kAllGatherIntoTensorCoalesced,
    OpType::kReduceScatterTensorCoalesced,
};

bool reduces(OpType op) {
  return op == OpType::kAllReduce || op == OpType::kAllReduceCoalesced || op == OpType::kReduce ||
         op == OpType::kReduceScatter || op == OpType::kReduceScatterTensor ||
         op == OpType::kReduceScatterTensorCoalesced;
}

class Drawer {
 public:
  Drawer(uint64_t seed, Palette palette, int world_size)
      : prng_(seed ^ 0xca3ba160), palette_(palette), nested_(palette == Palette::kNested) {
    job_.seed = static_cast<int>(seed % 1'000'000'007);
    job_.world_size = world_size > 0 ? world_size : nested_ ? 1 + below(2) : 1 + std::min(below(6), below(6));
  }

  Job draw() {
    if (chance(3)) job_.eager_bytes = 1 << below(8);
    job_.rooted = below(3);
    if (chance(8)) job_.recorded = 0;
    const bool over_processes = palette_ == Palette::kMpi || palette_ == Palette::kTorch;
    if (!nested_ && !over_processes) job_.two_worlds = chance(16);
    const bool fails = palette_ == Palette::kAll && chance(5);
    const int budget = nested_ ? 1 + below(4) : 1 + std::min(below(24), below(24));
    if (palette_ == Palette::kAll && chance(12)) draw_faults(fails);
    const int bad_at = fails ? below(budget) : -1;
    for (int i = 0; i < budget; ++i) {
      if (i == bad_at) {
        bad();
      } else {
        add();
      }
    }
    return std::move(job_);
  }

 private:
  int below(int n) { return static_cast<int>(prng_.below(static_cast<uint64_t>(n))); }
  int chance(int one_in) { return below(one_in) == 0 ? 1 : 0; }
  int some_rank() { return below(job_.world_size); }
  bool in_one_process() const { return palette_ != Palette::kMpi && palette_ != Palette::kTorch; }

  Act& put(ActKind kind) {
    Act& act = job_.acts.emplace_back();
    act.kind = static_cast<int>(kind);
    act.id = ++last_id_;
    act.rank = some_rank();
    return act;
  }
  // Of a group that exists, more often a young one.
  Act& put_in_group(ActKind kind) {
    Act& act = put(kind);
    if (!groups_.empty() && !chance(3)) {
      const auto& [id, dim] = groups_[static_cast<size_t>(
          std::max(below(static_cast<int>(groups_.size())), below(static_cast<int>(groups_.size()))))];
      act.group = id;
      act.dim = dim;
    }
    return act;
  }

  JobCall draw_call() {
    JobCall call;
    call.op = static_cast<int>(kOps[static_cast<size_t>(below(palette_ == Palette::kTorch ? 12 : kOps.size()))]);
    call.dtype = below(kDTypeCount);
    call.values = below(static_cast<int>(Values::kCount));
    if (palette_ == Palette::kTorch) call.values = static_cast<int>(Values::kSmall);
    call.count = chance(6) ? 0 : chance(24) ? 300 + below(2000) : 1 + below(9);
    call.uneven = chance(3) ? 1 + below(2) : 0;
    call.root = below(8);
    call.in_place = chance(3);
    call.rows = chance(3) ? 1 + below(3) : 1;
    if (reduces(call.type())) {
      do {
        call.dtype = below(kDTypeCount);
        call.reduce = below(static_cast<int>(ReduceOp::Kind::kPremulSum) + 1);
      } while (!has_kernel(static_cast<ReduceOp::Kind>(call.reduce), call.element()));
      if (chance(4) && palette_ != Palette::kTorch) call.order = below(5) + (chance(3) ? 8 : 0);
    }
    if (call.type() == OpType::kBarrier) call = JobCall{};
    return call;
  }

  void draw_message(Act* act) {
    act->call = JobCall{};
    act->call.dtype = below(kDTypeCount);
    act->call.count = chance(6) ? 0 : 1 + below(20);
    act->call.values = palette_ == Palette::kTorch ? 0 : below(static_cast<int>(Values::kCount));
    act->a = below(6);
    act->b = below(6);
    act->c = chance(2);
  }

  void made_work(const Act& act) { works_.push_back(act.id); }

  void add() {
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        Act& act = put_in_group(ActKind::kCollective);
        act.call = draw_call();
        act.way =
            chance(2) ? static_cast<int>(Way::kAtOnce) : below(in_one_process() ? static_cast<int>(Way::kCount) : 2);
        return made_work(act);
      }
      case 4: {
        if (palette_ == Palette::kTorch) return add();
        Act& act = put_in_group(ActKind::kCoalesced);
        for (int i = 1 + below(3); i > 0; --i) act.parts.push_back(draw_call());
        draw_message(&act);
        act.a = chance(2);
        act.b = chance(2);
        act.way = chance(2);
        return made_work(act);
      }
      case 5:
      case 6: {
        Act& act = put_in_group(ActKind::kMessage);
        draw_message(&act);
        act.way = chance(3);
        return made_work(act);
      }
      case 7: {
        Act& act = put_in_group(chance(2) ? ActKind::kAnySource : ActKind::kRing);
        draw_message(&act);
        act.way = chance(2);
        return made_work(act);
      }
      case 8:
      case 9:
      case 10: {
        if (works_.empty()) return add();
        const int of = works_[static_cast<size_t>(below(static_cast<int>(works_.size())))];
        const bool all = chance(2) != 0;
        for (int rank = 0; rank < job_.world_size; ++rank) {
          if (!all && !chance(2)) continue;
          Act& act = put(ActKind::kWait);
          act.rank = rank;
          act.a = of;
          act.b = below(in_one_process() ? static_cast<int>(WaitWay::kCount) : 5);
        }
        return;
      }
      case 11:
        return add_groups();
      case 12:
        return add_store();
      case 13:
        if (chance(2) && in_one_process()) {
          Act& act = put(ActKind::kSharedCount);
          act.a = chance(2);
          act.b = chance(2);
        } else if (chance(2)) {
          Act& act = put_in_group(ActKind::kMonitored);
          act.a = chance(2);
        } else {
          Act& act = put_in_group(ActKind::kRefused);
          act.a = below(8);
        }
        return;
      case 14:
        switch (below(4)) {
          case 0:
            put(ActKind::kYield);
            return;
          case 1:
            put(ActKind::kSleep).a = below(30);
            return;
          case 2:
            put(ActKind::kRandom);
            return;
          default:
            put_in_group(ActKind::kOptions);
            return;
        }
      default:
        if (in_one_process() && !nested_ && chance(10)) {
          Act& act = put(ActKind::kNestedWorld);
          act.seed = below(1 << 30);
          act.a = below(4);
          return;
        }
        if (in_one_process() && chance(2)) {
          Act& act = put(ActKind::kHelper);
          act.seed = below(1 << 30);
          act.a = chance(2) ? 0 : static_cast<int>(ScriptStore::kNested);
          return;
        }
        return add_store();
    }
  }

  void add_groups() {
    if (palette_ == Palette::kTorch) {
      Act& act = put(ActKind::kNewGroup);
      act.a = below(1 << job_.world_size);
      groups_.emplace_back(act.id, 0);
      return;
    }
    if (chance(6) && !groups_.empty()) {
      put_in_group(ActKind::kDestroyGroup);
      return;
    }
    const ActKind kinds[] = {ActKind::kNewGroup, ActKind::kSplitGroup, ActKind::kMesh, ActKind::kInitGroup};
    const ActKind kind = kinds[below(4)];
    Act& act = put_in_group(kind);
    act.a = kind == ActKind::kSplitGroup || kind == ActKind::kMesh ? 1 + below(3) : below(1 << job_.world_size);
    if (kind == ActKind::kInitGroup && chance(2)) act.a = 0;
    act.b = chance(4);
    act.c = chance(2);
    groups_.emplace_back(act.id, 0);
    if (kind == ActKind::kMesh) groups_.emplace_back(act.id, 1);
  }

  void add_store() {
    if (palette_ == Palette::kTorch) return add();
    if (chance(2)) {
      Act& act = put(ActKind::kStoreScript);
      act.seed = below(1 << 30);
      act.a = !in_one_process() ? 0 : chance(4) ? below(static_cast<int>(ScriptStore::kCount)) : chance(2);
    } else if (chance(6)) {
      put(ActKind::kStoreTimeout).b = chance(2);
    } else {
      Act& act = put(ActKind::kStoreMeeting);
      act.a = below(6);
      if (!in_one_process() && act.a == 4) act.a = 5;  // no watches over processes
      act.b = chance(2);
      act.c = chance(2);
    }
  }

  void bad() {
    const int first = static_cast<int>(ActKind::kThrow);
    const auto kind = static_cast<ActKind>(first + below(static_cast<int>(ActKind::kCount) - first));
    if (kind == ActKind::kDropWork && works_.empty()) return bad();
    Act& act = put_in_group(kind);
    if (kind == ActKind::kDropWork) act.a = works_[static_cast<size_t>(below(static_cast<int>(works_.size())))];
  }

  void draw_faults(bool fails) {
    for (int i = 1 + below(2); i > 0; --i) {
      Fault fault;
      fault.kind = fails ? static_cast<Fault::Kind>(below(static_cast<int>(Fault::Kind::kStoreTimeout) + 1))
                         : Fault::Kind::kDelay;
      fault.rank = some_rank();
      fault.nth = 1 + below(6);
      const bool moves = fault.kind == Fault::Kind::kDrop || fault.kind == Fault::Kind::kDuplicate;
      if (moves) fault.op = "send";
      if (fault.kind == Fault::Kind::kStoreTimeout) fault.op = "store get";
      fault.when = static_cast<Fault::When>(below(3));
      fault.by = absl::Microseconds(below(50));
      if (fault.kind != Fault::Kind::kDelay) fault.by = Fault().by;
      job_.faults.push_back(fault);
    }
  }

  Prng prng_;
  const Palette palette_;
  const bool nested_;
  Job job_;
  int last_id_ = 0;
  std::vector<int> works_;
  std::vector<std::pair<int, int>> groups_;
};

}  // namespace

bool has_kernel(ReduceOp::Kind op, DType dtype) {
  using Kind = ReduceOp::Kind;
  if (dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2) return false;
  switch (op) {
    case Kind::kAvg:
      return is_floating(dtype) || is_complex(dtype);
    case Kind::kPremulSum:
      return is_floating(dtype);
    case Kind::kMin:
    case Kind::kMax:
      return !is_complex(dtype);
    case Kind::kBand:
    case Kind::kBor:
    case Kind::kBxor:
      return is_integral(dtype) || dtype == DType::kBool;
    default:
      return true;
  }
}

bool Job::may_fail() const {
  return std::any_of(acts.begin(), acts.end(), [](const Act& act) { return act.ends_badly(); }) ||
         std::any_of(faults.begin(), faults.end(),
                     [](const Fault& fault) { return fault.kind != Fault::Kind::kDelay; });
}

Job draw_job(uint64_t seed, Palette palette, int world_size) { return Drawer(seed, palette, world_size).draw(); }

}  // namespace rankloom
