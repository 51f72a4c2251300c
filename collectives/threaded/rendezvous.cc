#include "collectives/threaded/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "collectives/call/poison.h"
#include "collectives/ops/mismatch.h"
#include "collectives/ops/op_table.h"
#include "collectives/streams/device_runtime.h"
#include "collectives/threaded/overlap.h"
#include "collectives/work/wait_text.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/forked_run.h"
#include "sim/base/prefetch.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/acts_for_fibers.h"
#include "world/group_access.h"

namespace rankloom::internal {

namespace {

// The root's call waits for all members, the receivers' calls for the root alone: no access tells of their order.
constexpr std::string_view kRootOnStream = "a root's call on a stream, beside receivers that wait for it alone";

// Of the call itself or of a part.
bool has_tensors(const CollectiveCall& call) {
  return !call.inputs.empty() || !call.outputs.empty() || !call.parts.empty();
}

}  // namespace

struct CollectiveWork::Aside {
  struct Saved {
    TensorView user;  // the caller's memory
    const char* bytes;
  };
  bool in_place = false;                     // the call's input is a copy of its output
  absl::InlinedVector<Saved, 1> outputs;     // what they held, to be put back if the call fails
  absl::InlinedVector<TensorView, 1> given;  // of the root of a broadcast that is done: copies of its tensors
  absl::InlinedVector<std::pair<TensorView, uint64_t>, 1>
      sums;                        // inputs that the caller must not change, with checksums
  std::unique_ptr<char[]> copies;  // of all outputs, and of inputs that the kernel reads instead of the caller's
  size_t room = 0;                 // bytes of `copies`
  static constexpr size_t kMostKept = 4096;

  void clear() {
    outputs.clear();
    sums.clear();
    given.clear();
  }
  // `bytes` of memory for copies, what is there if it is enough.
  char* make_room(size_t bytes) {
    if (bytes > room) {
      copies = std::make_unique_for_overwrite<char[]>(bytes);
      room = bytes;
    }
    return copies.get();
  }
  // `free`: the part of `copies` that nothing is in yet; returns what is left of it.
  char* poison(CollectiveCall& call, bool writes, char* free);
};

CollectiveWork::CollectiveWork(std::shared_ptr<Rendezvous> rendezvous, RankState* context, int group_rank,
                               CollectiveCall&& call, int64_t timeout_ns)
    : MemberWork(context, std::move(call), timeout_ns), rendezvous_(std::move(rendezvous)), group_rank_(group_rank) {}

CollectiveWork::CollectiveWork(std::shared_ptr<Rendezvous> rendezvous, RankState* context, int group_rank)
    : MemberWork(context), rendezvous_(std::move(rendezvous)), group_rank_(group_rank) {}

void CollectiveWork::begin(int64_t timeout_ns) {
  MemberWork::begin(timeout_ns);
  started_ns_ = -1;
  early_ = served_ = false;
  if (!memo_.again) likeness_id_ = 0;
  if (aside_ == nullptr) return;
  aside_->clear();
  if (aside_->room > Aside::kMostKept) aside_ = nullptr;
}

CollectiveWork::~CollectiveWork() = default;

const char* CollectiveWork::op() const { return op_row(call_.op).name; }
std::string_view CollectiveWork::group() const { return rendezvous_->group().name(); }
const Group* CollectiveWork::open_group() const { return &rendezvous_->group(); }

Site CollectiveWork::wait_site(CodeSite code) const {
  return Site{.what = op(), .code = code, .group = group(), .seq = call_.seq, .detail = call_.label, .waits_for = this};
}

absl::Status CollectiveWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  return wait_as(timeout, timeout_is_default, code, [&] { return CollectiveWork::wait_site(code); });
}

void CollectiveWork::append_ranks(std::vector<int>* ranks) const {
  rendezvous_->append_missing(call_.seq, group_rank_, ranks);
}

const RanksElsewhere* CollectiveWork::elsewhere() const { return rendezvous_->elsewhere().get(); }

absl::Status CollectiveWork::explain() const { return rendezvous_->known_cause(call_.seq); }

bool CollectiveWork::take_back(const Withdrawal& why, const absl::Status& ended) {
  return rendezvous_->withdraw(*this, why, ended);
}

void CollectiveWork::wait_longer(absl::Duration* timeout, CodeSite code, absl::Status* waited) {
  while (!is_completed() && error_kind(*waited) == ErrorKind::kTimeout) {
    const int64_t now_ns = scheduler()->now_ns();
    const Deadline until = rendezvous_->wait_until(call_.seq, now_ns);
    if (until.at_ns <= now_ns) break;  // nobody else's time runs
    const absl::Duration longer =
        until.at_ns == Deadline::kNever ? absl::InfiniteDuration() : absl::Nanoseconds(until.at_ns - now_ns);
    *timeout += longer;
    *waited = await(longer, until.weak, code);
  }
}

std::string CollectiveWork::what(bool /*numbered*/) const { return absl::StrCat(op(), " seq ", call_.seq); }
std::string CollectiveWork::waits_in(CodeSite code) const { return site_text(wait_site(code)); }

void CollectiveWork::each_part(absl::FunctionRef<void(CollectiveCall&)> visit) {
  if (call_.parts.empty()) return visit(call_);
  for (CollectiveCall& part : call_.parts.mutable_get()) visit(part);
}

