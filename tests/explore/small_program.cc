#include "tests/explore/small_program.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "collectives/device_mesh.h"
#include "collectives/process_group.h"
#include "collectives/sim_stream.h"
#include "collectives/work.h"
#include "fake_store/prefix_store.h"
#include "sim/dist_error.h"
#include "sim/prng.h"
#include "sim/sync.h"
#include "world/world.h"

namespace rankloom {
namespace {

using Kind = SmallOpKind;

constexpr int kSlots = 6;   // works of a rank
constexpr int kGroups = 3;  // groups of a rank

constexpr SmallOpRow kRows[] = {
    {Kind::kSet, "Store::set", "store.set(\"k$a\", \"$b\")", 2, 2, 1},
    {Kind::kGet, "Store::get", "store.get(\"k$a\")", 2, 1, 1},
    {Kind::kAdd, "Store::add", "store.add(\"k$a\", $b)", 2, 2, 1},
    {Kind::kCompareSet, "Store::compare_set", "store.compare_set(\"k$a\", $b == 0 ? \"\" : \"$b\", \"9\")", 2, 2, 1},
    {Kind::kWaitKey, "Store::wait", "store.wait({\"k$a\"})", 2, 1, 1},
    {Kind::kWaitKeyFor, "Store::wait", "store.wait({\"k$a\"}, $c ms)", 2, 1, 3},
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

    {Kind::kBroadcast, "ProcessGroup::broadcast", "w$a = broadcast(root $b)", kSlots, 2, 1},
    {Kind::kAllReduce, "ProcessGroup::all_reduce", "w$a = all_reduce()", kSlots, 1, 1},
    {Kind::kAllReduceCoalesced, "ProcessGroup::all_reduce_coalesced", "w$a = all_reduce_coalesced()", kSlots, 1, 1},
    {Kind::kReduce, "ProcessGroup::reduce", "w$a = reduce(root $b)", kSlots, 2, 1},
    {Kind::kAllGather, "ProcessGroup::all_gather", "w$a = all_gather()", kSlots, 1, 1},
    {Kind::kAllGatherIntoTensor, "ProcessGroup::all_gather_into_tensor", "w$a = all_gather_into_tensor()", kSlots, 1,
     1},
    {Kind::kAllGatherIntoTensorCoalesced, "ProcessGroup::all_gather_into_tensor_coalesced",
     "w$a = all_gather_into_tensor_coalesced()", kSlots, 1, 1},
    {Kind::kGather, "ProcessGroup::gather", "w$a = gather(root $b)", kSlots, 2, 1},
    {Kind::kScatter, "ProcessGroup::scatter", "w$a = scatter(root $b)", kSlots, 2, 1},
    {Kind::kReduceScatter, "ProcessGroup::reduce_scatter", "w$a = reduce_scatter()", kSlots, 1, 1},
    {Kind::kReduceScatterTensor, "ProcessGroup::reduce_scatter_tensor", "w$a = reduce_scatter_tensor()", kSlots, 1, 1},
    {Kind::kReduceScatterTensorCoalesced, "ProcessGroup::reduce_scatter_tensor_coalesced",
     "w$a = reduce_scatter_tensor_coalesced()", kSlots, 1, 1},
    {Kind::kAllToAll, "ProcessGroup::all_to_all", "w$a = all_to_all()", kSlots, 1, 1},
    {Kind::kAllToAllSingle, "ProcessGroup::all_to_all_single", "w$a = all_to_all_single()", kSlots, 1, 1},
    {Kind::kBarrier, "ProcessGroup::barrier", "w$a = barrier()", kSlots, 1, 1},
    {Kind::kMonitoredBarrier, "ProcessGroup::monitored_barrier", "monitored_barrier($c ms, wait_all_ranks=$b)", 1, 2,
     3},
    {Kind::kSend, "ProcessGroup::send", "w$a = send(to $b, tag $c)", kSlots, 3, 2},
    {Kind::kRecv, "ProcessGroup::recv", "w$a = recv(from $b, tag $c)", kSlots, 3, 2},
    {Kind::kRecvAny, "ProcessGroup::recv_any", "w$a = recv_any(tag $c)", kSlots, 1, 2},
    {Kind::kBatchIsendIrecv, "batch_isend_irecv", "w$a = batch_isend_irecv(with $b)", kSlots, 3, 1},
    {Kind::kStartCoalescing, "ProcessGroup::start_coalescing", "start_coalescing()", 1, 1, 1},
    {Kind::kEndCoalescing, "ProcessGroup::end_coalescing", "w$a = end_coalescing()", kSlots, 1, 1},

    {Kind::kWait, "Work::wait", "w$a.wait()", kSlots, 1, 1},
    {Kind::kWaitFor, "Work::wait", "w$a.wait($c ms)", kSlots, 1, 3},
    {Kind::kIsCompleted, "Work::is_completed", "w$a.is_completed()", kSlots, 1, 1},
    {Kind::kIsSuccess, "Work::is_success", "w$a.is_success()", kSlots, 1, 1},
    {Kind::kException, "Work::exception", "w$a.exception()", kSlots, 1, 1},
    {Kind::kResult, "Work::result", "w$a.result()", kSlots, 1, 1},
    {Kind::kSource, "Work::source", "w$a.source()", kSlots, 1, 1},
    {Kind::kSynchronize, "Work::synchronize", "w$a.synchronize()", kSlots, 1, 1},
    {Kind::kDrop, "Work::Work", "drop w$a", kSlots, 1, 1},
    {Kind::kThen, "Work::then", "w$a.then()", kSlots, 1, 1},
    {Kind::kGetFuture, "Work::get_future", "future = w$a.get_future()", kSlots, 1, 1},
    {Kind::kFutureDone, "Future::done", "future.done()", 1, 1, 1},
    {Kind::kFutureValue, "Future::value Future::work", "future.value()", 1, 1, 1},
    {Kind::kFutureThen, "Future::then", "future.then()", 1, 1, 1},
    {Kind::kWaitAll, "wait_all", "wait_all(w0..)", 1, 1, 1},
    {Kind::kWaitAny, "wait_any", "wait_any(w0..)", 1, 1, 1},
    {Kind::kPromiseWork, "Promise::Promise Promise::work Promise::future",
     "w$a = promise.$b == 0 ? work() : future().work()", kSlots, 2, 1},
    {Kind::kPromiseSetValue, "Promise::set_value", "promise.set_value()", 1, 1, 1},
    {Kind::kPromiseSetError, "Promise::set_error", "promise.set_error()", 1, 1, 1},

    {Kind::kInitGroup, "init_process_group", "g$b = init_process_group()", 1, kGroups, 1},
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

    {Kind::kLaunch, "SimStream::SimStream SimStream::launch", "s$a.launch()", 2, 1, 1},
    {Kind::kStreamQuery, "SimStream::query", "s$a.query()", 2, 1, 1},
    {Kind::kStreamSynchronize, "SimStream::synchronize", "s$a.synchronize()", 2, 1, 1},
    {Kind::kStreamStatus, "SimStream::status SimStream::name", "s$a.status()", 2, 1, 1},
    {Kind::kStreamWaitFor, "SimStream::wait_for", "s$b.wait_for(w$a, $c ms)", kSlots, 2, 3},
    {Kind::kBlockCurrentStream, "Work::block_current_stream", "w$a.block_current_stream(s$b)", kSlots, 2, 1},
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
    {Kind::kShared, "World::shared", "world.shared(\"x\")", 1, 1, 1},
    {Kind::kUnshare, "World::unshare", "world.unshare(\"x\")", 1, 1, 1},
    {Kind::kNote, "World::note World::warn", "world.note()", 1, 1, 1},
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

const SmallOpRow& row_of(Kind kind) { return kRows[static_cast<size_t>(kind)]; }

bool is_store(Kind kind) { return kind <= Kind::kStoreBarrier; }
bool is_call(Kind kind) { return kind >= Kind::kBroadcast && kind <= Kind::kEndCoalescing; }
bool is_of_group(Kind kind) { return is_call(kind) || (kind >= Kind::kInitGroup && kind <= Kind::kAttributes); }

absl::Duration ms(int n) { return absl::Milliseconds(n); }

// What ranks share: handed to each other by rankloom only.
struct Shared {
  Mutex mu{"mu"};
  CondVar cv{"cv"};
  Latch latch{2, "latch"};
  int n = 0;  // under mu
  std::optional<Promise> promise;
};

// What ranks saw, by rank and number of the operation. Outlives the world.
struct Seen {
  explicit Seen(const SmallProgram& program) : by_op(program.ranks.size()), watched(program.ranks.size()) {}
  // Of the operation in the order of to_text().
  std::string& of(int rank, int op) {
    std::vector<std::string>& ops = by_op[static_cast<size_t>(rank)];
    if (ops.size() <= static_cast<size_t>(op)) ops.resize(static_cast<size_t>(op) + 1);
    return ops[static_cast<size_t>(op)];
  }
  std::vector<std::vector<std::string>> by_op;
  std::vector<std::map<std::string, std::string>> watched;  // [rank that changed the key][watch]
};

using Floats = std::vector<float>;

struct Tensors {
  std::vector<Floats> in;
  std::vector<Floats> out;
};

std::vector<TensorView> views(std::vector<Floats>& floats) { return {floats.begin(), floats.end()}; }

std::string floats_text(const std::vector<Floats>& floats) {
  std::vector<float> all;
  for (const Floats& each : floats) all.insert(all.end(), each.begin(), each.end());
  return absl::StrJoin(all, ",");
}

// One rank in one run: what its operations work on. Its works, groups and streams go when its last task has ended, so that
// none outlives the world.
class RankRun {
 public:
  RankRun(const SmallProgram& program, Shared* shared, Seen* seen) : program_(program), shared_(shared), seen_(*seen) {}

  void run(RankContext& rank) {
    rank_ = &rank;
    const bool grouped = std::any_of(program_.ranks.begin(), program_.ranks.end(), [](const auto& ops) {
      return std::any_of(ops.begin(), ops.end(), [](const SmallOp& op) { return is_of_group(op.kind); });
    });
    const User user(this);
    if (grouped) groups_[0] = init_process_group(rank, group_options());
    run_all(program_.ranks[static_cast<size_t>(rank.rank())], 0);
  }

 private:
  // A task that uses this.
  class User {
   public:
    explicit User(RankRun* run) : run_(*run) { ++run_.users_; }
    ~User() {
      if (--run_.users_ == 0) run_.clear();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    RankRun& run_;
  };

  void clear() {
    future_.reset();
    for (auto& work : works_) work.reset();
    for (auto& stream : streams_) stream.reset();
    for (auto& group : groups_) group.reset();
    event_ = {};
    promise_.reset();
    if (shared_late_ != nullptr) shared_ = nullptr;
    shared_late_.reset();
  }

  GroupOptions group_options() const { return {.eager_bytes = program_.eager_bytes}; }

  // `first`: the number of the first.
  void run_all(const std::vector<SmallOp>& ops, int first) {
    for (const SmallOp& op : ops) {
      run_op(op, first);
      first += count(op);
    }
  }
  static int count(const SmallOp& op) {
    int n = 1;
    for (const SmallOp& inner : op.body) n += count(inner);
    return n;
  }

  void run_op(const SmallOp& op, int number) {
    try {
      const std::string saw = do_op(op, number);
      // What is seen of a world that was aborted says nothing: it ends at a different place in each rank.
      if (!rank_->world().scheduler().aborted()) note(number, saw);
    } catch (const DistError& error) {
      if (rank_->world().scheduler().aborted()) throw;
      note(number, error_kind_name(error.kind()));
    }
  }

  void note(int number, std::string_view saw) { seen_.of(rank_->rank(), number) += saw.empty() ? "." : saw; }

  // What runs `ops` as a task of this rank.
  auto body_of(const SmallOp& op, int number) {
    return [this, &op, number] {
      const User user(this);
      run_all(op.body, number + 1);
    };
  }

  Shared& shared() {
    if (shared_ == nullptr) {
      shared_late_ = std::static_pointer_cast<Shared>(
          rank_->world().shared("small program", [] { return std::make_shared<Shared>(); }));
      shared_ = shared_late_.get();
    }
    return *shared_;
  }
  Promise& promise() {
    const auto promise = std::static_pointer_cast<Promise>(rank_->world().shared(
        "promise", [this] { return std::make_shared<Promise>(&rank_->world().scheduler(), rank_->rank()); }));
    promise_ = promise;
    return *promise;
  }
  SimStream& stream(int i) {
    auto& stream = streams_[static_cast<size_t>(i)];
    if (stream == nullptr) stream = std::make_unique<SimStream>(*rank_, absl::StrCat("s", i));
    return *stream;
  }

  std::string do_op(const SmallOp& op, int number) {
    if (is_store(op.kind)) return do_store(op, number);
    if (is_of_group(op.kind)) {
      const std::shared_ptr<ProcessGroup> group = groups_[static_cast<size_t>(op.group)];
      if (group == nullptr && op.kind != Kind::kInitGroup) return "no group";
      return is_call(op.kind) ? do_call(op, *group) : do_group(op, group);
    }
    if (op.kind >= Kind::kWait && op.kind <= Kind::kPromiseSetError) return do_work(op, number);
    if (op.kind >= Kind::kLock && op.kind <= Kind::kArriveAndWait) return do_sync(op);
    if (op.kind >= Kind::kLaunch && op.kind <= Kind::kWaitEvent) return do_stream(op, number);
    switch (op.kind) {
      case Kind::kSpawnHelper:
        rank_->world().spawn_helper(body_of(op, number));
        return "";
      case Kind::kSetVariable:
        variable_ = 10 * variable_ + op.b + 1;
        return "";
      case Kind::kReadVariable:
        return absl::StrCat(variable_);
      case Kind::kSleep:
        rank_->sleep_for(ms(op.c));
        return "";
      case Kind::kNow:
        return absl::FormatDuration(rank_->now());
      case Kind::kYield:
        rank_->yield();
        return "";
      case Kind::kRandom:
        return absl::StrCat(rank_->rng().next() % 100);
      case Kind::kShared:
        return absl::StrCat(*std::static_pointer_cast<int>(
            rank_->world().shared("x", [this] { return std::make_shared<int>(rank_->rank()); })));
      case Kind::kUnshare:
        rank_->world().unshare("x");
        return "";
      case Kind::kRankLocal: {
        static RankLocal<int> local;
        return absl::StrCat(++*local);
      }
      case Kind::kNote:
        rank_->world().note("planned");
        rank_->world().warn("planned");
        return "";
      case Kind::kOnAbort:
        rank_->world().on_abort([this](const absl::Status&) { variable_ = 1; });
        return "";
      case Kind::kRankFailed:
        rank_->world().rank_failed(rank_->rank(), std::make_exception_ptr(std::runtime_error("planned failure")));
        return "";
      case Kind::kAbortWorld:
        rank_->world().abort("planned");
        return "";
      default:
        throw std::runtime_error(absl::StrCat("planned, in operation ", number));
    }
  }

  std::string do_store(const SmallOp& op, int number) {
    Store& world_store = rank_->store();
    PrefixStore prefix_store("p", std::shared_ptr<Store>(std::shared_ptr<Store>(), &world_store));
    Store& store = op.prefixed ? static_cast<Store&>(prefix_store) : world_store;
    const std::string key = absl::StrCat("k", op.a);
    const std::string value = absl::StrCat(op.b);
    switch (op.kind) {
      case Kind::kSet:
        store.set(key, value);
        return "";
      case Kind::kGet:
        return store.get(key);
      case Kind::kAdd:
        return absl::StrCat(store.add(key, op.b));
      case Kind::kCompareSet:
        return store.compare_set(key, op.b == 0 ? "" : value, "9");
      case Kind::kWaitKey:
        store.wait({key});
        return "";
      case Kind::kWaitKeyFor:
        store.wait({key}, ms(op.c));
        return "";
      case Kind::kCheck:
        return absl::StrCat(store.check({key}));
      case Kind::kDeleteKey:
        return absl::StrCat(store.delete_key(key));
      case Kind::kNumKeys:
        return absl::StrCat(store.num_keys());
      case Kind::kAppend:
        store.append(key, value);
        return "";
      case Kind::kMultiGet:
        return absl::StrJoin(store.multi_get({"k0", "k1"}), ",");
      case Kind::kMultiSet:
        store.multi_set({"k0", "k1"}, {absl::StrCat(op.a), value});
        return "";
      case Kind::kQueuePush:
        store.queue_push(key, value);
        return "";
      case Kind::kQueuePop:
        return store.queue_pop(key);
      case Kind::kQueueTryPop:
        return store.queue_pop(key, /*block=*/false);
      case Kind::kQueueLen:
        return absl::StrCat(store.queue_len(key));
      case Kind::kListKeys:
        return absl::StrJoin(store.list_keys(), ",");
      case Kind::kWatchKey:
        // Runs on whoever changes the key: it notes for that rank.
        store.watch_key(
            key, [seen = &seen_, watch = absl::StrCat("watch ", rank_->rank(), ".", number, " "), again = op.b == 1,
                  &world_store](std::optional<std::string_view> before, std::optional<std::string_view> after) {
              std::string& text = seen->watched[static_cast<size_t>(RankContext::current()->rank())][watch];
              absl::StrAppend(&text, "<", std::string(before.value_or("-")), ">", std::string(after.value_or("-")));
              if (again) world_store.append("watched", "w");
            });
        return "";
      case Kind::kStoreTimeout:
        store.set_timeout(ms(op.c));
        return absl::FormatDuration(store.timeout());
      default:
        store_barrier(store, "b", rank_->rank(), rank_->world_size(), ms(op.c + 1));
        return "";
    }
  }

  // The tensors stay until the run's end, whatever becomes of the call.
  std::shared_ptr<Tensors> tensors(size_t ins, size_t in_size, size_t outs, size_t out_size, int tag) {
    auto tensors = std::make_shared<Tensors>();
    const float mine = static_cast<float>(100 * (rank_->rank() + 1) + 10 * tag);
    for (size_t i = 0; i < ins; ++i) {
      Floats& in = tensors->in.emplace_back(in_size);
      for (size_t j = 0; j < in_size; ++j) in[j] = mine + static_cast<float>(i + j);
    }
    tensors->out.assign(outs, Floats(out_size));
    return tensors;
  }

  std::string do_call(const SmallOp& op, ProcessGroup& pg) {
    const size_t n = static_cast<size_t>(pg.size());
    const int root = op.b % pg.size();
    const bool is_root = root == pg.rank();
    const size_t slot = static_cast<size_t>(op.a);
    std::shared_ptr<Tensors> t;
    CallOptions options;
    const auto with = [&](size_t ins, size_t in_size, size_t outs, size_t out_size) -> const CallOptions& {
      t = tensors(ins, in_size, outs, out_size, op.a);
      kept_.push_back(t);
      if (op.keep_alive) options.keep_alive = t;
      if (op.streamed) options.stream = &stream(0);
      if (op.timed) options.timeout = ms(1);
      return options;
    };
    Work work;
    switch (op.kind) {
      case Kind::kBroadcast:
        with(0, 0, 1, 1);
        t->out[0][0] = static_cast<float>(100 * (rank_->rank() + 1));
        work = pg.broadcast(t->out[0], root, options);
        break;
      case Kind::kAllReduce:
        with(0, 0, 1, 1);
        t->out[0][0] = static_cast<float>(100 * (rank_->rank() + 1));
        work = pg.all_reduce(t->out[0], ReduceOp::kSum, options);
        break;
      case Kind::kAllReduceCoalesced:
        with(0, 0, 2, 1);
        t->out[0][0] = t->out[1][0] = static_cast<float>(100 * (rank_->rank() + 1));
        work = pg.all_reduce_coalesced(views(t->out), ReduceOp::kMax, options);
        break;
      case Kind::kReduce:
        with(0, 0, 1, 1);
        t->out[0][0] = static_cast<float>(100 * (rank_->rank() + 1));
        work = pg.reduce(t->out[0], root, ReduceOp::kSum, options);
        if (!is_root) t = std::make_shared<Tensors>();
        break;
      case Kind::kAllGather:
        with(1, 1, n, 1);
        work = pg.all_gather(views(t->out), t->in[0], options);
        break;
      case Kind::kAllGatherIntoTensor:
        with(1, 1, 1, n);
        work = pg.all_gather_into_tensor(t->out[0], t->in[0], options);
        break;
      case Kind::kAllGatherIntoTensorCoalesced:
        with(2, 1, 2, n);
        work = pg.all_gather_into_tensor_coalesced(views(t->out), views(t->in), options);
        break;
      case Kind::kGather:
        with(1, 1, is_root ? n : 0, 1);
        work = pg.gather(views(t->out), t->in[0], root, options);
        break;
      case Kind::kScatter:
        with(is_root ? n : 0, 1, 1, 1);
        work = pg.scatter(t->out[0], views(t->in), root, options);
        break;
      case Kind::kReduceScatter:
        with(n, 1, 1, 1);
        work = pg.reduce_scatter(t->out[0], views(t->in), ReduceOp::kSum, options);
        break;
      case Kind::kReduceScatterTensor:
        with(1, n, 1, 1);
        work = pg.reduce_scatter_tensor(t->out[0], t->in[0], ReduceOp::kSum, options);
        break;
      case Kind::kReduceScatterTensorCoalesced:
        with(2, n, 2, 1);
        work = pg.reduce_scatter_tensor_coalesced(views(t->out), views(t->in), ReduceOp::kSum, options);
        break;
      case Kind::kAllToAll:
        with(n, 1, n, 1);
        work = pg.all_to_all(views(t->out), views(t->in), options);
        break;
      case Kind::kAllToAllSingle:
        with(1, n, 1, n);
        work = pg.all_to_all_single(t->out[0], t->in[0], {}, {}, options);
        break;
      case Kind::kBarrier:
        work = pg.barrier(with(0, 0, 0, 0));
        break;
      case Kind::kMonitoredBarrier:
        pg.monitored_barrier(ms(op.c + 1), op.b == 1);
        return "";
      case Kind::kSend:
        with(1, 1, 0, 0);
        work = pg.send(t->in[0], op.b, op.c, options);
        break;
      case Kind::kRecv:
        with(0, 0, 1, 1);
        work = pg.recv(t->out[0], op.b, op.c, options);
        break;
      case Kind::kRecvAny:
        with(0, 0, 1, 1);
        work = pg.recv_any(t->out[0], op.c, options);
        break;
      case Kind::kBatchIsendIrecv: {
        with(1, 1, 1, 1);
        std::vector<Work> both = batch_isend_irecv(
            {{P2POp::Kind::kSend, t->in[0], op.b, &pg}, {P2POp::Kind::kRecv, t->out[0], op.b, &pg}}, options);
        keep((slot + 1) % kSlots, std::move(both[0]), std::make_shared<Tensors>());
        work = std::move(both[1]);
        break;
      }
      case Kind::kStartCoalescing:
        pg.start_coalescing();
        return "";
      default:
        work = pg.end_coalescing(with(0, 0, 0, 0));
    }
    // What a stream writes may be read once it was synchronized, not after wait(): a race within the rank.
    if (op.streamed && !program_.reads_early) t = nullptr;
    keep(slot, std::move(work), std::move(t));
    return "";
  }

  void keep(size_t slot, Work work, std::shared_ptr<Tensors> tensors) {
    works_[slot] = std::move(work);
    tensors_[slot] = std::move(tensors);
  }

  std::string do_group(const SmallOp& op, const std::shared_ptr<ProcessGroup>& pg) {
    switch (op.kind) {
      case Kind::kInitGroup:
        groups_[static_cast<size_t>(op.b)] = init_process_group(*rank_, group_options());
        return groups_[static_cast<size_t>(op.b)]->group_name();
      case Kind::kNewGroup:
        groups_[1] = pg->new_group({0, 1}, group_options());
        return groups_[1] == nullptr ? "none" : groups_[1]->group_name();
      case Kind::kNewGroupOfAll:
        groups_[1] = pg->new_group(group_options());
        return groups_[1]->group_name();
      case Kind::kSplitGroup:
        groups_[1] = pg->split_group(pg->rank() / (op.a + 1), -pg->rank() * op.b, group_options());
        return absl::StrCat(groups_[1]->group_name(), " ", groups_[1]->rank());
      case Kind::kDeviceMesh:
        groups_[1] = init_device_mesh(pg, {pg->size()}).get_group();
        return groups_[1]->group_name();
      case Kind::kDestroyGroup:
        destroy_process_group(pg);
        return "";
      case Kind::kAbortGroup:
        pg->abort("planned");
        return "";
      case Kind::kShutdownGroup:
        pg->shutdown();
        return "";
      case Kind::kSetTimeout:
        pg->set_timeout(ms(op.c));
        return absl::FormatDuration(pg->timeout());
      case Kind::kSetWarnAfter:
        pg->set_warn_after(ms(op.c));
        return absl::FormatDuration(pg->warn_after());
      case Kind::kSetReduceOrder:
        pg->set_reduce_order({.kind = ReduceOrder::Kind::kReversed});
        return "";
      case Kind::kRename:
        pg->set_group_name("g");
        pg->set_description("d");
        return "";
      default:
        return absl::StrCat(pg->rank(), " ", pg->size(), " ", pg->backend_name(), " ", pg->group_name(), " ",
                            pg->description(), " ", pg->text(), " ", pg->global_rank(), " ", pg->sequence_number(), " ",
                            rank_->rank(), " ", rank_->world_size(), " ", rank_->rng_seed() % 10, " ",
                            RankContext::current() == rank_);
    }
  }

  std::string values(size_t slot) const { return tensors_[slot] == nullptr ? "" : floats_text(tensors_[slot]->out); }

  std::string do_work(const SmallOp& op, int number) {
    const size_t slot = static_cast<size_t>(op.a);
    switch (op.kind) {
      case Kind::kFutureDone:
        return future_ ? absl::StrCat(future_->done()) : "none";
      case Kind::kFutureValue: {
        if (!future_) return "none";
        Future future = *future_;
        return absl::StrCat(future.value().size(), future.work().is_completed());
      }
      case Kind::kFutureThen:
        if (future_) future_->then(callback_of(op, number));
        return "";
      case Kind::kWaitAll:
      case Kind::kWaitAny: {
        std::vector<Work> works;
        for (const auto& work : works_) {
          if (work) works.push_back(*work);
        }
        if (works.empty()) return "none";
        if (op.kind == Kind::kWaitAny) return absl::StrCat(wait_any(works));
        wait_all(works);
        return "";
      }
      case Kind::kPromiseWork:
        keep(slot, op.b == 0 ? promise().work() : promise().future().work(), nullptr);
        return "";
      case Kind::kPromiseSetValue:
        promise().set_value();
        return "";
      case Kind::kPromiseSetError:
        promise().set_error(make_error(ErrorKind::kCollectiveError, "planned"));
        return "";
      default:
        break;
    }
    if (!works_[slot]) return "none";
    Work work = *works_[slot];
    switch (op.kind) {
      case Kind::kWait:
        work.wait();
        return values(slot);
      case Kind::kWaitFor:
        work.wait(ms(op.c));
        return values(slot);
      case Kind::kIsCompleted:
        return absl::StrCat(work.is_completed());
      case Kind::kIsSuccess:
        return absl::StrCat(work.is_success());
      case Kind::kException:
        return exception_text(work.exception());
      case Kind::kResult:
        return absl::StrCat(work.result().size());
      case Kind::kSource:
        return absl::StrCat(work.source());
      case Kind::kSynchronize:
        work.synchronize();
        return values(slot);
      case Kind::kDrop:
        works_[slot].reset();
        return "";
      case Kind::kThen:
        work.then(callback_of(op, number));
        return "";
      default:
        future_ = work.get_future();
        return "";
    }
  }

  absl::AnyInvocable<void(const absl::Status&)> callback_of(const SmallOp& op, int number) {
    return [this, &op, number](const absl::Status& status) {
      const User user(this);
      note(number, status.ok() ? " called" : " called " + std::string(error_kind_name(error_kind(status))));
      run_all(op.body, number + 1);
    };
  }

  static std::string exception_text(const std::exception_ptr& exception) {
    if (exception == nullptr) return "none";
    try {
      std::rethrow_exception(exception);
    } catch (const DistError& error) {
      return std::string(error_kind_name(error.kind()));
    }
  }

  std::string do_sync(const SmallOp& op) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Shared& s = shared();
    switch (op.kind) {
      case Kind::kLock:
        s.mu.lock();
        return absl::StrCat(++s.n);
      case Kind::kTryLock:
        return s.mu.try_lock() ? absl::StrCat("got ", ++s.n) : "busy";
      case Kind::kUnlock:
        s.mu.unlock();
        return "";
      case Kind::kLocked: {
        const MutexLock lock(&s.mu);
        return absl::StrCat(++s.n);
      }
      case Kind::kCondWait: {
        const MutexLock lock(&s.mu);
        s.cv.wait(&s.mu);
        return absl::StrCat(s.n);
      }
      case Kind::kCondWaitUntil: {
        const MutexLock lock(&s.mu);
        s.cv.wait(&s.mu, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return s.n > op.b; });
        return absl::StrCat(s.n);
      }
      case Kind::kCondWaitFor: {
        const MutexLock lock(&s.mu);
        const bool done = s.cv.wait_for(&s.mu, ms(op.c), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return s.n > op.b; });
        return absl::StrCat(done, " ", s.n);
      }
      case Kind::kNotifyOne:
      case Kind::kNotifyAll: {
        std::string saw;
        if (op.b == 1) {
          const MutexLock lock(&s.mu);
          saw = absl::StrCat(++s.n);
        }
        if (op.kind == Kind::kNotifyOne) {
          s.cv.notify_one();
        } else {
          s.cv.notify_all();
        }
        return saw;
      }
      case Kind::kCountDown:
        s.latch.count_down();
        return "";
      case Kind::kTryWaitLatch:
        return absl::StrCat(s.latch.try_wait());
      case Kind::kWaitLatch:
        s.latch.wait();
        return "";
      default:
        s.latch.arrive_and_wait();
        return "";
    }
  }

