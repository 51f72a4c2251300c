#include "tests/explore/small_program.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = SmallOpKind;

constexpr SmallOpRow kRows[] = {
    {Kind::kSet, "Store::set", "store.set(\"k$a\", \"$b\")", 2, 2, 1},
    {Kind::kGet, "Store::get", "store.get(\"k$a\")", 2, 1, 1},
    {Kind::kAdd, "Store::add", "store.add(\"k$a\", $b)", 2, 2, 1},
    {Kind::kCompareSet, "Store::compare_set", "store.compare_set(\"k$a\", $b == 0 ? \"\" : \"$b\", \"9\")", 2, 2, 1},
    {Kind::kWaitKey, "Store::wait", "store.wait({\"k$a\"})", 2, 1, 1},
    {Kind::kWaitKeyFor, "Store::wait", "store.wait($c == 2 ? {\"k0\", \"k1\"} : {\"k$a\"}, $c ms)", 2, 1, 3},
    {Kind::kCheck, "Store::check", "store.check({\"k$a\"})", 2, 1, 1},
    {Kind::kDeleteKey, "Store::delete_key", "store.delete_key(\"k$a\")", 2, 1, 1},
    {Kind::kNumKeys, "Store::num_keys", "store.num_keys()", 1, 1, 1},
    {Kind::kAppend, "Store::append", "store.append(\"k$a\", \"$b\")", 2, 2, 1},
    {Kind::kMultiGet, "Store::multi_get", "store.multi_get({\"k0\", \"k1\"})", 1, 1, 1},
    {Kind::kMultiSet, "Store::multi_set", "store.multi_set({\"k0\", \"k1\"}, {\"$a\", \"$b\"})", 2, 2, 1},
    {Kind::kQueuePush, "Store::queue_push", "store.queue_push(\"k$a\", \"$b\")", 2, 2, 1},
    {Kind::kQueuePop, "Store::queue_pop", "store.queue_pop(\"k$a\")", 2, 1, 1},
    {Kind::kQueueTryPop, "Store::queue_pop", "store.queue_pop(\"k$a\", /*block=*/false)", 2, 1, 1},
    {Kind::kQueueLen, "Store::queue_len", "store.queue_len(\"k$a\")", 2, 1, 1},
    {Kind::kListKeys, "Store::list_keys", "store.list_keys()", 1, 1, 1},
    {Kind::kWatchKey, "Store::watch_key", "store.watch_key(\"k$a\", notes it$b)", 2, 2, 1},
    {Kind::kStoreTimeout, "Store::set_timeout Store::timeout", "store.set_timeout($c ms)", 1, 1, 3},
    {Kind::kStoreBarrier, "store_barrier", "store_barrier(store, \"b\")", 1, 1, 1},

    {Kind::kBroadcast, "ProcessGroup::broadcast", "w$a = broadcast(root $b)", kSmallProgramSlots, 2, 1},
    {Kind::kAllReduce, "ProcessGroup::all_reduce", "w$a = all_reduce()", kSmallProgramSlots, 1, 1},
    {Kind::kAllReduceCoalesced, "ProcessGroup::all_reduce_coalesced", "w$a = all_reduce_coalesced()",
     kSmallProgramSlots, 1, 1},
    {Kind::kReduce, "ProcessGroup::reduce", "w$a = reduce(root $b)", kSmallProgramSlots, 2, 1},
    {Kind::kAllGather, "ProcessGroup::all_gather", "w$a = all_gather()", kSmallProgramSlots, 1, 1},
    {Kind::kAllGatherIntoTensor, "ProcessGroup::all_gather_into_tensor", "w$a = all_gather_into_tensor()",
     kSmallProgramSlots, 1, 1},
    {Kind::kAllGatherIntoTensorCoalesced, "ProcessGroup::all_gather_into_tensor_coalesced",
     "w$a = all_gather_into_tensor_coalesced()", kSmallProgramSlots, 1, 1},
    {Kind::kGather, "ProcessGroup::gather", "w$a = gather(root $b)", kSmallProgramSlots, 2, 1},
    {Kind::kScatter, "ProcessGroup::scatter", "w$a = scatter(root $b)", kSmallProgramSlots, 2, 1},
    {Kind::kReduceScatter, "ProcessGroup::reduce_scatter", "w$a = reduce_scatter()", kSmallProgramSlots, 1, 1},
    {Kind::kReduceScatterTensor, "ProcessGroup::reduce_scatter_tensor", "w$a = reduce_scatter_tensor()",
     kSmallProgramSlots, 1, 1},
    {Kind::kReduceScatterTensorCoalesced, "ProcessGroup::reduce_scatter_tensor_coalesced",
     "w$a = reduce_scatter_tensor_coalesced()", kSmallProgramSlots, 1, 1},
    {Kind::kAllToAll, "ProcessGroup::all_to_all", "w$a = all_to_all()", kSmallProgramSlots, 1, 1},
    {Kind::kAllToAllSingle, "ProcessGroup::all_to_all_single", "w$a = all_to_all_single($b more to itself)",
     kSmallProgramSlots, 2, 1},
    {Kind::kBarrier, "ProcessGroup::barrier", "w$a = barrier()", kSmallProgramSlots, 1, 1},
    {Kind::kMonitoredBarrier, "ProcessGroup::monitored_barrier", "monitored_barrier($c ms, wait_all_ranks=$b)", 1, 2,
     3},
    {Kind::kSend, "ProcessGroup::send", "w$a = send(to $b, tag $c)", kSmallProgramSlots, 3, 2},
    {Kind::kRecv, "ProcessGroup::recv", "w$a = recv(from $b, tag $c)", kSmallProgramSlots, 3, 2},
    {Kind::kRecvAny, "ProcessGroup::recv_any", "w$a = recv_any(tag $c)", kSmallProgramSlots, 1, 2},
    {Kind::kBatchIsendIrecv, "batch_isend_irecv", "w$a = batch_isend_irecv(with $b)", kSmallProgramSlots, 3, 1},
    {Kind::kStartCoalescing, "ProcessGroup::start_coalescing", "start_coalescing()", 1, 1, 1},
    {Kind::kEndCoalescing, "ProcessGroup::end_coalescing", "w$a = end_coalescing()", kSmallProgramSlots, 1, 1},

    {Kind::kWait, "Work::wait", "w$a.wait()", kSmallProgramSlots, 1, 1},
    {Kind::kWaitFor, "Work::wait", "w$a.wait($c ms)", kSmallProgramSlots, 1, 3},
    {Kind::kIsCompleted, "Work::is_completed", "w$a.is_completed()", kSmallProgramSlots, 1, 1},
    {Kind::kIsSuccess, "Work::is_success", "w$a.is_success()", kSmallProgramSlots, 1, 1},
    {Kind::kException, "Work::exception", "w$a.exception()", kSmallProgramSlots, 1, 1},
    {Kind::kResult, "Work::result", "w$a.result()", kSmallProgramSlots, 1, 1},
    {Kind::kSource, "Work::source", "w$a.source()", kSmallProgramSlots, 1, 1},
    {Kind::kSynchronize, "Work::synchronize", "w$a.synchronize()", kSmallProgramSlots, 1, 1},
    {Kind::kDrop, "Work::Work", "drop w$a", kSmallProgramSlots, 1, 1},
    {Kind::kThen, "Work::then", "w$a.then()", kSmallProgramSlots, 1, 1},
    {Kind::kGetFuture, "Work::get_future", "future = w$a.get_future()", kSmallProgramSlots, 1, 1},
    {Kind::kFutureDone, "Future::done", "future.done()", 1, 1, 1},
    {Kind::kFutureValue, "Future::value Future::work", "future.value()", 1, 1, 1},
    {Kind::kFutureThen, "Future::then", "future.then()", 1, 1, 1},
    {Kind::kWaitAll, "wait_all", "wait_all(w0..)", 1, 1, 1},
    {Kind::kWaitAny, "wait_any", "wait_any(w0..)", 1, 1, 1},
    {Kind::kPromiseWork, "Promise::Promise Promise::work Promise::future",
     "w$a = promise.$b == 0 ? work() : future().work()", kSmallProgramSlots, 2, 1},
    {Kind::kPromiseSetValue, "Promise::set_value", "promise.set_value()", 1, 1, 1},
    {Kind::kPromiseSetError, "Promise::set_error", "promise.set_error()", 1, 1, 1},
    {Kind::kEarlyRead, "", "what w$a has written", kSmallProgramSlots, 1, 1},
    {Kind::kEarlyWrite, "", "$b == 0 ? output of w$a : input of w$a = 7", kSmallProgramSlots, 2, 1},

    {Kind::kInitGroup, "init_process_group", "g$b = init_process_group()", 1, kSmallProgramGroups, 1},
    {Kind::kNewGroup, "ProcessGroup::new_group", "g1 = new_group({0, 1})", 1, 1, 1},
    {Kind::kNewGroupOfAll, "ProcessGroup::new_group", "g1 = new_group()", 1, 1, 1},
    {Kind::kSplitGroup, "ProcessGroup::split_group", "g1 = split_group(color rank / $a, key -rank * $b)", 2, 2, 1},
    {Kind::kDeviceMesh, "init_device_mesh DeviceMesh::get_group", "g1 = init_device_mesh({n}).get_group()", 1, 1, 1},
    {Kind::kDestroyGroup, "destroy_process_group", "destroy_process_group()", 1, 1, 1},
    {Kind::kAbortGroup, "ProcessGroup::abort", "abort()", 1, 1, 1},
    {Kind::kShutdownGroup, "ProcessGroup::shutdown", "shutdown()", 1, 1, 1},
    {Kind::kSetTimeout, "ProcessGroup::set_timeout ProcessGroup::timeout", "set_timeout($c ms)", 1, 1, 3},
    {Kind::kSetWarnAfter, "ProcessGroup::set_warn_after ProcessGroup::warn_after", "set_warn_after($c ms)", 1, 1, 3},
    {Kind::kSetReduceOrder, "ProcessGroup::set_reduce_order", "set_reduce_order(reversed)", 1, 1, 1},
    {Kind::kRename, "ProcessGroup::set_group_name ProcessGroup::set_description", "set_group_name(\"g\")", 1, 1, 1},
    {Kind::kAttributes,
     "ProcessGroup::rank ProcessGroup::size ProcessGroup::backend_name ProcessGroup::group_name "
     "ProcessGroup::description "
     "ProcessGroup::text ProcessGroup::global_rank ProcessGroup::sequence_number RankContext::rank "
     "RankContext::world_size RankContext::rng_seed RankContext::current",
     "attributes()", 1, 1, 1},

    {Kind::kLock, "Mutex::lock", "mu.lock()", 1, 1, 1},
    {Kind::kTryLock, "Mutex::try_lock", "mu.try_lock()", 1, 1, 1},
    {Kind::kUnlock, "Mutex::unlock", "mu.unlock()", 1, 1, 1},
    {Kind::kLocked, "MutexLock::MutexLock", "{ MutexLock lock(&mu); ++n; }", 1, 1, 1},
    {Kind::kCondWait, "CondVar::wait", "mu.lock(); cv.wait(&mu); mu.unlock()", 1, 1, 1},
    {Kind::kCondWaitUntil, "CondVar::wait", "mu.lock(); cv.wait(&mu, n > $b); mu.unlock()", 1, 2, 1},
    {Kind::kCondWaitFor, "CondVar::wait_for", "mu.lock(); cv.wait_for(&mu, $c ms, n > $b); mu.unlock()", 1, 2, 3},
    {Kind::kNotifyOne, "CondVar::notify_one", "if ($b) { mu.lock(); ++n; mu.unlock(); } cv.notify_one()", 1, 2, 1},
    {Kind::kNotifyAll, "CondVar::notify_all", "if ($b) { mu.lock(); ++n; mu.unlock(); } cv.notify_all()", 1, 2, 1},
    {Kind::kCountDown, "Latch::count_down", "latch.count_down()", 1, 1, 1},
    {Kind::kTryWaitLatch, "Latch::try_wait", "latch.try_wait()", 1, 1, 1},
    {Kind::kWaitLatch, "Latch::wait", "latch.wait()", 1, 1, 1},
    {Kind::kArriveAndWait, "Latch::arrive_and_wait", "latch.arrive_and_wait()", 1, 1, 1},
    {Kind::kWatchedGet, "Watched::get", "watched.get()", 1, 1, 1},
    {Kind::kWatchedSet, "Watched::set", "watched.set($b)", 1, 2, 1},
    {Kind::kWatchedUpdate, "Watched::update", "watched.update(10 * it + $b + 1)", 1, 2, 1},

    {Kind::kLaunch, "SimStream::SimStream SimStream::launch", "s$a.launch()", 2, 1, 1},
    {Kind::kStreamQuery, "SimStream::query", "s$a.query()", 2, 1, 1},
    {Kind::kStreamSynchronize, "SimStream::synchronize", "s$a.synchronize()", 2, 1, 1},
    {Kind::kStreamStatus, "SimStream::status SimStream::name", "s$a.status()", 2, 1, 1},
    {Kind::kStreamWaitFor, "SimStream::wait_for", "s$b.wait_for(w$a, $c ms)", kSmallProgramSlots, 2, 3},
    {Kind::kBlockCurrentStream, "Work::block_current_stream", "w$a.block_current_stream(s$b)", kSmallProgramSlots, 2,
     1},
    {Kind::kRecordEvent, "SimStream::record", "event = s$a.record()", 2, 1, 1},
    {Kind::kQueryEvent, "Event::query", "event.query()", 1, 1, 1},
    {Kind::kSynchronizeEvent, "Event::synchronize", "event.synchronize()", 1, 1, 1},
    {Kind::kWaitEvent, "SimStream::wait_event", "s$a.wait_event(event)", 2, 1, 1},

    {Kind::kSpawnHelper, "World::spawn_helper", "spawn_helper()", 1, 1, 1},
    {Kind::kSetVariable, "", "v = 10 * v + $b + 1", 1, 2, 1},
    {Kind::kReadVariable, "", "v", 1, 1, 1},
    {Kind::kSleep, "RankContext::sleep_for", "sleep_for($c ms)", 1, 1, 3},
    {Kind::kNow, "RankContext::now", "now()", 1, 1, 1},
    {Kind::kYield, "RankContext::yield", "yield()", 1, 1, 1},
    {Kind::kRandom, "RankContext::rng", "rng()", 1, 1, 1},
    {Kind::kRankLocal, "RankLocal::get", "++rank_local", 1, 1, 1},
    {Kind::kShared, "WorldLocal::get", "WorldLocal<int>(\"x\").get(world)", 1, 1, 1},
    {Kind::kUnshare, "WorldLocal::forget", "WorldLocal<int>(\"x\").forget(world)", 1, 1, 1},
    {Kind::kNote, "World::note", "world.note()", 1, 1, 1},
    {Kind::kOnAbort, "World::on_abort", "world.on_abort(v = 1)", 1, 1, 1},
    {Kind::kThrow, "", "throw", 1, 1, 1},
    {Kind::kRankFailed, "World::rank_failed", "world.rank_failed()", 1, 1, 1},
    {Kind::kAbortWorld, "World::abort", "world.abort()", 1, 1, 1},
};

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].kind) != i) return false;
  }
  return std::size(kRows) == static_cast<size_t>(Kind::kCount);
}
static_assert(rows_are_in_order());