void CollectiveWork::poison() {
  if (aside_ == nullptr) aside_ = std::make_unique<Aside>();
  if (call_.inputs.size() == 1 && call_.outputs.size() == 1 && writes_outputs(call_, group_rank_)) [[likely]] {
    const TensorView& output = call_.outputs[0];
    const size_t bytes = output.bytes();
    if (call_.inputs[0].data() == output.data() && call_.inputs[0].bytes() == bytes && bytes > 0) {
      // One tensor, in place: one copy is both the kernel's input and what the output held.
      char* const copy = aside_->make_room(bytes);
      std::memcpy(copy, output.data(), bytes);
      call_.inputs.set(TensorView(copy, output.dtype(), output.sizes()));
      aside_->in_place = true;
      aside_->outputs.push_back({output, copy});
      fill_with_poison(output);
      return;
    }
  }
  size_t room = 0;
  each_part([&](const CollectiveCall& call) {
    if (!writes_outputs(call, group_rank_)) return;
    for (const TensorList* list : {&call.inputs, &call.outputs}) {
      for (const TensorView& tensor : *list) room += tensor.bytes();
    }
  });
  char* free = aside_->make_room(room);
  each_part([&](CollectiveCall& call) { free = aside_->poison(call, writes_outputs(call, group_rank_), free); });
  if (StepRecord* const explored = record(); explored != nullptr) {
    for (const auto& [input, sum] : aside_->sums) explored->watch_input(this, rank(), memory_of(input));
  }
}

char* CollectiveWork::Aside::poison(CollectiveCall& call, bool writes, char* free) {
  const auto copy = [&free](const TensorView& tensor) {
    char* const bytes = std::exchange(free, free + tensor.bytes());
    if (tensor.bytes() > 0) std::memcpy(bytes, tensor.data(), tensor.bytes());
    return bytes;
  };
  const auto apart = [&](const TensorView& input) {
    if (input.bytes() == 0) return input;
    const bool in_place = writes && std::any_of(call.outputs.begin(), call.outputs.end(),
                                                [&](const TensorView& output) { return overlap(input, output); });
    if (in_place) return TensorView(copy(input), input.dtype(), input.sizes());
    sums.emplace_back(input, checksum(input));
    return input;
  };
  if (call.inputs.size() == 1) {
    call.inputs.set(apart(call.inputs[0]));
  } else {
    std::vector<TensorView> inputs;
    for (const TensorView& input : call.inputs) inputs.push_back(apart(input));
    call.inputs = std::move(inputs);
  }
  if (op_row(call.op).writes == Writes::kOthers && !writes) {
    for (const TensorView& source : call.outputs) sums.emplace_back(source, checksum(source));
  }
  if (!writes) return free;
  for (const TensorView& output : call.outputs) {
    outputs.push_back({output, copy(output)});
    fill_with_poison(output);
  }
  return free;
}

bool CollectiveWork::unpoison(bool failed) {
  if (aside_ == nullptr) return false;
  if (StepRecord* const explored = record(); explored != nullptr) explored->forget_inputs(this);
  bool put_back = false;
  if (failed) {
    for (const Aside::Saved& saved : aside_->outputs) {
      // An output that holds something else was written, or freed: what it held may not go there.
      if (saved.user.bytes() == 0 || !holds_poison(saved.user)) continue;
      std::memcpy(saved.user.data(), saved.bytes, saved.user.bytes());
      put_back = true;
    }
  }
  if (std::exchange(aside_->in_place, false)) call_.inputs.set(call_.outputs[0]);  // as the rank gave it
  // The work may be used again, but not for as much perhaps.
  if (aside_->room > Aside::kMostKept) aside_ = nullptr;
  return put_back;
}

void CollectiveWork::set_aside() {
  if (aside_ == nullptr) aside_ = std::make_unique<Aside>();
  const bool broadcast = call_.op == OpType::kBroadcast;
  const TensorList& list = broadcast ? call_.outputs : call_.inputs;
  size_t room = 0;
  for (const TensorView& tensor : list) room += tensor.bytes();
  char* free = aside_->make_room(room);
  for (const TensorView& tensor : list) {
    char* const bytes = std::exchange(free, free + tensor.bytes());
    if (tensor.bytes() > 0) std::memcpy(bytes, tensor.data(), tensor.bytes());
    aside_->given.push_back(TensorView(bytes, tensor.dtype(), tensor.sizes()));
  }
  if (broadcast) return;  // its tensors are the call's result, too
  if (list.size() == 1) {
    call_.inputs.set(aside_->given[0]);
  } else {
    call_.inputs = std::vector<TensorView>(aside_->given.begin(), aside_->given.end());
  }
}

const TensorView& CollectiveWork::given(int i) const {
  return aside_ != nullptr && !aside_->given.empty() ? aside_->given[static_cast<size_t>(i)] : call_.outputs[i];
}

bool CollectiveWork::input_changed() const {
  if (aside_ == nullptr) return false;
  return std::any_of(aside_->sums.begin(), aside_->sums.end(),
                     [](const auto& sum) { return checksum(sum.first) != sum.second; });
}

bool CollectiveWork::output_written() const {
  if (aside_ == nullptr) return false;
  return !std::all_of(aside_->outputs.begin(), aside_->outputs.end(),
                      [](const Aside::Saved& saved) { return holds_poison(saved.user); });
}

Rendezvous::Rendezvous(WorldState* world, std::shared_ptr<const Group> group,
                       std::shared_ptr<MembersElsewhere> elsewhere)
    : world_(*world),
      scheduler_(world->scheduler()),
      record_(scheduler_.record()),
      group_(std::move(group)),
      size_(group_->size()),
      elsewhere_(std::move(elsewhere)),
      here_(elsewhere_ != nullptr ? elsewhere_->here() : size_),
      poison_(world->poison()),
      late_(world->late_completion()),
      object_(GroupAccess::calls_object(*group_)),
      completing_(&scheduler_),
      mu_(&scheduler_, LockLevel::kRendezvous) {}

// A failure that is still to be told.
struct Rendezvous::Failure {
  absl::Status cause;
  std::vector<Slot*> slots;  // out of the window
  std::shared_ptr<FailsAlong> along;
};