  std::string do_stream(const SmallOp& op, int number) {
    switch (op.kind) {
      case Kind::kLaunch:
        stream(op.a).launch(body_of(op, number));
        return "";
      case Kind::kStreamQuery:
        return absl::StrCat(stream(op.a).query());
      case Kind::kStreamSynchronize:
        stream(op.a).synchronize();
        return "";
      case Kind::kStreamStatus: {
        const absl::Status status = stream(op.a).status();
        return std::string(stream(op.a).name()) + " " +
               std::string(status.ok() ? "ok" : error_kind_name(error_kind(status)));
      }
      case Kind::kStreamWaitFor:
        if (!works_[static_cast<size_t>(op.a)]) return "none";
        if (const auto& state = works_[static_cast<size_t>(op.a)]->shared_state(); state != nullptr) {
          stream(op.b).wait_for(state, op.c == 0 ? absl::InfiniteDuration() : ms(op.c));
        }
        return "";
      case Kind::kBlockCurrentStream:
        if (!works_[static_cast<size_t>(op.a)]) return "none";
        works_[static_cast<size_t>(op.a)]->block_current_stream(stream(op.b));
        return "";
      case Kind::kRecordEvent:
        event_ = stream(op.a).record();
        return "";
      case Kind::kQueryEvent:
        return absl::StrCat(event_.query());
      case Kind::kSynchronizeEvent:
        event_.synchronize();
        return "";
      default:
        stream(op.a).wait_event(event_);
        return "";
    }
  }