void append_text(const SmallOp& op, std::string* text) {
  const SmallOpRow& row = row_of(op.kind);
  std::string line = absl::StrReplaceAll(
      std::string(row.text), {{"$a", absl::StrCat(op.a)}, {"$b", absl::StrCat(op.b)}, {"$c", absl::StrCat(op.c)}});
  if (is_store(op.kind) && op.prefixed) line = "prefixed " + line;
  if (is_of_group(op.kind) && op.group != 0) absl::StrAppend(&line, " in g", op.group);
  if (is_call(op.kind)) {
    if (op.keep_alive) line += " {.keep_alive}";
    if (op.streamed) line += " {.stream = s0}";
    if (op.timed) line += " {.timeout = 1 ms}";
  }
  if (!op.body.empty()) {
    line += " {";
    for (const SmallOp& inner : op.body) {
      line += " ";
      append_text(inner, &line);
      line += ";";
    }
    line += " }";
  }
  *text += line;
}

template <typename Use>
void for_each_op(const std::vector<SmallOp>& ops, const Use& use) {
  for (const SmallOp& op : ops) {
    use(op);
    for_each_op(op.body, use);
  }
}

// Of the lists of operations, those in bodies included, the one with this number.
std::vector<SmallOp>* list_at(std::vector<SmallOp>* ops, int* number) {
  if ((*number)-- == 0) return ops;
  for (SmallOp& op : *ops) {
    if (std::vector<SmallOp>* const list = list_at(&op.body, number); list != nullptr) return list;
  }
  return nullptr;
}
std::vector<SmallOp>* list_at(SmallProgram* program, int number) {
  for (std::vector<SmallOp>& ops : program->ranks) {
    if (std::vector<SmallOp>* const list = list_at(&ops, &number); list != nullptr) return list;
  }
  return nullptr;
}

