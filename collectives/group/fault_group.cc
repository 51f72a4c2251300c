#include "collectives/group/fault_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/call/poison.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/op_table.h"
#include "collectives/work/issue_gate.h"
#include "collectives/work/member_work.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "sim/faults/fault_injector.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

using Kind = Fault::Kind;
using When = Fault::When;

bool any_of(const std::vector<Fault>& faults, Kind kind, When when) {
  return std::any_of(faults.begin(), faults.end(),
                     [&](const Fault& fault) { return fault.kind == kind && fault.when == when; });
}

// In the sign and exponent of a float, so that nobody takes it for a rounding error.
void flip_bit(const TensorView& tensor) {
  char* const first = static_cast<char*>(tensor.data());
  first[tensor.bytes() / static_cast<size_t>(tensor.numel()) - 1] ^= 0x40;
}

// Whether the process can read and write it: there are bytes, and not on a device.
bool on_host(const TensorView& tensor) {
  return tensor.bytes() > 0 && tensor.device().kind == Device::Kind::kCpu && tensor.data() != nullptr;
}

// The tensors that member `rank` gives: the root of a broadcast has them as outputs.
const TensorList& given_by(const CollectiveCall& call, int rank) {
  return call.inputs.empty() && only_gives(call, rank) ? call.outputs : call.inputs;
}

// The call of member `rank`, or the first of its parts, with a tensor that a bit can be flipped in; null: none has.
CollectiveCall* corruptible(CollectiveCall& call, int rank, When when) {
  const auto has_bytes = [rank, when](const CollectiveCall& one) {
    const TensorList& tensors = when == When::kAfter ? one.outputs : given_by(one, rank);
    return !tensors.empty() && on_host(tensors[0]);
  };
  if (has_bytes(call)) return &call;
  if (call.parts.empty()) return nullptr;
  std::vector<CollectiveCall>& parts = call.parts.mutable_get();
  const auto part = std::find_if(parts.begin(), parts.end(), has_bytes);
  return part != parts.end() ? &*part : nullptr;
}

// A tensor of our own with the same numbers, that flips together with its call.
std::pair<TensorView, std::shared_ptr<std::vector<char>>> copy_of(const TensorView& tensor) {
  const char* const bytes = static_cast<const char*>(tensor.data());
  auto owner = std::make_shared<std::vector<char>>(bytes, bytes + tensor.bytes());
  return {TensorView(owner->data(), tensor.dtype(), Dims(tensor.sizes())), owner};
}

// Both owners.
std::shared_ptr<const void> both(std::shared_ptr<const void> a, std::shared_ptr<const void> b) {
  if (a == nullptr) return b;
  return std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(std::move(a),
                                                                                               std::move(b));
}

// Flips a bit of what member `rank` gives to a call that has such a tensor (`reads`).
// Flips a bit of the first input: of a copy that the call gets in its place, where the caller's own numbers can stay.
// Returns the owner of the copy, to be held until the call is done; null if there is no copy, or a call that keeps its
// tensors alive holds the owner. Any other call must not: a dropped one would count as such a call, and go on to write
// outputs that are gone.
std::shared_ptr<const void> corrupt_input(CollectiveCall& call, int rank) {
  CollectiveCall& part = *corruptible(call, rank, When::kBefore);
  const bool in_place = !part.outputs.empty() && (part.inputs.empty() || overlap(part.inputs[0], part.outputs[0]));
  if (in_place || part.inputs.size() > 1) {
    flip_bit(part.inputs.empty() ? part.outputs[0] : part.inputs[0]);
    return nullptr;
  }
  auto [copy, owner] = copy_of(part.inputs[0]);
  flip_bit(copy);
  part.inputs = TensorList(copy);
  if (call.keep_alive == nullptr) return owner;
  call.keep_alive = both(call.keep_alive, std::move(owner));
  return nullptr;
}

// Another group's work, with what goes wrong once it is done.
class FaultWork final : public WorkState, public std::enable_shared_from_this<FaultWork> {
 public:
  FaultWork(Scheduler* scheduler, int rank, Work inner, std::vector<Fault> faults, FaultInjector* injector,
            const char* op, std::string group, int64_t seq, std::shared_ptr<ProcessGroup> aborts,
            std::optional<TensorView> output, IssueGate* gate)
      : WorkState(scheduler, rank),
        inner_(WorkState::shared(inner)),
        handle_(std::move(inner)),
        faults_(std::move(faults)),
        injector_(*injector),
        op_(op),
        group_(std::move(group)),
        seq_(seq),
        aborts_(std::move(aborts)),
        output_(std::move(output)),
        gate_(gate) {
    holds_owners(true);  // by the inner work
    ends_with_whole();   // which is told of its end before it is done
    owns_record(inner_->own_record());
    learned_with(*inner_);
    opens_outputs_ = has_open_outputs();
  }