  const SmallProgram& program_;
  Shared* shared_;
  Seen& seen_;
  RankContext* rank_ = nullptr;
  int users_ = 0;
  int variable_ = 0;
  std::shared_ptr<Shared> shared_late_;
  std::shared_ptr<Promise> promise_;
  std::array<std::shared_ptr<ProcessGroup>, kGroups> groups_;
  std::array<std::optional<Work>, kSlots> works_;
  std::array<std::shared_ptr<Tensors>, kSlots> tensors_;
  std::vector<std::shared_ptr<Tensors>> kept_;
  std::array<std::unique_ptr<SimStream>, 2> streams_;
  Event event_;
  std::optional<Future> future_;
};

// --- drawing

class Drawer {
 public:
  explicit Drawer(uint64_t seed) : prng_(seed ^ 0x5ca1ab1e) { program_.seed = seed; }

  SmallProgram draw() {
    const uint64_t ranks = prng_.below(16);
    program_.ranks.resize(ranks == 0 ? 1 : ranks < 11 ? 2 : 3);
    program_.eager_bytes = chance(3) ? 64 : 0;
    program_.shared_late = chance(4);
    program_.reads_early = chance(4);
    const Theme themes[] = {theme(), theme()};
    const int most = program_.ranks.size() == 3 ? 7 : 8;
    const int budget = 2 + std::min(below(most), below(most));
    while (drawn_ < budget) emit(themes[below(2)]);
    for (auto& rank : program_.ranks) finish(&rank);
    if (chance(12)) program_.faults.push_back(fault());
    return std::move(program_);
  }

