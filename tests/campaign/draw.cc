#include <algorithm>
#include <array>
#include <numeric>

#include "rankloom/random.h"
#include "tests/campaign/job.h"
#include "tests/campaign/plan.h"
#include "tests/campaign/store_script.h"
#include "tests/campaign/values.h"

namespace rankloom {

using namespace internal;

namespace {

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
    if (in_one_process() && chance(4)) job_.order = below(4) + (chance(3) ? 8 : 0);
    if (in_one_process() && !nested_) {
      job_.two_worlds = chance(16);
      if (chance(4)) job_.options = below(kWorldOptions);
    }
    const bool fails = palette_ == Palette::kAll && chance(5);
    const int budget = nested_ ? 1 + below(4) : 1 + std::min(below(24), below(24));
    if (palette_ == Palette::kAll && chance(5)) draw_faults();
    const int bad_at = fails ? below(budget) : -1;
    for (int i = 0; i < budget; ++i) {
      if (i == bad_at) {
        bad();
      } else {
        add();
      }
    }
    if (job_.may_fail()) be_untimed();
    return std::move(job_);
  }

 private:
  int below(int n) { return static_cast<int>(prng_.below(static_cast<uint64_t>(n))); }
  int chance(int one_in) { return below(one_in) == 0 ? 1 : 0; }
  int some_rank() { return below(job_.world_size); }
  // A timeout that a call names keeps a job that is stuck from being a deadlock at once.
  void be_untimed() {
    for (Act& act : job_.acts) {
      act.call.timed = 0;
      for (JobCall& part : act.parts) part.timed = 0;
    }
  }