Rendezvous::Slot* Rendezvous::new_slot(int64_t seq) {
  for (int64_t next = base_ + static_cast<int64_t>(window_.size() - front_); next <= seq; ++next) {
    Slot* slot = nullptr;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      slots_.push_back(std::make_unique<Slot>());
      slot = slots_.back().get();
      slot->calls.resize(static_cast<size_t>(size_));
      slot->states.resize(static_cast<size_t>(size_));
    }
    slot->seq = next;
    window_.push_back(slot);
  }
  return find(seq);
}

void Rendezvous::count_completing(Slot* slot, bool completing) {
  if (slot->completing == completing) return;
  slot->completing = completing;
  completing_.add(completing ? 1 : -1);
}

void Rendezvous::begin_run(Slot* slot) {
  slot->state = Slot::State::kRunning;
  count_completing(slot, true);
}

void Rendezvous::take_out(Slot* slot) {
  count_completing(slot, true);
  window_[front_ + static_cast<size_t>(slot->seq - base_)] = nullptr;
  while (front_ < window_.size() && window_[front_] == nullptr) {
    ++front_;
    ++base_;
  }
  if (front_ == window_.size()) {
    window_.clear();
    front_ = 0;
  } else if (front_ >= 64 && front_ >= window_.size() / 2) {
    window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(front_));
    front_ = 0;
  }
}

void Rendezvous::recycle(Slot* slot) {
  slot->state = Slot::State::kCollecting;
  slot->arrived = 0;
  slot->mismatch = false;
  slot->early = slot->served = 0;
  slot->first = -1;
  slot->seq = 0;
  slot->launch = nullptr;
  free_.push_back(slot);
}

// `same` of a row is an equivalence, so that names of what it held for may be compared in its place.
[[gnu::noinline]] bool Rendezvous::same_anew(CollectiveWork& first, CollectiveWork& call) {
  if (!op_row(first.call_.op).same(first.call_, call.call_)) return false;
  if (first.likeness_id_ == 0) first.likeness_id_ = ++last_likeness_id_;
  call.likeness_id_ = first.likeness_id_;
  return true;
}

inline void Rendezvous::enter(Slot& slot, const std::shared_ptr<CollectiveWork>& state) {
  const size_t rank = static_cast<size_t>(state->group_rank_);
  const CollectiveCall& call = state->call();
  if (slot.first < 0) {
    slot.first = static_cast<int>(rank);
  } else if (!slot.mismatch) {
    slot.mismatch = !same(*slot.states[static_cast<size_t>(slot.first)], *state);
  }
  slot.calls[rank] = &call;
  slot.states[rank] = state;
  ++slot.arrived;
}

void Rendezvous::take_back(Slot& slot, size_t rank) {
  if (slot.states[rank]->early_) --slot.early;
  slot.calls[rank] = nullptr;
  slot.states[rank].reset();
  --slot.arrived;
  slot.state = Slot::State::kCollecting;
  // Members that stay are compared among themselves.
  slot.first = -1;
  slot.mismatch = false;
  for (size_t other = 0; other < slot.calls.size(); ++other) {
    const CollectiveCall* const call = slot.calls[other];
    if (call == nullptr) continue;
    if (slot.first < 0) slot.first = static_cast<int>(other);
    const CollectiveCall& first = *slot.calls[static_cast<size_t>(slot.first)];
    slot.mismatch = slot.mismatch || !op_row(first.op).same(first, *call);
  }
}

absl::Status Rendezvous::file(const std::shared_ptr<CollectiveWork>& state) {
  const CollectiveCall& call = state->call();
  const size_t rank = static_cast<size_t>(state->group_rank_);
  if (poison_ && call_device(call).kind == Device::Kind::kCpu) state->poison();
  Slot* slot = nullptr;
  bool serves = false;
  {
    ObservedMutexLock lock(&mu_);
    if (!failed_.ok()) return refused(*state);
    slot = slot_at(call.seq);
    if (slot == nullptr || slot->calls[rank] != nullptr) return refused(*state);
    if (record_ != nullptr) [[unlikely]] {
      record_->access(object_, Access::kCommute);
      record_->signal(object_of(*slot));
      if (slot->early > 0 && op_row(call.op).rooted == Rooted::kGives && only_gives(call, state->group_rank_))
        record_->uncovered(kRootOnStream);
      record_->signal(part_object(*slot, rank));
    }
    enter(*slot, state);
    if (slot->arrived < here_) {
      // Of a root's call on a stream: receivers that have come wait for nobody else.
      serves = slot->early > 0 && only_gives(call, state->group_rank_) && op_row(call.op).rooted == Rooted::kGives;
      if (!any_unwound_.load(std::memory_order_relaxed) && !serves) [[likely]]
        return absl::OkStatus();
      slot = nullptr;
    } else {
      late_ || elsewhere_ != nullptr ? void(slot->state = Slot::State::kReady) : begin_run(slot);
    }
  }
  if (slot == nullptr) [[unlikely]] {
    if (serves) serve_waiting(call.seq);
    if (any_unwound_.load(std::memory_order_relaxed)) look_at_unwound();
    return absl::OkStatus();
  }
  if (elsewhere_ != nullptr) [[unlikely]] {
    elsewhere_->meet(slot->seq, MemberCalls(slot->calls), !slot->mismatch);
  } else if (late_) {
    run_later(slot, call, static_cast<int>(rank));
  } else {
    run(slot);
  }
  return absl::OkStatus();
}

void Rendezvous::met(int64_t seq, absl::FunctionRef<bool(std::vector<const CollectiveCall*>& calls)> bring) {
  Slot* slot = nullptr;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // of no explored run, as the two below
    slot = find(seq);
    if (slot == nullptr || slot->state != Slot::State::kReady) return;
    begin_run(slot);
  }
  const int64_t started_ns = scheduler_.now_ns();
  if (!bring(slot->calls)) return end(slot, absl::OkStatus(), started_ns);
  const CollectiveCall& first = *slot->calls[static_cast<size_t>(slot->first)];
  for (const CollectiveCall* const call : slot->calls)
    slot->mismatch = slot->mismatch || !op_row(first.op).same(first, *call);
  run(slot);
}