// All programs that have one thing less.
std::vector<SmallProgram> smaller_programs(const SmallProgram& program) {
  std::vector<SmallProgram> smaller;
  // `change` says whether there was something to take away.
  const auto add = [&](const auto& change) {
    SmallProgram candidate = program;
    if (change(candidate)) smaller.push_back(std::move(candidate));
  };
  // The last rank, if it does nothing. Others cannot go: peers have numbers.
  add([](SmallProgram& p) {
    if (p.ranks.size() == 1 || !p.ranks.back().empty()) return false;
    p.ranks.pop_back();
    return true;
  });
  for (size_t i = 0; i < program.faults.size(); ++i) {
    add([i](SmallProgram& p) {
      p.faults.erase(p.faults.begin() + static_cast<ptrdiff_t>(i));
      return true;
    });
  }
  SmallProgram copy = program;
  for (int l = 0; list_at(&copy, l) != nullptr; ++l) {
    for (size_t i = list_at(&copy, l)->size(); i-- > 0;) {
      const auto at = [l, i](SmallProgram& p) -> SmallOp& { return (*list_at(&p, l))[i]; };
      add([l, i](SmallProgram& p) {
        std::vector<SmallOp>* const list = list_at(&p, l);
        list->erase(list->begin() + static_cast<ptrdiff_t>(i));
        return true;
      });
      // The acts of another task, by this one.
      add([l, i](SmallProgram& p) {
        std::vector<SmallOp>* const list = list_at(&p, l);
        const std::vector<SmallOp> body = std::move((*list)[i].body);
        if (body.empty()) return false;
        list->erase(list->begin() + static_cast<ptrdiff_t>(i));
        list->insert(list->begin() + static_cast<ptrdiff_t>(i), body.begin(), body.end());
        return true;
      });
      for (bool SmallOp::*const flag :
           {&SmallOp::prefixed, &SmallOp::keep_alive, &SmallOp::streamed, &SmallOp::timed}) {
        add([at, flag](SmallProgram& p) { return std::exchange(at(p).*flag, false); });
      }
    }
  }
  add([](SmallProgram& p) { return std::exchange(p.eager_bytes, 0) != 0; });
  add([](SmallProgram& p) { return std::exchange(p.shared_late, false); });
  add([](SmallProgram& p) { return std::exchange(p.reads_early, false); });
  add([](SmallProgram& p) { return std::exchange(p.points_at_memory, false); });
  add([](SmallProgram& p) { return std::exchange(p.owners_tell, false); });
  return smaller;
}

}  // namespace