  void watch() { inner_->when_done(tell(weak_from_this(), &WorkState::complete_with_another)); }

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override {
    if (settled("wait", code)) return status();  // no fault strikes after the end of the world
    const CallScope call(world_ref(), [&] { return called("wait", code); });
    const bool writes = writes_output();
    const absl::Status waited = inner_->wait(timeout, timeout_is_default, code);
    if (inner_->is_over()) complete(waited);  // a promise that was not kept in time stays open
    touched_by_strike();
    if (have_struck_.exchange(true)) return waited;  // in another wait, of another thread of the rank
    for (const Fault& fault : faults_) {
      if (fault.kind == Kind::kCorrupt && !(waited.ok() && writes && corrupt_output())) continue;
      injector_.struck(fault);
      const absl::Status acted = injector_.act(fault, {.rank = rank(), .group = group_, .op = op_, .seq = seq_}, code);
      if (!acted.ok()) return acted;
      if (fault.kind == Kind::kAbort) aborts_->abort("injected, after the call", code);
    }
    return waited;
  }
  absl::Status time_out(absl::Duration timeout, CodeSite code) override {
    const absl::Status ended = inner_->time_out(timeout, code);
    if (inner_->is_over()) complete(ended);
    return ended;
  }
  // The handle on the inner work goes with this one, which a stream may still hold. An inner work that goes on for its
  // owner keeps this one, if callbacks wait for it: one of the library's, since all those end.
  void dropped() noexcept override {
    inner_->let_go();
    inner_->dropped();
    if (waiting_callbacks() > 0 && dynamic_cast<const MemberWork*>(inner_.get()) != nullptr)
      inner_->when_done(keep(shared_from_this(), &WorkState::complete_with_another));
  }
  bool acts_when_dropped() const override { return true; }
  void await_group_failure() const override { inner_->await_group_failure(); }
  std::vector<TensorView> result() override { return inner_->result(); }
  int source() const override { return inner_->source(); }
  int source_of_message(size_t i) const override { return inner_->source_of_message(i); }
  const char* op() const override { return op_; }
  std::string_view group() const override { return group_; }
  int64_t seq() const override { return seq_; }

 protected:
  // A stream may still hold this work.
  void release_owners() noexcept override {
    await_whole();
    handle_ = Work();
  }
  void await_whole() const override { await_end_of(*inner_); }

 private:
  // Ranks that share the work race for the wait that is struck.
  void touched_by_strike() const;
  // Whether a corrupt call may flip a bit of its output. Once the rank has learned of the end in another way than by a
  // wait, the output is its own memory.
  bool writes_output() const;
  // False: the rank let go of its call on a stream, and of the memory, while the stream waited.
  bool corrupt_output() const;

  const std::shared_ptr<WorkState> inner_;
  Work handle_;  // on the inner work, as long as there is one on this
  const std::vector<Fault> faults_;
  std::atomic<bool> have_struck_ = false;
  FaultInjector& injector_;
  const char* const op_;  // as a scheduling point has it: lives as long as the process
  const std::string group_;
  const int64_t seq_;
  const std::shared_ptr<ProcessGroup> aborts_;
  const std::optional<TensorView> output_;  // whose bit a corrupt call flips
  IssueGate* const gate_;                   // of the stream's call, by which alone this one is waited for; else null
  bool opens_outputs_ = false;              // by a group of rankloom's; another's work does not say when they are free
};

// No signal: a wait needs the end of the call, not the strike of another wait.
[[gnu::noinline]] void FaultWork::touched_by_strike() const {
  if (StepRecord* const record = object() != 0 ? this->record() : nullptr; record != nullptr)
    record->access(object(), Access::kWrite);
}

[[gnu::noinline]] bool FaultWork::writes_output() const {
  if (!output_.has_value()) return false;
  uses_memory_of(world_ref(), rank());
  return !opens_outputs_ || outputs_are_open();
}

bool FaultWork::corrupt_output() const {
  if (gate_ != nullptr && !gate_->enter()) return false;
  flip_bit(*output_);
  if (gate_ != nullptr) (void)gate_->leave();
  return true;
}

}  // namespace

FaultGroup::FaultGroup(RankState* context, std::shared_ptr<ProcessGroup> group, FaultInjector* injector)
    : ProcessGroup(*context, group->group()), inner_(std::move(group)), injector_(injector) {
  if (GroupFront& inner = GroupFront::of(*inner_); inner.can_lose()) {
    GroupFront::of(*this).set_loses(
        [&inner](const CollectiveCall& call, const absl::Status& cause) { inner.lose(call, cause); });
  }
}

void FaultGroup::shutdown(CodeSite code) {
  inner_->shutdown(code);
  ProcessGroup::shutdown(code);
}

std::shared_ptr<ProcessGroup> FaultGroup::make_member(const std::shared_ptr<const Group>& group,
                                                      const GroupOptions& options) {
  return with_faults(*GroupFront::of(*this).rank_state(), inner_->make_member(group, options));
}

