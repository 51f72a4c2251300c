#include "tests/campaign/rank_run.h"

#include "absl/strings/str_cat.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

RankRun::RankRun(const Plan& plan, RankContext& rank, RankLog* log, Beside* beside, std::shared_ptr<Arrivals> arrivals)
    : plan_(plan),
      job_(plan.job()),
      rank_(rank),
      log_(*log),
      beside_(*beside),
      memory_(beside->memory),
      shadow_(own_seed(plan.job().seed, rank.rank())),
      state_(first_state(rank.rank())),
      arrivals_(std::move(arrivals)) {}

void RankRun::run() {
  groups_[{0, 0}] = init_process_group(rank_, group_options());
  for (size_t i = 0; i < job_.acts.size(); ++i) {
    if (plan_.where(i) != nullptr && !step(job_.acts[i], *plan_.where(i))) return;
  }
  while (!open_.empty()) finish(open_.begin()->first, WaitWay::kWait);
  memory_.check();
}

void RankRun::see(int act, std::string saw) {
  state_ = fold(state_, act, saw);
  log_.seen.push_back({act, std::move(saw)});
}

GroupOptions RankRun::group_options() const {
  GroupOptions options = {.eager_bytes = static_cast<size_t>(job_.eager_bytes),
                          .rooted = static_cast<GroupOptions::Rooted>(job_.rooted)};
  if (job_.order != 0) options.order = order_of({.order = job_.order}, 0);
  return options;
}

SimStream& RankRun::stream(int i) {
  std::unique_ptr<SimStream>& own = streams_[i];
  if (own == nullptr) own = std::make_unique<SimStream>(rank_, absl::StrCat("s", i));
  return *own;
}

bool RankRun::step(const Act& act, const Partition& where) {
  const bool mine = act.rank == me();
  const bool member = where.has(me());
  switch (act.type()) {
    case ActKind::kCollective:
    case ActKind::kCoalesced:
    case ActKind::kMessage:
    case ActKind::kAnySource:
    case ActKind::kRing:
    case ActKind::kCrossed:
      if (member) call(act, where);
      break;
    case ActKind::kTwoGroups:
      two_groups(act, where);
      break;
    case ActKind::kWait:
      if (mine) finish(act.a, static_cast<WaitWay>(act.b));
      break;
    case ActKind::kMonitored:
      if (member) monitored(act, group(act), where.of(me()));
      break;
    case ActKind::kNewGroup:
    case ActKind::kSplitGroup:
    case ActKind::kMesh:
    case ActKind::kInitGroup:
      if (member) make_groups(act, where);
      break;
    case ActKind::kDestroyGroup:
      if (member) destroy_process_group(groups_.at({act.group, act.dim}));
      break;
    case ActKind::kOptions:
      if (mine && member) {
        const std::shared_ptr<ProcessGroup>& pg = groups_.at({act.group, act.dim});
        pg->set_timeout(absl::Hours(2));
        pg->set_warn_after(absl::InfiniteDuration());
        see(act.id, text_of(pg));
      }
      break;
    case ActKind::kRefused:
      if (member) refused(act, group(act), where.member(me()));
      break;
    case ActKind::kStoreScript:
      if (mine) see(act.id, run_script(rank_, script_of(act), act.id));
      break;
    case ActKind::kStoreMeeting:
      meet(act);
      break;
    case ActKind::kStoreTimeout:
      if (mine) store_timeout(act);
      break;
    case ActKind::kSharedCount:
      shared_count(act);
      break;
    case ActKind::kYield:
      if (mine) rank_.yield();
      break;
    case ActKind::kSleep:
      if (mine) sleep(act);
      break;
    case ActKind::kRandom:
      if (mine) {
        const uint64_t number = rank_.rng().next();
        absl::StrAppend(&beside_.drawn, number, " ");
        see(act.id, number == shadow_.next() ? kDrawn : "numbers of another seed");
      }
      break;
    case ActKind::kHelper:
      if (mine) helper(act);
      break;
    case ActKind::kNestedWorld:
      if (mine) see(act.id, nested_world(act.seed, act.a));
      break;
    case ActKind::kThrow:
      if (mine) throw PlannedError(absl::StrCat("planned in act ", act.id));
      break;
    case ActKind::kAbortWorld:
      if (mine) rank_.world().abort("planned");
      break;
    case ActKind::kAbortGroup:
      if (mine && member) group(act).abort("planned");
      break;
    case ActKind::kDropWork:
      if (mine) open_.erase(act.a);
      break;
    case ActKind::kLeave:
      return !mine;
    case ActKind::kOtherCall:
      if (member) other_call(act, group(act), where.member(me()));
      break;
    case ActKind::kGroupTimeout:
      if (mine && member && where.of(me()).size() > 1) stands_alone(act, group(act));
      break;
    case ActKind::kCount:
      break;
  }
  return true;
}