const SmallOpRow& row_of(SmallOpKind kind) { return kRows[static_cast<size_t>(kind)]; }

std::span<const SmallOpRow> small_op_rows() { return kRows; }

std::string to_text(const SmallProgram& program) {
  std::string text = absl::StrCat("seed ", program.seed, ", ", program.ranks.size(), " ranks");
  if (program.eager_bytes != 0) absl::StrAppend(&text, ", eager_bytes ", program.eager_bytes);
  if (program.shared_late) absl::StrAppend(&text, ", shared by who comes first");
  if (program.reads_early) absl::StrAppend(&text, ", reads what a stream writes after wait()");
  if (program.points_at_memory) absl::StrAppend(&text, ", points at memory");
  if (program.owners_tell) absl::StrAppend(&text, ", owners that go say v = 10 * v + 9");
  for (const Fault& fault : program.faults) absl::StrAppend(&text, "\n  fault ", fault.text());
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    absl::StrAppend(&text, "\n  rank ", rank, ":");
    for (const SmallOp& op : program.ranks[rank]) {
      text += "\n    ";
      append_text(op, &text);
      text += ";";
    }
  }
  return text + "\n";
}

bool shares_memory(const SmallProgram& program) {
  bool shares = false;
  for (const auto& ops : program.ranks) {
    for_each_op(ops, [&](const SmallOp& op) { shares |= !op.body.empty() || (op.keep_alive && program.owners_tell); });
  }
  return shares;
}