absl::StatusOr<Work> FaultGroup::execute(CollectiveCall&& call) {
  const char* const name = call_name(call);
  const GroupFront& front = GroupFront::of(*this);
  const FaultInjector::Call what{.rank = front.rank_state()->rank(),
                                 .group = group()->name(),
                                 .op = name,
                                 .base_op = op_row(call.op).name,
                                 .seq = call.seq,
                                 .sends = call.op == OpType::kSend,
                                 .reads = corruptible(call, ProcessGroup::rank(), When::kBefore) != nullptr,
                                 .writes = corruptible(call, ProcessGroup::rank(), When::kAfter) != nullptr};
  std::vector<Fault> faults = injector_->at(what);
  if (faults.empty()) return inner_->execute(std::move(call));
  const CodeSite code = call.code;
  const int64_t seq = call.seq;
  IssueGate* const gate = call.way.gate;
  std::optional<TensorView> output;
  if (const CollectiveCall* const part = corruptible(call, ProcessGroup::rank(), When::kAfter); part != nullptr)
    output = part->outputs[0];
  // A fault may sleep, an abort has scheduling points, and the rank may let go of a call on its stream meanwhile.
  const auto act = [&](const Fault& fault, std::string_view aborted) {
    const bool kept = gate == nullptr || gate->leave();
    if (kept) injector_->struck(fault);
    absl::Status acted = kept ? injector_->act(fault, what, code) : absl::OkStatus();
    if (kept && acted.ok() && fault.kind == Kind::kAbort) inner_->abort(aborted, code);
    if (gate != nullptr && !(kept && gate->enter()) && acted.ok())
      acted = make_error(ErrorKind::kAborted, "the work was dropped");
    return acted;
  };
  for (const Fault& fault : faults) {
    if (fault.when != When::kBefore) continue;
    if (absl::Status acted = act(fault, "injected, before the call"); !acted.ok()) return acted;
  }
  for (const Fault& fault : faults) {
    if (fault.when == When::kAfter && (fault.kind == Kind::kDrop || fault.kind == Kind::kDuplicate))
      injector_->struck(fault);
  }
  absl::StatusOr<Work> work = execute_once(std::move(call), faults);
  if (!work.ok()) return work;
  for (const Fault& fault : faults) {
    if (fault.when != When::kInside) continue;
    if (absl::Status acted = act(fault, "injected, inside the call"); !acted.ok()) return acted;
  }
  // Those of which `when` says nothing have struck.
  std::erase_if(faults, [](const Fault& fault) {
    return fault.when != When::kAfter || fault.kind == Kind::kDrop || fault.kind == Kind::kDuplicate;
  });
  if (WorkState::of(*work) == nullptr) {  // done already
    for (const Fault& fault : faults) {
      if (absl::Status acted = act(fault, "injected, after the call"); !acted.ok()) return acted;
      if (fault.kind == Kind::kCorrupt) flip_bit(*output);
    }
    return work;
  }
  if (faults.empty()) return work;
  auto wrapped =
      std::make_shared<FaultWork>(front.scheduler(), front.rank_state()->rank(), *std::move(work), std::move(faults),
                                  injector_, name, group()->name(), seq, inner_, std::move(output), gate);
  wrapped->watch();
  return WorkState::handle(std::move(wrapped));
}

absl::StatusOr<Work> FaultGroup::execute_once(CollectiveCall&& call, const std::vector<Fault>& faults) {
  const auto asked = [&faults](Kind kind) {
    return any_of(faults, kind, When::kBefore) || any_of(faults, kind, When::kInside) ||
           any_of(faults, kind, When::kAfter);
  };
  const bool sends = call.op == OpType::kSend;
  if (sends && asked(Kind::kDrop)) return Work();
  std::shared_ptr<const void> copy;
  if (any_of(faults, Kind::kCorrupt, When::kBefore) || any_of(faults, Kind::kCorrupt, When::kInside))
    copy = corrupt_input(call, ProcessGroup::rank());
  const auto execute = [&] {
    absl::StatusOr<Work> work = inner_->execute(std::move(call));
    if (copy != nullptr && work.ok()) {
      injector_->keep(std::move(copy), [state = std::weak_ptr(WorkState::shared(*work))] {
        const std::shared_ptr<WorkState> here = state.lock();
        return here == nullptr || here->is_over();
      });
    }
    return work;
  };
  if (sends && asked(Kind::kDuplicate)) {
    CollectiveCall again;
    auto [twice, owner] = copy_of(call.inputs[0]);
    again.op = call.op;
    again.inputs = TensorList(twice);
    again.peer = call.peer;
    again.tag = call.tag;
    again.code = call.code;
    again.keep_alive = std::move(owner);
    absl::StatusOr<Work> first = execute();
    if (first.ok()) {
      const absl::StatusOr<Work> second = inner_->execute(std::move(again));
      if (!second.ok()) return second.status();
    }
    return first;
  }
  return execute();
}

std::shared_ptr<ProcessGroup> with_faults(RankState& rank, std::shared_ptr<ProcessGroup> group) {
  FaultInjector* const injector = rank.world().faults();
  if (injector == nullptr) return group;
  return std::make_shared<FaultGroup>(&rank, std::move(group), injector);
}

}  // namespace rankloom::internal