  static constexpr int kMembers = 6;               // of the largest group
  static constexpr int64_t kMostBytes = 64 << 20;  // of one call, so that a job takes seconds at most
  template <typename T>
  auto one_of(const T& choices) {
    return choices[static_cast<size_t>(below(static_cast<int>(std::size(choices))))];
  }
  const char* one_of(std::initializer_list<const char*> texts) {
    return texts.begin()[below(static_cast<int>(texts.size()))];
  }
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
    call.op = static_cast<int>(palette_ == Palette::kTorch ? one_of(kCollectivesOfGloo) : one_of(kCollectives));
    call.dtype = below(kDTypeCount);
    call.values = below(static_cast<int>(Values::kCount));
    if (palette_ == Palette::kTorch) call.values = static_cast<int>(Values::kSmall);
    call.count = chance(6) ? 0 : chance(24) ? 300 + below(2000) : 1 + below(9);
    if (in_one_process() && !nested_) call.timed = chance(6);
    call.uneven = chance(3) ? 1 + below(2) : 0;
    call.root = below(8);
    call.in_place = chance(3);
    call.rows = chance(3) ? 1 + below(3) : 1;
    if (is_reduction(call.type())) {
      do {
        call.dtype = below(kDTypeCount);
        call.reduce = below(kReduceOpCount);
      } while (!has_kernel(static_cast<ReduceOp::Kind>(call.reduce), call.element()));
      if (chance(4) && palette_ != Palette::kTorch) call.order = below(5) + (chance(3) ? 8 : 0);
    }
    if (static_cast<ReduceOp::Kind>(call.reduce) == ReduceOp::Kind::kPremulSum && palette_ != Palette::kTorch) {
      call.factor = below(5);
    }
    // Over a megabyte, from where the helpers of a call share its work.
    if (in_one_process() && !nested_ && chance(1000)) {
      call.count = (1 + below(2)) * (1 << 20) / static_cast<int>(dtype_size(call.element())) + below(9);
    }
    if (call.type() == OpType::kBarrier) call = {.timed = call.timed};
    while (bytes_of(call) > kMostBytes) call.count /= 2;
    return call;
  }

  // Of all members' tensors together, in a group of all ranks.
  int64_t bytes_of(const JobCall& call) const {
    int64_t elements = 0;
    for (int member = 0; member < job_.world_size; ++member) {
      const CallShape shape = shape_of(call, job_.world_size, member);
      for (const auto* sizes : {&shape.inputs, &shape.outputs})
        elements = std::accumulate(sizes->begin(), sizes->end(), elements);
    }
    return elements * static_cast<int64_t>(dtype_size(call.element()));
  }

  void draw_message(Act* act) {
    act->call = JobCall{};
    act->call.dtype = below(kDTypeCount);
    act->call.count = chance(6) ? 0 : 1 + below(20);
    act->call.values = palette_ == Palette::kTorch ? 0 : below(static_cast<int>(Values::kCount));
    act->a = below(kMembers);
    act->b = below(kMembers);
    act->c = chance(2);
  }
  int way_of_messages() { return below(in_one_process() ? 3 : 2); }  // Way::kPlain, kAtOnce, kStream

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
        if (static_cast<Way>(act.way) == Way::kEvent) act.c = below(kEventWays);
        return made_work(act);
      }
      case 4: {
        if (palette_ == Palette::kTorch) return add();
        Act& act = put_in_group(ActKind::kCoalesced);
        for (int i = 1 + below(3); i > 0; --i) act.parts.push_back(draw_call());
        draw_message(&act);
        act.a = chance(2);
        act.b = chance(2);
        act.way = way_of_messages();
        return made_work(act);
      }
      case 5:
      case 6:
        return add_message();
      case 7:
        return chance(3) ? add_two_groups() : add_messages();
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
          act.a = below(kRefusals);
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

  void add_message() {
    Act& act = put_in_group(ActKind::kMessage);
    draw_message(&act);
    act.way = chance(2) ? 0 : way_of_messages();
    // A message that goes when its stream comes to it has a tag of its own.
    if (static_cast<Way>(act.way) != Way::kStream) act.seed = below(3);
    made_work(act);
  }

  void add_messages() {
    const ActKind kinds[] = {ActKind::kAnySource, ActKind::kRing, ActKind::kCrossed};
    Act& act = put_in_group(kinds[below(palette_ == Palette::kTorch ? 2 : 3)]);
    draw_message(&act);
    if (act.type() == ActKind::kCrossed) {
      act.c = below(3);
      act.seed = 1 + below(1 << 30);
    }
    act.way = chance(2);
    made_work(act);
  }

  void add_two_groups() {
    if (groups_.empty() || !in_one_process()) return add();
    Act& act = put_in_group(ActKind::kTwoGroups);
    const auto [id, dim] = groups_[static_cast<size_t>(below(static_cast<int>(groups_.size())))];
    act.a = id;
    act.b = dim;
    act.c = chance(4);
    act.seed = below(1 << kMembers);
    act.call = draw_call();
    act.parts = {draw_call()};
    act.way = chance(2);
    made_work(act);
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
      act.a = below(kMeetings);
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
    if (kind == ActKind::kGroupTimeout) {
      act.a = below(kTimeouts);
      act.c = chance(2);
    }
    if (kind == ActKind::kDropWork) act.a = works_[static_cast<size_t>(below(static_cast<int>(works_.size())))];
  }

  void draw_faults() {
    const bool delays = chance(2) != 0;
    if (chance(5)) job_.fault_rate = delays ? 0 : 1 + below(40);
    for (int i = 1 + below(2); i > 0; --i) job_.faults.push_back(draw_fault(delays));
  }

  Fault draw_fault(bool delays) {
    using Kind = Fault::Kind;
    Fault fault;
    fault.kind = delays ? Kind::kDelay : static_cast<Kind>(below(kFaultKindCount));
    fault.rank = chance(6) ? -1 : some_rank();
    fault.nth = chance(6) ? -1 : 1 + below(6);
    fault.when = static_cast<Fault::When>(below(3));
    fault.maybe = chance(4) != 0;
    if (fault.kind == Kind::kDelay) fault.by = absl::Microseconds(below(50));
    if (fault.kind == Kind::kDrop || fault.kind == Kind::kDuplicate) {
      fault.op = "send";
    } else if (fault.kind == Kind::kStoreTimeout) {
      fault.op = one_of({"store get", "store set", "store add", "store wait"});
    } else if (chance(2)) {
      fault.op = one_of({"all_reduce", "broadcast", "barrier", "send", "recv", "coalesced", "all_gather", "store get",
                         "monitored_barrier", "reduce_scatter_tensor"});
    }
    const bool in_group = fault.op.empty() || fault.op.find("store") == std::string::npos;
    if (in_group && fault.kind != Kind::kStoreTimeout && chance(4)) fault.group = one_of({"0", "0.1", "1"});
    if (in_group && fault.op != "send" && fault.op != "recv" && fault.kind < Kind::kDrop && chance(4)) {
      fault.seq = below(4);
    }
    return fault;
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

Job draw_job(uint64_t seed, Palette palette, int world_size) { return Drawer(seed, palette, world_size).draw(); }

}  // namespace rankloom