void Rendezvous::look(int64_t seq, absl::FunctionRef<void(MemberCalls calls)> reader) const {
  const Slot* slot = nullptr;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();
    slot = find(seq);
    if (slot == nullptr || slot->state != Slot::State::kReady) return;
  }
  reader(MemberCalls(slot->calls));
}

std::vector<Rendezvous::Arrived> Rendezvous::arrived() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();
  std::vector<Arrived> all;
  for (const Slot* const slot : window_) {
    if (slot == nullptr || slot->arrived == 0) continue;
    all.push_back({.seq = slot->seq, .ranks = {}});
    for (int rank = 0; rank < size_; ++rank) {
      if (slot->calls[static_cast<size_t>(rank)] != nullptr) all.back().ranks.push_back(rank);
    }
  }
  return all;
}

struct Rendezvous::Early {
  absl::InlinedVector<std::shared_ptr<CollectiveWork>, 4> served;  // to be completed
  absl::InlinedVector<std::shared_ptr<CollectiveWork>, 4> later;   // for serve_later()
  std::shared_ptr<CollectiveWork> touched;                         // has written to an output before its call was done
  bool ended = false;    // the slot's last member was served: nobody else has it
  Slot* slot = nullptr;  // that one
  int64_t started_ns = 0;
};

bool Rendezvous::root_serves(const Slot& slot, size_t rank) const {
  const CollectiveCall& call = *slot.calls[rank];
  const CollectiveCall* const root = slot.calls[static_cast<size_t>(call.root)];
  return root != nullptr && (!slot.mismatch || op_row(call.op).same(*root, call));
}

void Rendezvous::give(const Slot& slot, const CollectiveWork& to) {
  const CollectiveCall& call = to.call_;
  const CollectiveWork& root = *slot.states[static_cast<size_t>(call.root)];
  const bool broadcast = call.op == OpType::kBroadcast;
  if (broadcast && &root == &to) return;
  for (int i = 0; i < call.outputs.size(); ++i) {
    const TensorView& output = call.outputs[i];
    const TensorView& from = broadcast ? root.given(i) : root.call_.inputs[to.group_rank_];
    if (output.bytes() > 0 && output.data() != from.data()) std::memcpy(output.data(), from.data(), output.bytes());
  }
}

void Rendezvous::serve(Slot* slot, CollectiveWork& state, Early* early) {
  const std::shared_ptr<CollectiveWork>& mine = slot->states[static_cast<size_t>(state.group_rank_)];
  if (state.output_written()) {
    early->touched = mine;
    return;
  }
  if (op_row(state.call_.op).rooted == Rooted::kGives) give(*slot, state);
  state.served_ = true;
  ++slot->served;
  completing_.add(1);
  early->served.push_back(mine);
  if (slot->served < size_ || slot->mismatch) return;
  begin_run(slot);
  early->ended = true;
  early->slot = slot;
}

void Rendezvous::serve_or_put_off(Slot* slot, size_t rank, Early* early) {
  CollectiveWork* const receiver = slot->states[rank].get();
  if (receiver == nullptr || !receiver->early_ || receiver->served_ || !root_serves(*slot, rank)) return;
  late_ ? early->later.push_back(slot->states[rank]) : serve(slot, *receiver, early);
}

void Rendezvous::serve_waiting(Slot* slot, Early* early) {
  for (size_t rank = 0; rank < static_cast<size_t>(size_); ++rank) serve_or_put_off(slot, rank, early);
}

[[gnu::noinline]] void Rendezvous::serve_waiting(int64_t seq) {
  Early early;
  early.started_ns = scheduler_.now_ns();
  Slot* slot = nullptr;
  {
    ObservedMutexLock lock(&mu_);
    slot = find(seq);
    if (slot == nullptr || slot->state != Slot::State::kCollecting) return;  // the last member has come meanwhile
    serve_waiting(slot, &early);
  }
  for (const std::shared_ptr<CollectiveWork>& other : early.later) serve_later(slot, *other);
  complete_served(std::move(early));
}

void Rendezvous::complete_served(Early early) {
  Completion completion;
  for (const std::shared_ptr<CollectiveWork>& state : early.served) {
    if (!only_gives(state->call_, state->group_rank_)) {
      if (record_ != nullptr) record_->settle_memory(state->rank());
      state->unpoison(/*failed=*/false);
    }
    state->started_ns_ = early.started_ns;
    state->complete(absl::OkStatus());
    completing_.add(-1);
  }
  if (early.touched != nullptr) [[unlikely]] {
    const CollectiveWork& state = *early.touched;
    const absl::Status cause = touched_early(world_, state.rank(), state.who(state.what(/*numbered=*/true)),
                                             state.call_.code, Touched::kOutput, state.goes_on_alone());
    // No other member need hear of it, and the rank may never ask.
    fail(cause, [&](const absl::Status& first) {
      if (first == cause) world_.not_retrieved(cause);
    });
  }
  if (early.ended) end(early.slot, absl::OkStatus(), early.started_ns);
  completion.end();
  for (std::shared_ptr<CollectiveWork>& state : early.served) Completion::drop(std::move(state));
}