bool runs_free(const SmallProgram& program) {
  if (!program.faults.empty() || program.reads_early) return false;
  if (shares_memory(program) && !program.points_at_memory) return false;
  bool runs = true;
  for (const auto& ops : program.ranks) {
    for_each_op(ops, [&](const SmallOp& op) {
      switch (op.kind) {
        case Kind::kWaitKeyFor:
        case Kind::kStoreTimeout:
        case Kind::kStoreBarrier:
        case Kind::kMonitoredBarrier:
        case Kind::kWaitFor:
        case Kind::kEarlyRead:
        case Kind::kEarlyWrite:
        case Kind::kSetTimeout:
        case Kind::kSetWarnAfter:
        case Kind::kCondWaitFor:
        case Kind::kSleep:
        case Kind::kNow:
          runs = false;
          break;
        case Kind::kStreamWaitFor:
          runs &= op.c == 0;
          break;
        default:
          runs &= !op.timed;
      }
    });
  }
  return runs;
}

int size_of(const SmallProgram& program) {
  int n = static_cast<int>(program.faults.size());
  for (const auto& ops : program.ranks) for_each_op(ops, [&](const SmallOp&) { ++n; });
  return n;
}

std::set<std::string> operations_of(const SmallProgram& program) {
  std::set<std::string> names;
  for (const auto& ops : program.ranks) {
    for_each_op(ops, [&](const SmallOp& op) {
      const std::string row_names(row_of(op.kind).names);
      for (const auto name : absl::StrSplit(row_names, ' ', absl::SkipEmpty())) names.emplace(name);
      if (is_store(op.kind) && op.prefixed) names.emplace("PrefixStore::PrefixStore");
    });
  }
  return names;
}