void RankRun::call(const Act& act, const Partition& where) {
  ProcessGroup& pg = group(act);
  const std::vector<int>& ranks = where.of(me());
  const int member = where.member(me());
  switch (act.type()) {
    case ActKind::kMessage:
      return message(act, pg, member);
    case ActKind::kAnySource:
      return any_source(act, pg, member);
    case ActKind::kRing:
      return ring(act, pg, member);
    case ActKind::kCrossed:
      return crossed(act, pg, member);
    case ActKind::kCoalesced:
      return coalesced(act, pg, ranks, member);
    default:
      return collective(act, pg, ranks, member);
  }
}

void RankRun::collective(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks, int member) {
  const auto tensors = memory_.tensors();
  const auto shared = std::make_shared<CallOf>(act.call, act.id, 0, ranks, member, state_, tensors, arrivals_);
  const auto read = [shared] {
    std::string saw;
    shared->read(&saw);
    return saw;
  };
  const auto way = static_cast<Way>(act.way);
  if (way == Way::kGivesAway) {
    shared->fill();
    (void)shared->make(pg, {.keep_alive = std::make_shared<Owner>(act.id, tensors, read, &log_)});
    return;
  }
  Open open(tensors);
  open.read = read;
  open.has_result = true;
  if (way == Way::kStream || way == Way::kEvent) {
    stream(0).launch([shared] { shared->fill(); });
    open.works.push_back(shared->make(pg, {.stream = &stream(0)}));
    open.streamed = true;
  } else {
    shared->fill();
    open.works.push_back(shared->make(pg, {}));
  }
  if (way == Way::kBlocks) {
    open.snapshot = std::make_shared<std::string>();
    open.works[0].block_current_stream(stream(1));
    stream(1).launch([shared, snapshot = open.snapshot] { shared->read(snapshot.get()); });
  }
  if (way == Way::kEvent) {
    open.snapshot = std::make_shared<std::string>();
    open.event = stream(0).record();
    open.event_way = act.c;
    stream(1).wait_event(*open.event);
    stream(1).launch([shared, snapshot = open.snapshot] { shared->read(snapshot.get()); });
  }
  keep(act, std::move(open));
}