absl::Status Rendezvous::file_early(const std::shared_ptr<CollectiveWork>& state) {
  CollectiveWork& mine = *state;
  const CollectiveCall& call = mine.call();
  const int64_t seq = call.seq;
  const size_t rank = static_cast<size_t>(mine.group_rank_);
  const bool gives = only_gives(call, mine.group_rank_);
  const bool from_root = op_row(call.op).rooted == Rooted::kGives;
  mine.early_ = true;
  if (poison_ && !gives) mine.poison();
  Early early;
  early.started_ns = scheduler_.now_ns();
  Slot* slot = nullptr;
  bool all = false;
  {
    ObservedMutexLock lock(&mu_);
    if (!failed_.ok()) return refused(mine);
    slot = slot_at(seq);
    if (slot == nullptr || slot->calls[rank] != nullptr) return refused(mine);
    if (record_ != nullptr) [[unlikely]] {
      record_->access(object_, Access::kCommute);
      record_->signal(object_of(*slot));
      record_->signal(part_object(*slot, rank));
      const CollectiveWork* const root =
          from_root && !gives ? slot->states[static_cast<size_t>(call.root)].get() : nullptr;
      if (root != nullptr && !root->early_) record_->uncovered(kRootOnStream);
    }
    enter(*slot, state);
    ++slot->early;
    // The others of this call that wait for nobody else now, and this one.
    if (gives) {
      serve(slot, mine, &early);
      if (slot->arrived < size_ || late_) mine.set_aside();
      if (from_root) serve_waiting(slot, &early);
    } else {
      serve_or_put_off(slot, rank, &early);
    }
    if (slot->arrived == size_ && (slot->early < size_ || slot->mismatch)) {
      all = true;
      late_ ? void(slot->state = Slot::State::kReady) : begin_run(slot);
    }
  }
  const bool unwound = any_unwound_.load(std::memory_order_relaxed);
  for (const std::shared_ptr<CollectiveWork>& other : early.later) serve_later(slot, *other);
  complete_served(std::move(early));
  if (all) {
    late_ ? run_later(slot, call, static_cast<int>(rank)) : run(slot);
  } else if (unwound) [[unlikely]] {
    look_at_unwound();
  }
  return absl::OkStatus();
}

void Rendezvous::serve_later(Slot* slot, const CollectiveWork& state) {
  const CollectiveCall& call = state.call();
  const int64_t seq = call.seq;
  const size_t rank = static_cast<size_t>(state.group_rank_);
  // Whichever of the two comes second, the root or the member, makes the task.
  if (record_ != nullptr) StepRecord::name_next_task(part_object(*slot, rank));
  scheduler_.post({.rank = state.rank(), .kind = TaskKind::kCompletion},
                  Site{.what = op_row(call.op).name, .code = call.code, .group = group_->name(), .seq = seq},
                  [self = shared_from_this(), slot, seq, rank] {
                    Early early;
                    early.started_ns = self->scheduler_.now_ns();
                    {
                      ObservedMutexLock lock(&self->mu_);
                      self->touched_group(Access::kCommute);  // a withdrawal might have come first, or come later
                      // In the free gear the group may have failed meanwhile, and the slot be about to end.
                      if (slot == nullptr || self->find(seq) != slot || slot->state == Slot::State::kRunning) return;
                      CollectiveWork* const mine = slot->states[rank].get();
                      if (mine == nullptr || mine->served_ || !self->root_serves(*slot, rank)) return;
                      if (self->record_ != nullptr) {
                        self->record_->await(self->part_object(*slot, static_cast<size_t>(mine->call().root)));
                        self->record_->await(self->part_object(*slot, rank));
                      }
                      self->serve(slot, *mine, &early);
                    }
                    self->complete_served(std::move(early));
                  });
}

// Not inlined, as what follows: their locals would take hundreds of bytes of each rank's stack, which large worlds keep
// within a page.
[[gnu::noinline]] absl::Status Rendezvous::refused(CollectiveWork& state) const {
  touched_group(Access::kRead);
  state.unpoison(/*failed=*/true);
  // Of an end of the world between the call's scheduling point and here the caller hears as at the point.
  if (scheduler_.aborted() && failed_.message() == scheduler_.abort_cause().message()) return failed_;
  const std::string who = absl::StrCat("rank ", state.rank(), ", group ", group_->name(), ", ", state.op(), " seq ",
                                       state.call().seq, site_place(Site{.code = state.call().code}), ": ");
  if (!failed_.ok())
    return blamed_as(make_error(ErrorKind::kAborted, who, "the group failed before: ", failed_.message()), failed_);
  return invalid_argument(who,
                          "this rank has filed a call with this number already, want one handle per rank and group");
}

[[gnu::noinline]] void Rendezvous::run_later(Slot* slot, const CollectiveCall& call, int rank) {
  // Whichever member comes last makes the task.
  if (record_ != nullptr) StepRecord::name_next_task(object_of(*slot));
  scheduler_.post({.rank = group_->global_rank(rank), .kind = TaskKind::kCompletion},
                  Site{.what = op_row(call.op).name, .code = call.code, .group = group_->name(), .seq = call.seq},
                  [self = shared_from_this(), slot, seq = call.seq] {
                    {
                      ObservedMutexLock lock(&self->mu_);
                      self->touched_group(Access::kCommute);  // a withdrawal might have come first, or come later
                      if (slot->seq != seq || slot->state != Slot::State::kReady) return;  // withdrawn meanwhile
                      self->begin_run(slot);
                    }
                    self->run(slot);
                  });
}

absl::Status Rendezvous::agree(const Slot& slot) const {
  const MemberCalls calls(slot.calls);
  const OpRow& row = op_row(calls[0]->op);
  bool fault = slot.mismatch;
  if (!fault && row.cross != nullptr) {
    row.cross(calls, [&fault](const PairFault&) {
      fault = true;
      return false;
    });
  }
  return fault ? describe_difference(slot) : absl::OkStatus();
}

absl::Status Rendezvous::describe_difference(const Slot& slot) const {
  const auto global = [this](int rank) { return group_->global_rank(rank); };
  const auto is_here = [this](int rank) { return elsewhere_ == nullptr || elsewhere_->is_here(rank); };
  const auto last_calls = [&](int rank) {
    if (!is_here(rank)) return elsewhere_->last_calls(slot.seq, rank);
    return world_.context(group_->global_rank(rank)).recorder().last_calls(5, group_.get());
  };
  const auto whereabouts = [&](int rank) {
    const std::string ended = world_.ended_text(group_->global_rank(rank));
    if (ended.empty() && has_come(slot, rank)) return std::string("has called, in another process");
    return ended.empty() ? std::string("has not called") : ended;
  };
  return describe_mismatch({.group = group_->name(),
                            .seq = slot.seq,
                            .global_rank = global,
                            .last_calls = last_calls,
                            .whereabouts = whereabouts},
                           MemberCalls(slot.calls));
}