Comparison compare_searches(const SmallProgram& program, const SearchLimits& limits) {
  SearchLimits own = limits;
  if (!runs_free(program)) own.free = 0;
  return compare_searches(
      [&](const Schedule& schedule, const RunHooks& hooks) { return run_program(program, schedule, hooks); }, own);
}

LeaveOut leave_out_one_in(uint64_t n) {
  return [n](const StepRecord::Op& op, uint64_t seed) {
    uint64_t state = seed ^ op.object ^ (static_cast<uint64_t>(op.what) << 56);
    return Prng::splitmix64(state) % n == 0;
  };
}

int64_t programs_until_found(const LeaveOut& leave_out, uint64_t first, int64_t most, const SearchLimits& limits) {
  for (int64_t i = 1; i <= most; ++i) {
    const SmallProgram program = draw_program(first + static_cast<uint64_t>(i) - 1);
    bool left_out_any = false;
    SearchLimits flawed = limits;
    flawed.leave_out = [&](const StepRecord::Op& op) {
      const bool out = leave_out(op, program.seed);
      left_out_any |= out;
      return out;
    };
    // Most programs do not tell of what is left out.
    Searches searches;
    search_reduced(
        [&](const Schedule& schedule, const RunHooks& hooks) { return run_program(program, schedule, hooks); }, flawed,
        &searches);
    if (!left_out_any || compare_searches(program, flawed).flaw == Flaw::kNone) continue;
    if (compare_searches(program, limits).flaw == Flaw::kNone) return i;
  }
  return -1;
}

SmallProgram shrink(const SmallProgram& program, const std::function<bool(const SmallProgram&)>& fails) {
  SmallProgram smallest = program;
  while (true) {
    const std::vector<SmallProgram> candidates = smaller_programs(smallest);
    const auto found = std::find_if(candidates.begin(), candidates.end(), fails);
    if (found == candidates.end()) return smallest;
    smallest = *found;
  }
}

std::string shrunk_text(const SmallProgram& program, const SearchLimits& limits, Flaw flaw, absl::Duration most) {
  const absl::Time end = absl::Now() + most;
  const SmallProgram smallest = shrink(program, [&](const SmallProgram& smaller) {
    return absl::Now() < end && compare_searches(smaller, limits).flaw == flaw;
  });
  return absl::StrCat(flaw_name(flaw), ": ", to_text(smallest), compare_searches(smallest, limits).text);
}

}  // namespace rankloom