 private:
  enum class Theme : uint8_t {
    kStore,
    kCollective,
    kMessages,
    kLooks,
    kCoalesced,
    kPromise,
    kGroups,
    kHelper,
    kStream,
    kSync,
    kTime,
    kCount
  };

  int below(int n) { return static_cast<int>(prng_.below(static_cast<uint64_t>(n))); }
  bool chance(int one_in) { return below(one_in) == 0; }
  Theme theme() { return static_cast<Theme>(below(static_cast<int>(Theme::kCount))); }
  int ranks() const { return static_cast<int>(program_.ranks.size()); }
  int some_rank() { return below(ranks()); }
  int other_rank(int rank) { return ranks() == 1 ? rank : (rank + 1 + below(ranks() - 1)) % ranks(); }
  Kind between(Kind first, Kind last) {
    return static_cast<Kind>(static_cast<int>(first) + below(static_cast<int>(last) - static_cast<int>(first) + 1));
  }

  SmallOp op(Kind kind) {
    const SmallOpRow& row = row_of(kind);
    SmallOp op{.kind = kind, .a = below(row.a), .b = below(row.b), .c = below(row.c)};
    if (is_store(kind)) {
      op.prefixed = chance(8);
      if (chance(2)) op.a = 0;
    }
    if (is_call(kind) && kind < Kind::kStartCoalescing) {
      op.keep_alive = chance(3);
      op.streamed = chance(12);
      op.timed = chance(12);
    }
    if (kind == Kind::kSpawnHelper || kind == Kind::kLaunch || kind == Kind::kThen || kind == Kind::kFutureThen) {
      const int n = 1 + below(2);
      for (int i = 0; i < n; ++i) op.body.push_back(this->op(inner_kind()));
    }
    return op;
  }
  // What helpers, callbacks and kernels do.
  Kind inner_kind() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return Kind::kSetVariable;
      case 3:
      case 4:
        return between(Kind::kSet, Kind::kListKeys);
      case 5:
        return chance(2) ? Kind::kIsCompleted : Kind::kDrop;
      case 6:
        return chance(2) ? Kind::kPromiseSetValue : Kind::kReadVariable;
      default:
        return chance(2) ? Kind::kSleep : chance(6) ? Kind::kThrow : Kind::kYield;
    }
  }

  static bool makes_work(Kind kind) {
    return (is_call(kind) && kind != Kind::kMonitoredBarrier && kind != Kind::kStartCoalescing) ||
           kind == Kind::kPromiseWork;
  }

  void put(int rank, SmallOp op) {
    int& next = next_slot_[static_cast<size_t>(rank)];
    // A work that is kept where another one was drops that.
    if (makes_work(op.kind) && !chance(20)) {
      op.a = next % kSlots;
      next += op.kind == Kind::kBatchIsendIrecv ? 2 : 1;
    }
    program_.ranks[static_cast<size_t>(rank)].push_back(std::move(op));
    ++drawn_;
  }
  void put(int rank, Kind kind) { put(rank, op(kind)); }

  // The slot of a work that the rank has; -1: none.
  int slot_of(int rank) {
    std::vector<int> slots;
    for (const SmallOp& op : program_.ranks[static_cast<size_t>(rank)]) {
      if (makes_work(op.kind)) slots.push_back(op.a);
    }
    return slots.empty() ? -1 : slots[static_cast<size_t>(below(static_cast<int>(slots.size())))];
  }

  void emit(Theme theme) {
    switch (theme) {
      case Theme::kStore:
        return store();
      case Theme::kCollective:
        collective(between(Kind::kBroadcast, chance(4) ? Kind::kMonitoredBarrier : Kind::kBarrier));
        if (chance(2)) look();
        return;
      case Theme::kMessages:
        message();
        if (chance(2)) look();
        return;
      case Theme::kLooks:
        return look();
      case Theme::kCoalesced:
        return coalesced();
      case Theme::kPromise:
        put(some_rank(), chance(2) ? Kind::kPromiseWork : chance(4) ? Kind::kPromiseSetError : Kind::kPromiseSetValue);
        if (chance(2)) look();
        return;
      case Theme::kGroups:
        return group();
      case Theme::kHelper:
        put(some_rank(), chance(2) ? Kind::kSpawnHelper : Kind::kReadVariable);
        if (chance(2)) put(some_rank(), Kind::kReadVariable);
        return;
      case Theme::kStream:
        if (chance(4)) return look(Kind::kStreamWaitFor, Kind::kBlockCurrentStream);
        return put(some_rank(), chance(2) ? Kind::kLaunch : between(Kind::kLaunch, Kind::kWaitEvent));
      case Theme::kSync:
        return sync();
      case Theme::kTime:
        return put(some_rank(), chance(12)  ? between(Kind::kThrow, Kind::kAbortWorld)
                                : chance(3) ? between(Kind::kRandom, Kind::kOnAbort)
                                            : between(Kind::kSleep, Kind::kYield));
      case Theme::kCount:
        break;
    }
  }

  // What others wait for comes, goes and comes again.
  void come_and_go() {
    const int rank = some_rank();
    const int waiter = other_rank(rank);
    SmallOp come, go, wait;
    switch (below(4)) {
      case 0:
        come = op(Kind::kLock);
        go = op(Kind::kUnlock);
        wait = op(chance(2) ? Kind::kLocked : Kind::kTryLock);
        break;
      case 1:
        come = op(Kind::kQueuePush);
        go = op(chance(2) ? Kind::kQueuePop : Kind::kQueueTryPop);
        wait = op(chance(2) ? Kind::kQueuePop : Kind::kWaitKey);
        break;
      default:
        come = op(Kind::kSet);
        go = op(Kind::kDeleteKey);
        wait = op(chance(3) ? Kind::kGet : chance(3) ? Kind::kWaitKeyFor : Kind::kWaitKey);
        break;
    }
    go.a = wait.a = come.a;
    go.prefixed = wait.prefixed = come.prefixed;
    put(rank, come);
    put(rank, go);
    if (chance(2)) put(rank, between(Kind::kSet, Kind::kAppend));
    put(rank, come);
    if (come.kind == Kind::kLock) put(rank, go);
    put(waiter, wait);
    put(waiter, chance(2)                      ? between(Kind::kCheck, Kind::kNumKeys)
                : wait.kind == Kind::kQueuePop ? Kind::kQueueLen
                                               : Kind::kCheck);
  }

  void store() {
    if (chance(12)) {
      for (int rank = 0; rank < ranks(); ++rank) put(rank, Kind::kStoreBarrier);
      return;
    }
    if (drawn_ == 0 && chance(4)) return come_and_go();
    const Kind kind = between(Kind::kSet, Kind::kStoreTimeout);
    const int rank = some_rank();
    const SmallOp first = op(kind);
    put(rank, first);
    // A partner for those that wait.
    SmallOp partner = op(Kind::kSet);
    partner.a = first.a;
    partner.prefixed = first.prefixed;
    switch (kind) {
      case Kind::kMultiGet:
        partner.kind = Kind::kMultiSet;
        [[fallthrough]];
      case Kind::kGet:
      case Kind::kWaitKey:
      case Kind::kWaitKeyFor:
      case Kind::kWatchKey:
        if (!chance(8)) put(other_rank(rank), partner);
        return;
      case Kind::kQueuePop:
      case Kind::kQueueTryPop:
      case Kind::kQueueLen:
        partner.kind = Kind::kQueuePush;
        if (!chance(8)) put(other_rank(rank), partner);
        return;
      default:
        return;
    }
  }

  // On all ranks, most of the time.
  void collective(Kind kind) {
    SmallOp all = op(kind);
    all.group = chance(6) ? 1 : 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      SmallOp mine = all;
      mine.keep_alive = chance(3);
      mine.timed = chance(12);
      if (chance(40)) mine.kind = Kind::kBarrier;
      if (!chance(40)) put(rank, mine);
    }
  }

  void message() {
    const int from = some_rank();
    const int to = other_rank(from);
    SmallOp send = op(Kind::kSend);
    send.b = to;
    if (chance(6)) {
      send.kind = Kind::kBatchIsendIrecv;
      put(from, send);
      send.b = from;
      put(to, send);
      return;
    }
    SmallOp recv = op(chance(2) ? Kind::kRecvAny : Kind::kRecv);
    if (recv.kind == Kind::kRecv) recv.b = from;
    if (!chance(8)) recv.c = send.c;
    put(from, send);
    if (!chance(10)) put(to, recv);
  }

  void look() { look(Kind::kWait, Kind::kWaitAny); }
  // At a work that is there.
  void look(Kind first, Kind last) {
    const int rank = some_rank();
    SmallOp looking = op(between(first, last));
    const int slot = slot_of(rank);
    if (slot < 0) return chance(2) ? collective(Kind::kAllReduce) : message();
    if (row_of(looking.kind).a == kSlots) looking.a = slot;
    put(rank, looking);
    if (looking.kind == Kind::kGetFuture) put(rank, between(Kind::kFutureDone, Kind::kFutureThen));
  }

  void coalesced() {
    const int n = 1 + below(2);
    std::vector<SmallOp> ops = {op(Kind::kStartCoalescing)};
    if (chance(3) && ranks() > 1) {
      SmallOp send = op(Kind::kSend);
      send.c = 0;
      const int from = some_rank();
      const int to = other_rank(from);
      for (const int rank : {from, to}) {
        send.kind = rank == from ? Kind::kSend : Kind::kRecv;
        send.b = rank == from ? to : from;
        put(rank, ops[0]);
        put(rank, send);
        put(rank, Kind::kEndCoalescing);
      }
      return;
    }
    for (int i = 0; i < n; ++i) ops.push_back(op(between(Kind::kBroadcast, Kind::kBarrier)));
    ops.push_back(op(Kind::kEndCoalescing));
    for (SmallOp& op : ops) op.streamed = op.timed = false;
    for (int rank = 0; rank < ranks(); ++rank) {
      for (const SmallOp& op : ops) put(rank, op);
    }
  }

  void group() {
    const Kind kind = between(Kind::kInitGroup, Kind::kAttributes);
    const bool together = (kind >= Kind::kInitGroup && kind <= Kind::kDeviceMesh) || kind == Kind::kDestroyGroup;
    const SmallOp first = op(kind);
    if (!together) return put(some_rank(), first);
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!chance(20)) put(rank, first);
    }
  }

  void sync() {
    if (drawn_ == 0 && chance(8)) return come_and_go();
    const Kind kind = between(Kind::kLock, Kind::kArriveAndWait);
    const int rank = some_rank();
    const SmallOp first = op(kind);
    put(rank, first);
    switch (kind) {
      case Kind::kLock:
      case Kind::kTryLock:
        if (chance(3)) put(rank, inner_kind());
        if (!chance(10)) put(rank, Kind::kUnlock);
        return;
      case Kind::kCondWait:
      case Kind::kCondWaitUntil:
        if (!chance(10)) put(other_rank(rank), chance(2) ? Kind::kNotifyAll : Kind::kNotifyOne);
        return;
      case Kind::kWaitLatch:
        put(other_rank(rank), Kind::kCountDown);
        put(other_rank(rank), Kind::kCountDown);
        return;
      case Kind::kArriveAndWait:
        if (!chance(10)) put(other_rank(rank), chance(2) ? Kind::kArriveAndWait : Kind::kCountDown);
        return;
      default:
        return;
    }
  }

  // Waits for what nobody has waited for, mostly.
  void finish(std::vector<SmallOp>* ops) {
    std::array<bool, kSlots> open = {};
    std::array<bool, 2> streams = {};
    for (const SmallOp& op : *ops) {
      const size_t slot = static_cast<size_t>(op.a);
      if (makes_work(op.kind)) open[slot] = true;
      if (op.kind == Kind::kBatchIsendIrecv) open[(slot + 1) % kSlots] = true;
      if (is_call(op.kind) && op.streamed) streams[0] = true;
      if (op.kind == Kind::kWait || op.kind == Kind::kSynchronize || op.kind == Kind::kWaitFor) open[slot] = false;
      if (op.kind == Kind::kWaitAll) open = {};
      if (op.kind == Kind::kLaunch) streams[slot] = true;
      if (op.kind == Kind::kStreamSynchronize) streams[slot] = false;
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (open[static_cast<size_t>(slot)] && !chance(16)) ops->push_back({.kind = Kind::kWait, .a = slot});
    }
    for (int i = 0; i < 2; ++i) {
      if (streams[static_cast<size_t>(i)] && chance(2)) ops->push_back({.kind = Kind::kStreamSynchronize, .a = i});
    }
  }

  Fault fault() {
    constexpr Fault::Kind kKinds[] = {Fault::Kind::kCrash, Fault::Kind::kHang,        Fault::Kind::kDelay,
                                      Fault::Kind::kDrop,  Fault::Kind::kDuplicate,   Fault::Kind::kCorrupt,
                                      Fault::Kind::kAbort, Fault::Kind::kStoreTimeout};
    return {.kind = kKinds[below(static_cast<int>(std::size(kKinds)))],
            .rank = some_rank(),
            .nth = 1 + below(2),
            .when = static_cast<Fault::When>(below(3)),
            .by = ms(1 + below(2)),
            .maybe = !chance(4)};
  }

  Prng prng_;
  SmallProgram program_;
  std::array<int, 3> next_slot_ = {};  // [rank]
  int drawn_ = 0;
};

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
      // What another task does, by this one.
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
  return smaller;
}

}  // namespace