absl::Status Rendezvous::known_cause(int64_t seq) const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // for reports
  for (const auto& [left, unwound] : unwound_) {
    if (left <= seq) return unwound.cause;
  }
  const Slot* const slot = find(seq);
  return slot != nullptr && slot->mismatch ? describe_difference(*slot) : absl::OkStatus();
}

void Rendezvous::await_completing() const {
  if (scheduler_.deterministic()) return;  // nobody completes anything beside the calling step
  for (WaitTurns turns; completing_.value() > 0;) turns.next();
}

void Rendezvous::await_failed(int rank) const {
  if (scheduler_.deterministic()) return;  // a failure is one step
  for (WaitTurns turns; spreading_.load(std::memory_order_acquire);) turns.next();
  await_completing();
  if (world_.uses_device()) return;  // a stream of a device comes to a message when it comes to it
  std::shared_ptr<FailsAlong> along;
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // of no explored run
    along = fails_along_.lock();
  }
  if (along != nullptr) along->await_moves(rank);
}

void CollectiveWork::await_group_failure() const { rendezvous_->await_failed(group_rank_); }

void Rendezvous::run(Slot* slot) {
  if (record_ != nullptr) record_->await(object_of(*slot));
  const int64_t started_ns = scheduler_.now_ns();
  if (__asan_region_is_poisoned != nullptr) [[unlikely]]
    look_for_freed_memory(*slot);
  absl::Status status = agree(*slot);
  if (poison_ && status.ok()) status = buffers_untouched(*slot);
  if (status.ok()) {
    if (call_device(*slot->calls[0]).kind != Device::Kind::kCpu) [[unlikely]] {
      status = start_on_device(slot, started_ns);
      if (status.ok()) return;
    } else if (slot->served > 0 && op_row(slot->calls[0]->op).rooted == Rooted::kGives) [[unlikely]] {
      for (const std::shared_ptr<CollectiveWork>& state : slot->states) {
        if (!state->served_) give(*slot, *state);
      }
    } else {
      {
        const LongPart part(scheduler_);
        op_row(slot->calls[0]->op).run(MemberCalls(slot->calls), nullptr);
      }
      if (elsewhere_ != nullptr) [[unlikely]]
        elsewhere_->ran(MemberCalls(slot->calls));
    }
  }
  end(slot, status, started_ns);
}

[[gnu::noinline]] void Rendezvous::look_for_freed_memory(const Slot& slot) const {
  for (int rank = 0; rank < size_; ++rank) {
    const CollectiveWork* const state = slot.states[static_cast<size_t>(rank)].get();
    if (state == nullptr || state->served_) continue;  // in another process; its memory is the rank's own again
    const CollectiveCall& call = *slot.calls[static_cast<size_t>(rank)];
    if (call_device(call).kind == Device::Kind::kCpu) report_freed_memory(call, rank);
  }
}

absl::Status Rendezvous::start_on_device(Slot* slot, int64_t started_ns) {
  const auto error = [what = op_row(slot->calls[0]->op).name, seq = slot->seq, this](const absl::Status& status) {
    return prefixed(status, "group ", group_->name(), ", ", what, " seq ", seq, ": ");
  };
  const Device device = call_device(*slot->calls[0]);
  std::vector<const DeviceMark*> ready;
  for (const CollectiveCall* const call : slot->calls) {
    const Device mine = call_device(*call);
    if (call->way.ready != nullptr) ready.push_back(call->way.ready.get());
    if (mine != device) {
      return error(absl::InvalidArgumentError(
          absl::StrCat("members' tensors are on ", device.name(), " and ", mine.name(), ", want one device")));
    }
  }
  const auto launch = std::make_shared<DeviceLaunch>();
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // a search vouches for nothing that a device does
    slot->launch = launch;
    count_completing(slot, false);
  }
  KernelPlan plan;
  op_row(slot->calls[0]->op).run(MemberCalls(slot->calls), &plan);
  const Site site{.what = op_row(slot->calls[0]->op).name, .group = group_->name(), .seq = slot->seq};
  const absl::Status started = DeviceRuntime::of(world_)->launch(
      launch, group_->global_rank(0), device.index, site, std::move(plan), ready,
      [self = shared_from_this(), slot, error, started_ns](const absl::Status& status) {
        self->end(slot, status.ok() ? status : error(status), started_ns);
      });
  return started.ok() ? started : error(started);
}

void Rendezvous::end(Slot* slot, const absl::Status& status, int64_t started_ns) {
  if (!status.ok()) [[unlikely]]
    return end_failed(slot, status, started_ns);
  {
    ObservedMutexLock lock(&mu_);
    lock.apart();  // the slot is this step's own: run() told of what came before
    take_out(slot);
  }
  finish(slot, status, started_ns);
}

[[gnu::noinline]] void Rendezvous::end_failed(Slot* slot, const absl::Status& status, int64_t started_ns) {
  Failure failure;
  absl::Status first;
  {
    ObservedMutexLock lock(&mu_);
    take_out(slot);
    failure = set_failed(status);
    first = failed_;
  }
  // With members elsewhere a rank of another process may retrieve the error.
  if (elsewhere_ == nullptr && first == status) world_.not_retrieved(status);
  Completion completion;
  finish(slot, first, started_ns);
  spread(failure);
  completion.end();
}