void RankRun::two_groups(const Act& act, const Partition& where) {
  const Partition& second = *plan_.made(act.a, act.b);
  const auto tensors = memory_.tensors();
  std::shared_ptr<CallOf> calls[2];
  if (where.has(me())) {
    calls[0] =
        std::make_shared<CallOf>(act.call, act.id, 0, where.of(me()), where.member(me()), state_, tensors, arrivals_);
  }
  if (second.has(me())) {
    calls[1] = std::make_shared<CallOf>(act.parts[0], act.id, 1, second.of(me()), second.member(me()), state_, tensors,
                                        arrivals_);
  }
  const std::shared_ptr<ProcessGroup> groups[] = {where.has(me()) ? groups_.at({act.group, act.dim}) : nullptr,
                                                  second.has(me()) ? groups_.at({act.a, act.b}) : nullptr};
  const size_t first = (act.seed >> me() & 1) != 0 ? 1 : 0;
  Open open(tensors);
  for (const size_t i : {first, 1 - first}) {
    if (calls[i] == nullptr) continue;
    calls[i]->fill();
    if (act.c == 0 || i == first) {
      open.works.push_back(calls[i]->make(*groups[i], {}));
      continue;
    }
    const auto made = std::make_shared<Work>();
    const auto latch = std::make_shared<Latch>(1, "call of a helper");
    rank_.world().spawn_helper([call = calls[i], group = groups[i], made, latch] {
      *made = call->make(*group, {});
      latch->count_down();
    });
    latch->wait();
    open.works.push_back(std::move(*made));
  }
  if (open.works.empty()) return;
  open.read = [first = calls[0], second = calls[1]] {
    std::string saw;
    if (first != nullptr) first->read(&saw);
    if (second != nullptr) second->read(&saw);
    return saw;
  };
  keep(act, std::move(open));
}

void RankRun::coalesced(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks, int member) {
  const auto tensors = memory_.tensors();
  const bool streamed = static_cast<Way>(act.way) == Way::kStream;
  const auto calls = std::make_shared<std::vector<CallOf>>();
  for (size_t p = 0; p < act.parts.size(); ++p) {
    calls->emplace_back(act.parts[p], act.id, static_cast<int>(p), ranks, member, state_, tensors, arrivals_);
  }
  const auto fill = [calls] {
    for (CallOf& call : *calls) call.fill();
  };
  if (streamed) {
    stream(0).launch(fill);
  } else {
    fill();
  }
  TensorView received;
  pg.start_coalescing();
  std::vector<Work> parts;  // dropped before the end, as programs do
  for (CallOf& call : *calls) parts.push_back(call.make(pg, {}));
  if (act.a == 1) {
    const int n = pg.size();
    const Bytes bytes = message_bytes(act, me(), state_);
    const TensorView sent = tensors->add(act.call.element(), act.call.count);
    received = tensors->add(act.call.element(), act.call.count);
    tensors->give(sent, bytes);
    parts.push_back(pg.send(sent, (member + 1) % n, tag_of(act)));
    parts.push_back(pg.recv(received, (member + n - 1) % n, tag_of(act)));
  }
  if (act.b == 1) parts.clear();
  Open open(tensors);
  open.works.push_back(pg.end_coalescing({.stream = streamed ? &stream(0) : nullptr}));
  open.streamed = streamed;
  open.read = [calls, received, with_ring = act.a == 1] {
    std::string saw;
    for (const CallOf& call : *calls) call.read(&saw);
    if (with_ring) Tensors::read(received, &saw);
    return saw;
  };
  keep(act, std::move(open));
}

void RankRun::message(const Act& act, ProcessGroup& pg, int member) {
  const int n = pg.size();
  const int from = act.a % n, to = act.b % n;
  if (member != from && member != to) return;
  const auto tensors = memory_.tensors();
  // Two streams: on one of them what a member sends itself would wait for itself.
  const bool streamed = static_cast<Way>(act.way) == Way::kStream;
  Stream* const sends = streamed ? &stream(0) : nullptr;
  Stream* const receives = streamed ? &stream(1) : nullptr;
  Open open(tensors);
  open.streamed = streamed;
  open.read = [] { return std::string(); };
  const auto receive = [&] {
    if (member != to) return;
    const TensorView output = tensors->add(act.call.element(), act.call.count);
    open.works.push_back(pg.recv(output, from, tag_of(act), {.stream = receives}));
    open.read = [output] { return bytes_of({output}); };
  };
  if (act.c == 1) receive();
  if (member == from) {
    const TensorView input = tensors->add(act.call.element(), act.call.count);
    const auto write = [tensors, input, bytes = message_bytes(act, me(), state_)] { tensors->give(input, bytes); };
    if (streamed) {
      stream(0).launch(write);
    } else {
      write();
    }
    open.works.push_back(pg.send(input, to, tag_of(act), {.stream = sends}));
  }
  if (act.c != 1) receive();
  keep(act, std::move(open));
}