std::span<const SmallOpRow> small_op_rows() { return kRows; }

SmallProgram draw_program(uint64_t seed) { return Drawer(seed).draw(); }

std::string to_text(const SmallProgram& program) {
  std::string text = absl::StrCat("seed ", program.seed, ", ", program.ranks.size(), " ranks");
  if (program.eager_bytes != 0) absl::StrAppend(&text, ", eager_bytes ", program.eager_bytes);
  if (program.shared_late) absl::StrAppend(&text, ", shared by who comes first");
  if (program.reads_early) absl::StrAppend(&text, ", reads what a stream writes after wait()");
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

Outcome run_program(const SmallProgram& program, const Schedule& schedule) {
  Seen seen(program);
  auto shared = program.shared_late ? nullptr : std::make_unique<Shared>();
  std::vector<RankRun> runs;
  runs.reserve(program.ranks.size());
  for (size_t i = 0; i < program.ranks.size(); ++i) runs.emplace_back(program, shared.get(), &seen);
  RunReport report = run_world({.world_size = static_cast<int>(program.ranks.size()),
                                .engine = EngineKind::kFibers,
                                .schedule = schedule,
                                .seed = 1,
                                .on_warning = [](const std::string&) {},
                                .faults = program.faults,
                                .max_steps = 5'000,
                                .stall = absl::InfiniteDuration()},
                               [&](RankContext& rank) { runs[static_cast<size_t>(rank.rank())].run(rank); });
  std::vector<std::string> by_rank;
  for (size_t rank = 0; rank < seen.by_op.size(); ++rank) {
    std::string& text = by_rank.emplace_back();
    for (size_t op = 0; op < seen.by_op[rank].size(); ++op) {
      const std::string& saw = seen.by_op[rank][op];
      text += saw.empty() || saw == "." ? saw : absl::StrCat(" ", op, ":", saw);
    }
    for (const auto& [watch, saw] : seen.watched[rank]) absl::StrAppend(&text, " ", watch, saw);
  }
  return outcome_of(std::move(report), by_rank);
}

Comparison compare_searches(const SmallProgram& program, const SearchLimits& limits) {
  return compare_searches([&](const Schedule& schedule) { return run_program(program, schedule); }, limits);
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

std::string shrunk_text(const SmallProgram& program, const SearchLimits& limits, Flaw flaw) {
  const SmallProgram smallest =
      shrink(program, [&](const SmallProgram& smaller) { return compare_searches(smaller, limits).flaw == flaw; });
  return absl::StrCat(flaw_name(flaw), ": ", to_text(smallest), compare_searches(smallest, limits).text);
}

}  // namespace rankloom