Rendezvous::Failure Rendezvous::set_failed(const absl::Status& cause) {
  Failure failure;
  touched_group(Access::kWrite);
  if (!failed_.ok()) return failure;
  // In the free gear a rank may know of the end of the world before the group is told.
  failed_ = failure.cause = scheduler_.aborted() ? scheduler_.abort_cause() : cause;
  spreading_.store(true, std::memory_order_relaxed);
  failure.along = fails_along_.lock();
  if (failure.along != nullptr) failure.along->set_failed(failed_);
  unwound_.clear();
  any_unwound_.store(false, std::memory_order_relaxed);
  for (Slot* slot : window_) {
    if (slot != nullptr && slot->state != Slot::State::kRunning) failure.slots.push_back(slot);
  }
  for (Slot* slot : failure.slots) {
    slot->state = Slot::State::kCollecting;
    take_out(slot);
  }
  return failure;
}

void Rendezvous::spread(const Failure& failure) {
  Completion completion;
  for (Slot* slot : failure.slots) finish(slot, failure.cause);
  if (failure.along != nullptr) failure.along->spread(failure.cause);
  if (!failure.cause.ok()) {
    if (elsewhere_ != nullptr) elsewhere_->failed(failure.cause);
    spreading_.store(false, std::memory_order_release);
  }
  completion.end();
}

absl::Status Rendezvous::failure() const {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the refusal that the caller has met told
  return failed_;
}

absl::Status Rendezvous::fails_along(std::weak_ptr<FailsAlong> other) {
  ObservedMutexLock lock(&mu_);
  lock.apart();  // the first rank to come makes the mailbox; the post that follows tells
  if (failed_.ok()) fails_along_ = std::move(other);
  return failed_;
}

absl::Status Rendezvous::buffers_untouched(const Slot& slot) const {
  for (const std::shared_ptr<CollectiveWork>& state : slot.states) {
    if (state == nullptr || state->served_) continue;
    const bool input = state->input_changed();
    if (!input && !state->output_written()) [[likely]]
      continue;
    const std::string who =
        absl::StrCat("rank ", state->rank(), ", group ", group_->name(), ", ", state->op(), " seq ", slot.seq);
    return touched_early(world_, state->rank(), who, state->call().code, input ? Touched::kInput : Touched::kOutput,
                         state->goes_on_alone());
  }
  return absl::OkStatus();
}

inline void Rendezvous::complete(CollectiveWork& state, const absl::Status& status, int64_t now_ns) {
  const auto close = [&] { state.close_own_record(now_ns, status.ok(), state.started_ns_); };
  if (!state.complete_simply(status, close)) [[unlikely]]
    state.complete(status);
}

void Rendezvous::finish(Slot* slot, const absl::Status& status, int64_t started_ns) {
  Completion completion;
  const bool prefetches = scheduler_.prefetches();
  const int64_t now_ns = scheduler_.now_ns();
  for (size_t rank = 0; rank < slot->states.size(); ++rank) {
    if (prefetches) {
      fetch_ahead(kWorkTurns, [slot, rank](int turns, Fetch step) {
        const size_t later = rank + static_cast<size_t>(turns);
        if (later < slot->states.size() && slot->states[later] != nullptr) slot->states[later]->prefetch(step);
      });
    }
    slot->calls[rank] = nullptr;
    const std::shared_ptr<CollectiveWork>& state = slot->states[rank];
    if (state == nullptr || state->served_) continue;
    const bool put_back = state->aside_ != nullptr && state->unpoison(!status.ok());
    if (record_ != nullptr && has_tensors(state->call())) record_->settle_memory(state->rank(), put_back);
    state->started_ns_ = started_ns;
    complete(*state, status, now_ns);
  }
  count_completing(slot, false);
  completion.end();
  if (Completion::open()) {
    for (std::shared_ptr<CollectiveWork>& state : slot->states) Completion::drop(std::move(state));
  } else {
    for (std::shared_ptr<CollectiveWork>& state : slot->states) state.reset();
  }
  ObservedMutexLock lock(&mu_);
  lock.apart();  // an empty slot is like any other
  recycle(slot);
}

bool Rendezvous::withdraw(CollectiveWork& state, const Withdrawal& why, const absl::Status& ended) {
  using Why = Withdrawal::Why;
  const size_t rank = static_cast<size_t>(state.group_rank_);
  const int64_t seq = state.call().seq;
  Failure failure;
  absl::Status as = ended;
  bool taken = true;
  {
    ObservedMutexLock lock(&mu_);
    touched_group(Access::kWrite);
    Slot* const slot = find(seq);
    if (slot != nullptr && slot->states[rank].get() == &state && slot->state != Slot::State::kRunning &&
        !state.served_) {
      taken = false;
      state.unpoison(/*failed=*/true);
      take_back(*slot, rank);
      if (why.why == Why::kFailure) {
        failure = set_failed(why.cause);
        if (failed_ != why.cause) as = failed_;
      }
      if (why.why == Why::kUnwinding) {
        unwound_.emplace_back(seq, Unwound{Task::current_serial(), why.cause});
        any_unwound_.store(true, std::memory_order_relaxed);
      }
    }
  }
  if (!taken) {
    Completion completion;
    state.complete(as);
    spread(failure);
    completion.end();
    if (why.why == Why::kUnwinding) look_when_caught(*state.rank_state_);
    return why.why != Why::kFailure || as == ended;
  }
  // A kernel has it, for as long as a kernel takes. No scheduling point: what takes the call back is one step.
  for (WaitTurns turns; !state.is_over();) {
    std::shared_ptr<DeviceLaunch> launch;
    {
      ObservedMutexLock lock(&mu_);
      lock.apart();  // the kernel runs beside the explored steps
      const Slot* const slot = find(seq);
      if (slot != nullptr && slot->states[rank].get() == &state) launch = slot->launch;
    }
    if (launch != nullptr) {
      DeviceRuntime::of(world_)->await_device(launch, why.why == Why::kUnwinding);
      return false;
    }
    turns.next();
  }
  return false;
}