void RankRun::any_source(const Act& act, ProcessGroup& pg, int member) {
  const int n = pg.size();
  const int to = act.a % n;
  const auto tensors = memory_.tensors();
  Open open(tensors);
  open.read = [] { return std::string(); };
  if (member != to) {
    const TensorView input = tensors->add(act.call.element(), act.call.count);
    tensors->give(input, message_bytes(act, me(), state_));
    open.works.push_back(pg.send(input, to, tag_of(act)));
  } else {
    std::vector<TensorView> outputs;
    for (int i = 1; i < n; ++i) {
      outputs.push_back(tensors->add(act.call.element(), act.call.count));
      open.works.push_back(pg.recv_any(outputs.back(), tag_of(act)));
    }
    open.read = [outputs, works = open.works] { return by_source(works, outputs); };
  }
  keep(act, std::move(open));
}

void RankRun::ring(const Act& act, ProcessGroup& pg, int member) {
  const int n = pg.size();
  const auto tensors = memory_.tensors();
  const TensorView input = tensors->add(act.call.element(), act.call.count);
  const TensorView output = tensors->add(act.call.element(), act.call.count);
  tensors->give(input, message_bytes(act, me(), state_));
  const int shift = act.a % n;
  Open open(tensors);
  open.works = batch_isend_irecv({{P2POp::Kind::kSend, input, (member + shift) % n, &pg, tag_of(act)},
                                  {P2POp::Kind::kRecv, output, (member + n - shift) % n, &pg, tag_of(act)}});
  open.read = [output] { return bytes_of({output}); };
  keep(act, std::move(open));
}

void RankRun::crossed(const Act& act, ProcessGroup& pg, int member) {
  const int n = pg.size();
  const int from = act.a % n, to = act.b % n;
  if (member != from && member != to) return;
  const auto tensors = memory_.tensors();
  const Crossing crossing = crossing_of(act);
  const auto add = [&](int i) { return tensors->add(act.call.element(), act.call.count + i); };
  Open open(tensors);
  if (member == from) {
    for (int i = 0; i < static_cast<int>(crossing.tags.size()); ++i) {
      const TensorView input = add(i);
      tensors->give(input, message_bytes(act, me(), state_, i));
      open.works.push_back(pg.send(input, to, crossing.tags[static_cast<size_t>(i)]));
    }
  }
  std::vector<TensorView> outputs;
  if (member == to) {
    for (const int i : crossing.taken) {
      outputs.push_back(add(i));
      open.works.push_back(pg.recv(outputs.back(), from, crossing.tags[static_cast<size_t>(i)]));
    }
  }
  open.read = [outputs] { return bytes_of(outputs); };
  keep(act, std::move(open));
}

void RankRun::keep(const Act& act, Open open) {
  open_[act.id] = std::move(open);
  if (static_cast<Way>(act.way) == Way::kAtOnce) finish(act.id, WaitWay::kWait);
}

// Streams first or last, as the act's number has it: the ways of waiting meet works that are done, and others.
void RankRun::finish(int act, WaitWay way) {
  const auto it = open_.find(act);
  if (it == open_.end()) return;
  Open& open = it->second;
  const bool streams_first = act % 2 == 1 || (open.streamed && !waits_for_streams(way, job_));
  if (streams_first) finish_streams(open);
  wait(way, open);
  for (Work& work : open.works) must_be_done(work);
  const std::string first = open.read();  // by that way of waiting alone
  if (!streams_first) finish_streams(open);
  for (Work& work : open.works) {
    work.wait();
    check(work);
  }
  std::string saw = open.snapshot != nullptr ? *open.snapshot : open.read();
  saw = alike(saw, {first, open.at_event.value_or(saw)}) + open.tensors->harm();
  open.tensors->retire();
  open_.erase(it);
  see(act, std::move(saw));
}

void RankRun::finish_streams(Open& open) {
  if (open.event.has_value()) {
    if (open.event_way == 0) open.event->synchronize();
    // A loop that asks for what nobody completes has no end in the free gear.
    const bool polls = open.event_way == 1 && !job_.may_fail();
    while (polls && !open.event->query()) rank_.yield();
    if (open.event_way == 0 || polls) open.at_event = open.read();
  }
  for (int i = 0; i < 2; ++i) {
    if (i == 0 ? !open.streamed : !open.streamed && open.snapshot == nullptr) continue;
    if (streams_[i] == nullptr) continue;
    stream(i).synchronize();
    check(stream(i));
  }
  if (open.event.has_value()) check(*open.event);
}

void RankRun::wait(WaitWay way, Open& open) {
  if (way == WaitWay::kAll) {
    std::vector<Work> all;
    for (auto& [act, other] : open_) all.insert(all.end(), other.works.begin(), other.works.end());
    wait_all(all);
    for (auto& [act, other] : open_) {
      for (size_t i = 0; i < other.works.size() && !other.streamed; ++i) must_be_done(other.works[i]);
    }
    return;
  }
  if (way == WaitWay::kAny) return wait_for_each(open.works);
  for (Work& work : open.works) wait(work, way, open);
}

void RankRun::wait(Work& work, WaitWay way, const Open& open) {
  switch (way) {
    case WaitWay::kTimed:
      // A timeout of its own would keep a job that is stuck from being a deadlock.
      if (job_.may_fail()) return work.wait();
      return work.wait(absl::Hours(1));
    case WaitWay::kPoll:
      // A loop that asks for what nobody completes has no end in the free gear.
      for (int i = 0; (i < kPolls || !job_.may_fail()) && !work.is_completed(); ++i) rank_.yield();
      if (job_.may_fail()) work.wait();
      return;
    case WaitWay::kFuture: {
      Future future = work.get_future();
      (void)future.value();
      return check(future);
    }
    case WaitWay::kResult: {
      (void)work.result();
      if (open.has_result) check_result(work, open.read());
      return;
    }
    case WaitWay::kThen: {
      const auto latch = std::make_shared<Latch>(1, "callback");
      const auto told = std::make_shared<absl::Status>();
      work.then([latch, told](const absl::Status& status) {
        *told = status;
        latch->count_down();
      });
      latch->wait();
      return check(work, *told);
    }
    case WaitWay::kHelper: {
      const auto latch = std::make_shared<Latch>(1, "helper");
      // This rank may leave by an exception while the helper waits: the tensors go when no work of theirs is open.
      rank_.world().spawn_helper([latch, held = Held{open.tensors, work}]() mutable {
        held.work.wait();
        latch->count_down();
      });
      return latch->wait();
    }
    case WaitWay::kSynchronize:
      return work.synchronize();
    case WaitWay::kWait:
      return work.wait();
    case WaitWay::kAll:
    case WaitWay::kAny:
    case WaitWay::kCount:
      no_such("way to wait for one work", static_cast<int>(way));
  }
}

void RankRun::monitored(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks) {
  const Arrivals::Barrier barrier = {act.id, 0, ranks.at(0)};
  if (arrivals_ != nullptr) arrivals_->comes(barrier);
  pg.monitored_barrier({}, act.a == 1);
  if (arrivals_ == nullptr) return;
  const std::string missing = arrivals_->missing(barrier, static_cast<int>(ranks.size()));
  if (!missing.empty()) throw std::logic_error(missing);
}

void run_rank(const Plan& plan, RankContext& rank, RankLog* log, Beside* beside, std::shared_ptr<Arrivals> arrivals) {
  RankRun(plan, rank, log, beside, std::move(arrivals)).run();
}

}  // namespace rankloom