bool Rendezvous::fail(const absl::Status& cause, absl::FunctionRef<void(const absl::Status&)> taken) {
  Failure failure;
  absl::Status first;
  {
    ObservedMutexLock lock(&mu_);
    touched_group(Access::kWrite);
    failure = set_failed(cause);
    first = failed_;
  }
  const bool fails = !failure.cause.ok();
  Completion completion;
  taken(first);
  spread(failure);
  completion.end();
  return fails;
}

void Rendezvous::lose(RankState& rank, int64_t seq, const absl::Status& cause) {
  {
    ObservedMutexLock lock(&mu_);
    touched_group(failed_.ok() ? Access::kWrite : Access::kRead);
    if (!failed_.ok()) return;  // nobody waits for a call any more
    unwound_.emplace_back(seq, Unwound{Task::current_serial(), cause});
    any_unwound_.store(true, std::memory_order_relaxed);
  }
  look_when_caught(rank);
}

void Rendezvous::look_when_caught(RankState& rank) {
  rank.when_caught([weak = weak_from_this()] {
    if (const std::shared_ptr<Rendezvous> self = weak.lock(); self != nullptr) self->look_at_unwound();
  });
}

[[gnu::noinline]] void Rendezvous::look_at_unwound() {
  std::vector<std::string> news;
  absl::Status cause;
  {
    ObservedMutexLock lock(&mu_);
    touched_group(Access::kRead);
    for (auto& [seq, unwound] : unwound_) {
      if (unwound.look()) news.emplace_back(unwound.cause.message());
      const auto needs = [seq = seq](const Slot* slot) {
        return slot != nullptr && slot->seq >= seq && slot->arrived > slot->served;
      };
      if (unwound.caught && cause.ok() && std::any_of(window_.begin(), window_.end(), needs)) cause = unwound.cause;
    }
  }
  for (std::string& text : news) world_.note(WorldState::NoteKind::kLeftover, std::move(text));
  if (!cause.ok()) fail(cause);
}

void Rendezvous::note_left() const {
  std::vector<std::string> notes;
  {
    // Calls of the same members that are alike but for their sequence number share a line, under the first.
    struct Left {
      std::string who;
      std::string missing;
      const CollectiveCall* first;
      int more;
    };
    std::vector<Left> left;
    ObservedMutexLock lock(&mu_);
    lock.apart();  // nobody uses the group any more, and the fail() that follows tells
    for (const Slot* const slot : window_) {
      if (slot == nullptr || slot->arrived == 0) continue;
      std::vector<int> came;
      std::vector<int> missing;
      const CollectiveCall* first = nullptr;
      for (int rank = 0; rank < size_; ++rank) {
        const CollectiveCall* const call = slot->calls[static_cast<size_t>(rank)];
        (has_come(*slot, rank) ? came : missing).push_back(group_->global_rank(rank));
        if (first == nullptr) first = call;
      }
      std::sort(came.begin(), came.end());
      std::sort(missing.begin(), missing.end());
      Left next{.who = absl::StrCat(ranks_text(came), ", group ", group_->name(), ", ", op_row(first->op).name),
                .missing = ranks_text(missing),
                .first = first,
                .more = 0};
      if (!left.empty() && left.back().who == next.who && left.back().missing == next.missing) {
        ++left.back().more;
      } else {
        left.push_back(std::move(next));
      }
    }
    for (const Left& calls : left) {
      notes.push_back(absl::StrCat(
          calls.who, " seq ", calls.first->seq, ": ", calls.missing, " never came",
          calls.more == 0
              ? ""
              : absl::StrCat(", nor to the ", calls.more == 1 ? "one" : absl::StrCat(calls.more), " after it"),
          site_place(Site{.code = calls.first->code})));
    }
  }
  for (std::string& note : notes) world_.note(WorldState::NoteKind::kLeftover, std::move(note));
}

Deadline Rendezvous::wait_until(int64_t seq, int64_t now_ns) const {
  ObservedMutexLock lock(&mu_);
  const Slot* const slot = find(seq);
  int64_t latest_ns = 0, latest_weak_ns = 0;
  touched_group(Access::kRead);
  if (slot != nullptr && slot->state == Slot::State::kCollecting) {
    for (const CollectiveCall* const call : slot->calls) {
      if (call == nullptr) continue;
      int64_t& latest = call->timeout_is_default ? latest_weak_ns : latest_ns;
      latest = std::max(latest, call->way.wait_until_ns);
    }
  }
  if (latest_ns > now_ns) return {.at_ns = latest_ns, .weak = false};
  return {.at_ns = latest_weak_ns, .weak = true};
}

void Rendezvous::append_missing(int64_t seq, int rank, std::vector<int>* ranks) const {
  ObservedMutexLock lock(&mu_);
  touched_group(Access::kRead);  // a warning and a timeout name the missing members, too
  const Slot* const slot = find(seq);
  if (slot == nullptr) return;
  const auto came = [this, slot](int member) { return has_come(*slot, member); };
  const CollectiveWork* const mine = slot->states[static_cast<size_t>(rank)].get();
  if (mine != nullptr && mine->early_) {
    const int root = mine->call_.root;
    if (!came(root)) ranks->push_back(group_->global_rank(root));
    if (!came(root) || root_serves(*slot, static_cast<size_t>(rank))) return;
  }
  for (int member = 0; member < size_; ++member) {
    if (!came(member)) ranks->push_back(group_->global_rank(member));
  }
}

std::vector<std::shared_ptr<WorkState>> Rendezvous::unfinished(int rank) const {
  ObservedMutexLock lock(&mu_);
  touched_group(Access::kRead);
  std::vector<std::shared_ptr<WorkState>> works;
  for (const Slot* const slot : window_) {
    if (slot == nullptr) continue;
    const std::shared_ptr<CollectiveWork>& state = slot->states[static_cast<size_t>(rank)];
    if (state != nullptr && !(state->served_ && state->is_over())) works.push_back(state);
  }
  return works;
}

}  // namespace rankloom::internal
