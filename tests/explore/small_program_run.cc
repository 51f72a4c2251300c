#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/work/completion.h"
#include "rankloom/device_mesh.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"
#include "rankloom/store.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "sim/scheduler/scheduler.h"
#include "tests/explore/small_program.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

const WorldLocal<int> kX("x");

using Kind = SmallOpKind;

constexpr size_t kGroups = kSmallProgramGroups;

// The objects that ranks share: handed to each other by rankloom only.
struct Shared {
  Mutex mu{"mu"};
  CondVar cv{"cv"};
  Latch latch{2, "latch"};
  Watched<int> watched{0};
  int n = 0;  // under mu
  std::optional<Promise> promise;
};

// The values that ranks saw, by rank and number of the operation. Outlives the world.
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
  std::mutex watched_mu;
};

// Looks whether an operation has a scheduling point before it, or after it, if it acts.
class OwnPoint {
 public:
  explicit OwnPoint(Kind kind) : kind_(kind), task_(acted_without_a_point ? Task::current() : nullptr) {
    if (task_ == nullptr || task_->record == nullptr) return;  // a callback after the run, perhaps
    points_ = task_->steps.load();
    told_ = task_->record->ops().size();
  }
  ~OwnPoint() {
    if (task_ == nullptr || task_->record == nullptr || task_->steps.load() != points_) return;
    const std::vector<StepRecord::Op>& ops = task_->record->ops();
    const std::vector<StepRecord::Step>& steps = task_->record->steps();
    // A step begins with the memory of its own rank, if it has told of anything.
    const size_t first = steps.size() > 1 ? static_cast<size_t>(steps[steps.size() - 2].ops_end) : 0;
    if (first >= ops.size()) return;
    const uint64_t memory = ops[first].object;
    if (std::any_of(ops.begin() + static_cast<ptrdiff_t>(told_), ops.end(), [&](const StepRecord::Op& op) {
          return (op.what == StepRecord::What::kCommute || op.what == StepRecord::What::kWrite) && op.object != memory;
        })) {
      acted_without_a_point(kind_);
    }
  }
  OwnPoint(const OwnPoint&) = delete;
  OwnPoint& operator=(const OwnPoint&) = delete;

 private:
  const Kind kind_;
  const Task* const task_;
  uint64_t points_ = 0;
  size_t told_ = 0;
};

using Floats = std::vector<float>;

struct Tensors {
  std::vector<Floats> in;
  std::vector<Floats> out;
  bool on_stream = false;  // wait() does not wait for `out`
};

// Lets threads come in another order than that in which they were started: the calling one goes on at once, gives way,
// or is busy for some microseconds.
void dawdle() {
  static std::atomic<uint64_t> draws = 0;
  uint64_t state = draws++;
  const uint64_t draw = Prng::splitmix64(state) % 8;
  if (draw < 3) return;
  if (draw == 3) return std::this_thread::yield();
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(Prng::splitmix64(state) % 40);
  while (std::chrono::steady_clock::now() < until) {
  }
}

std::vector<TensorView> views(std::vector<Floats>& floats) { return {floats.begin(), floats.end()}; }

std::string floats_text(const std::vector<Floats>& floats) {
  std::vector<float> all;
  for (const Floats& each : floats) all.insert(all.end(), each.begin(), each.end());
  return absl::StrJoin(all, ",");
}

// One rank in one run: what its operations work on. Its works, groups and streams go when its last task has ended, so
// that none outlives the world.
class RankRun {
 public:
  RankRun(const SmallProgram& program, bool free, Shared* shared, Seen* seen)
      : program_(program), free_(free), shared_(shared), seen_(*seen) {}

  void run(RankContext& rank) {
    rank_ = &rank;
    const bool grouped = std::any_of(program_.ranks.begin(), program_.ranks.end(), [](const auto& ops) {
      return std::any_of(ops.begin(), ops.end(), [](const SmallOp& op) { return is_of_group(op.kind); });
    });
    const User user(this);
    if (free_) dawdle();
    if (grouped) (void)put(&groups_[0], init_process_group(rank, group_options()));
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

  // In the free gear another task of the rank may begin meanwhile, and come here, too.
  void clear() {
    (void)put(&future_, {});
    for (size_t slot = 0; slot < kSmallProgramSlots; ++slot) drop(slot);
    for (auto& stream : streams_) (void)put(&stream, {});
    for (auto& group : groups_) (void)put(&group, {});
    (void)put(&event_, {});
    (void)put(&promise_, {});
    (void)put(&shared_late_, {});
  }
  // A copy of what tasks of the rank share; and another value in its place, returning the one before, which goes
  // without the lock.
  template <typename T>
  T copy(const T& of) {
    const std::lock_guard lock(mine_);
    return of;
  }
  template <typename T>
  T put(T* to, T value) {
    const std::lock_guard lock(mine_);
    return std::exchange(*to, std::move(value));
  }
  // Before each use of memory that other tasks of the rank use, too.
  void point() const {
    if (program_.points_at_memory) point_of_caller(Site{.what = "memory"});
  }
  void drop(size_t slot) {
    point();
    std::optional<Work> work;  // goes without the lock: that is a scheduling point
    const std::lock_guard lock(mine_);
    work.swap(works_[slot]);
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
    const OwnPoint own(op.kind);
    if (free_) dawdle();
    try {
      const std::string saw = do_op(op, number);
      // A sight of a world that was aborted says nothing: the world ends at a different place in each rank.
      if (!rank_->world().scheduler().aborted()) note(number, saw);
    } catch (const DistError& error) {
      if (rank_->world().scheduler().aborted()) throw;
      note(number, headline(error));
    }
  }

  // Without the place, and without the lines below, of which timeouts' list where all ranks are.
  static std::string headline(const DistError& error) {
    const std::string text = error.what();
    return text.substr(0, std::min(text.find(" ["), text.find('\n')));
  }

  // Keeps a value that the rank saw, unless that comes of the run's end.
  void note(int number, std::string_view saw) {
    if (rank_->world().scheduler().aborted()) return;
    const std::lock_guard lock(mine_);
    seen_.of(rank_->rank(), number) += saw.empty() ? "." : saw;
  }

  // A body that runs `ops` as a task of this rank.
  auto body_of(const SmallOp& op, int number) {
    return [this, &op, number] {
      const User user(this);
      run_all(op.body, number + 1);
    };
  }

  // Good while a task uses this.
  Shared& shared() {
    if (shared_ != nullptr) return *shared_;
    std::shared_ptr<Shared> late = copy(shared_late_);
    if (late == nullptr) {
      static const WorldLocal<Shared> shared("small program");
      late = shared.get(rank_->world());
      (void)put(&shared_late_, late);
    }
    return *late;
  }
  Promise& promise() {
    static const WorldLocal<Promise> shared("promise");
    const auto promise = shared.get(
        rank_->world(), [this] { return std::make_shared<Promise>(&rank_->world().scheduler(), rank_->rank()); });
    (void)put(&promise_, promise);  // held until the rank's last task has ended
    return *promise;
  }
  std::shared_ptr<SimStream> stream(int i) {
    std::shared_ptr<SimStream> made = copy(streams_[static_cast<size_t>(i)]);
    if (made == nullptr) {
      made = std::make_shared<SimStream>(*rank_, absl::StrCat("s", i));
      (void)put(&streams_[static_cast<size_t>(i)], made);
    }
    return made;
  }

  std::string do_op(const SmallOp& op, int number) {
    if (is_store(op.kind)) return do_store(op, number);
    if (is_of_group(op.kind)) {
      const std::shared_ptr<ProcessGroup> group = copy(groups_[static_cast<size_t>(op.group)]);
      if (group == nullptr && op.kind != Kind::kInitGroup) return "no group";
      return is_call(op.kind) ? do_call(op, *group) : do_group(op, group);
    }
    if (op.kind >= Kind::kWait && op.kind <= Kind::kEarlyWrite) return do_work(op, number);
    if (op.kind >= Kind::kLock && op.kind <= Kind::kWatchedUpdate) return do_sync(op);
    if (op.kind >= Kind::kLaunch && op.kind <= Kind::kWaitEvent) return do_stream(op, number);
    switch (op.kind) {
      case Kind::kSpawnHelper:
        rank_->world().spawn_helper(body_of(op, number));
        return "";
      case Kind::kSetVariable: {
        point();
        const std::lock_guard lock(mine_);
        variable_ = 10 * variable_ + op.b + 1;
        return "";
      }
      case Kind::kReadVariable: {
        point();
        const std::lock_guard lock(mine_);
        return absl::StrCat(variable_);
      }
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
        return absl::StrCat(*kX.get(rank_->world(), [this] { return std::make_shared<int>(rank_->rank()); }));
      case Kind::kUnshare:
        kX.forget(rank_->world());
        return "";
      case Kind::kRankLocal: {
        static RankLocal<int> local;
        return absl::StrCat(++*local);
      }
      case Kind::kNote:
        if (rank_->world().scheduler().aborted()) return "";  // what ranks do after a deadlock is no outcome
        rank_->world().note("planned");
        state_of(*rank_).world().warn("planned");
        return "";
      case Kind::kOnAbort:
        rank_->world().on_abort([this](const absl::Status&) {
          const std::lock_guard lock(mine_);
          variable_ = 1;
        });
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
        store.wait(op.c == 2 ? std::vector<std::string>{"k0", "k1"} : std::vector<std::string>{key}, ms(op.c));
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
              {
                const std::lock_guard lock(seen->watched_mu);
                std::string& text = seen->watched[static_cast<size_t>(RankContext::current()->rank())][watch];
                absl::StrAppend(&text, "<", std::string(before.value_or("-")), ">", std::string(after.value_or("-")));
              }
              if (again) world_store.append("watched", "w");
            });
        return "";
      case Kind::kStoreTimeout:
        store.set_timeout(ms(op.c));
        return absl::FormatDuration(store.timeout());
      case Kind::kStoreBarrier:
        store_barrier(store, "b", rank_->rank(), rank_->world_size(), ms(op.c + 1));
        return "";
      default:
        std::fprintf(stderr, "do_store: no case for a store operation of kind %d\n", static_cast<int>(op.kind));
        std::abort();
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

  // The owner that a call holds; its end changes the rank's variable, where the program says so.
  std::shared_ptr<const void> owner(const std::shared_ptr<Tensors>& tensors) {
    if (!program_.owners_tell) return tensors;
    return {tensors.get(), [this, tensors](const void*) {
              if (rank_->world().scheduler().aborted()) return;
              const std::lock_guard lock(mine_);
              variable_ = 10 * variable_ + 9;
            }};
  }

  std::string do_call(const SmallOp& op, ProcessGroup& pg) {
    const size_t n = static_cast<size_t>(pg.size());
    const int root = op.b % pg.size();
    const bool is_root = root == pg.rank();
    const size_t slot = static_cast<size_t>(op.a);
    std::shared_ptr<Tensors> t;
    std::shared_ptr<SimStream> on;
    CallOptions options;
    const auto with = [&](size_t ins, size_t in_size, size_t outs, size_t out_size) -> const CallOptions& {
      t = tensors(ins, in_size, outs, out_size, op.a);
      {
        const std::lock_guard lock(mine_);
        kept_.push_back(t);
      }
      if (op.keep_alive) options.keep_alive = owner(t);
      if (op.streamed) on = stream(0);
      options.stream = on.get();
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
      case Kind::kAllToAllSingle: {
        const size_t more = static_cast<size_t>(op.b);
        with(1, n + more, 1, n + more);
        std::vector<int64_t> splits(more == 0 ? 0 : n, 1);
        if (more != 0) splits[static_cast<size_t>(pg.rank())] += op.b;
        work = pg.all_to_all_single(t->out[0], t->in[0], splits, splits, options);
        break;
      }
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
        keep((slot + 1) % kSmallProgramSlots, std::move(both[0]), std::make_shared<Tensors>());
        work = std::move(both[1]);
        break;
      }
      case Kind::kStartCoalescing:
        pg.start_coalescing();
        return "";
      default:
        work = pg.end_coalescing(with(0, 0, 0, 0));
    }
    // Data that a stream writes may be read once it was synchronized, not after wait(): a race within the rank.
    if (op.streamed && !program_.reads_early) t = nullptr;
    if (t != nullptr) t->on_stream = op.streamed;
    keep(slot, std::move(work), std::move(t));
    return "";
  }

  void keep(size_t slot, Work work, std::shared_ptr<Tensors> tensors) {
    drop(slot);
    point();
    const std::lock_guard lock(mine_);
    works_[slot] = std::move(work);
    tensors_[slot] = std::move(tensors);
  }

  std::shared_ptr<ProcessGroup> kept(int i, std::shared_ptr<ProcessGroup> made) {
    (void)put(&groups_[static_cast<size_t>(i)], made);
    return made;
  }

  std::string do_group(const SmallOp& op, const std::shared_ptr<ProcessGroup>& pg) {
    switch (op.kind) {
      case Kind::kInitGroup:
        return kept(op.b, init_process_group(*rank_, group_options()))->group_name();
      case Kind::kNewGroup: {
        const std::shared_ptr<ProcessGroup> made = kept(1, pg->new_group({0, 1}, group_options()));
        return made == nullptr ? "none" : made->group_name();
      }
      case Kind::kNewGroupOfAll:
        return kept(1, pg->new_group(group_options()))->group_name();
      case Kind::kSplitGroup: {
        const auto made = kept(1, pg->split_group(pg->rank() / (op.a + 1), -pg->rank() * op.b, group_options()));
        return absl::StrCat(made->group_name(), " ", made->rank());
      }
      case Kind::kDeviceMesh:
        return kept(1, init_device_mesh(pg, {pg->size()}).get_group())->group_name();
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
        pg->set_reduce_order({.kind = ReduceOp::Order::Kind::kReversed});
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

  // Of a work that may be on its way. Poison tells on who looks too early; a value that is there by luck does not.
  std::string early_values(size_t slot) const {
    if (tensors_[slot] == nullptr || tensors_[slot]->out.empty()) return "";
    const std::vector<Floats>& out = tensors_[slot]->out;
    const bool poisoned = std::any_of(out.begin(), out.end(), [](const Floats& each) {
      return std::any_of(each.begin(), each.end(), [](float value) { return std::isnan(value); });
    });
    return absl::StrCat(kEarly, poisoned ? kPoison : floats_text(out), ">");
  }

  std::string write_early(size_t slot, bool input) {
    if (tensors_[slot] == nullptr) return "none";
    std::vector<Floats>& list = input ? tensors_[slot]->in : tensors_[slot]->out;
    if (list.empty() || list[0].empty()) return "none";
    list[0][0] = 7;
    return "";
  }

  // After wait().
  std::string values(size_t slot) const {
    if (tensors_[slot] == nullptr) return "";
    return tensors_[slot]->on_stream ? early_values(slot) : floats_text(tensors_[slot]->out);
  }

  std::optional<Work> work_at(size_t slot) {
    point();
    const std::lock_guard lock(mine_);
    return works_[slot];
  }

  std::string do_work(const SmallOp& op, int number) {
    const size_t slot = static_cast<size_t>(op.a);
    switch (op.kind) {
      case Kind::kFutureDone:
        if (const std::optional<Future> future = copy(future_)) return absl::StrCat(future->done());
        return "none";
      case Kind::kFutureValue:
        if (std::optional<Future> future = copy(future_))
          return absl::StrCat(future->value().size(), future->work().is_completed());
        return "none";
      case Kind::kFutureThen:
        if (std::optional<Future> future = copy(future_)) future->then(callback_of(op, number));
        return "";
      case Kind::kWaitAll:
      case Kind::kWaitAny: {
        std::vector<Work> works;
        for (size_t i = 0; i < kSmallProgramSlots; ++i) {
          if (const std::optional<Work> work = work_at(i)) works.push_back(*work);
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
      case Kind::kEarlyRead:
        return early_values(slot);
      case Kind::kEarlyWrite:
        return write_early(slot, op.b == 1);
      default:
        break;
    }
    std::optional<Work> held = work_at(slot);
    if (!held) return "none";
    Work work = *std::exchange(held, std::nullopt);
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
        drop(slot);
        return "";
      case Kind::kThen:
        work.then(callback_of(op, number));
        return "";
      default:
        (void)put(&future_, std::optional<Future>(work.get_future()));
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
      case Kind::kWatchedGet:
        return absl::StrCat(s.watched.get());
      case Kind::kWatchedSet:
        s.watched.set(op.b);
        return "";
      case Kind::kWatchedUpdate:
        s.watched.update([&](int& value) { value = 10 * value + op.b + 1; });
        return "";
      default:
        s.latch.arrive_and_wait();
        return "";
    }
  }

  std::string do_stream(const SmallOp& op, int number) {
    switch (op.kind) {
      case Kind::kLaunch:
        stream(op.a)->launch(body_of(op, number));
        return "";
      case Kind::kStreamQuery:
        return absl::StrCat(stream(op.a)->query());
      case Kind::kStreamSynchronize:
        stream(op.a)->synchronize();
        return "";
      case Kind::kStreamStatus: {
        const absl::Status status = stream(op.a)->status();
        return std::string(stream(op.a)->name()) + " " +
               std::string(status.ok() ? "ok" : error_kind_name(error_kind(status)));
      }
      case Kind::kStreamWaitFor:
        if (std::optional<Work> work = work_at(static_cast<size_t>(op.a)); work.has_value()) {
          stream(op.b)->wait_for(*work, op.c == 0 ? absl::InfiniteDuration() : ms(op.c));
          return "";
        }
        return "none";
      case Kind::kBlockCurrentStream:
        if (std::optional<Work> work = work_at(static_cast<size_t>(op.a)); work.has_value()) {
          work->block_current_stream(*stream(op.b));
          return "";
        }
        return "none";
      case Kind::kRecordEvent:
        (void)put(&event_, stream(op.a)->record());
        return "";
      case Kind::kQueryEvent:
        return absl::StrCat(copy(event_).query());
      case Kind::kSynchronizeEvent:
        copy(event_).synchronize();
        return "";
      default:
        stream(op.a)->wait_event(copy(event_));
        return "";
    }
  }

  const SmallProgram& program_;
  const bool free_;
  Shared* const shared_;  // null: made late, by a task of the run
  Seen& seen_;
  RankContext* rank_ = nullptr;
  std::atomic<int> users_ = 0;
  // The rank's own memory, which its callbacks and helpers use, too. No call of the library is made under the lock:
  // only in the free gear is there somebody to wait for.
  std::mutex mine_;
  int variable_ = 0;
  std::shared_ptr<Shared> shared_late_;
  std::shared_ptr<Promise> promise_;
  std::array<std::shared_ptr<ProcessGroup>, kGroups> groups_;
  std::array<std::optional<Work>, kSmallProgramSlots> works_;
  std::array<std::shared_ptr<Tensors>, kSmallProgramSlots> tensors_;
  std::vector<std::shared_ptr<Tensors>> kept_;
  std::array<std::shared_ptr<SimStream>, 2> streams_;
  Stream::Event event_;
  std::optional<Future> future_;
};

}  // namespace

std::function<void(World&, const RunReport&)> after_run;
std::function<void(SmallOpKind)> acted_without_a_point;

Outcome run_program(const SmallProgram& program, const Schedule& schedule, const RunHooks& hooks) {
  Seen seen(program);
  auto shared = program.shared_late ? nullptr : std::make_unique<Shared>();
  const bool free = schedule.kind() == Schedule::Kind::kFree;
  std::deque<RankRun> runs;
  for (size_t i = 0; i < program.ranks.size(); ++i) runs.emplace_back(program, free, shared.get(), &seen);
  const auto world = WorldState::make({.world_size = static_cast<int>(program.ranks.size()),
                                       .engine = free ? EngineKind::kThreads : EngineKind::kFibers,
                                       .schedule = schedule,
                                       .seed = 1,
                                       .on_warning = [](const std::string&) {},
                                       .keep_run = after_run != nullptr,
                                       .faults = program.faults,
                                       .max_steps = 5'000,
                                       .stall = absl::InfiniteDuration()},
                                      hooks);
  RunReport report = world->run([&](RankContext& rank) { runs[static_cast<size_t>(rank.rank())].run(rank); });
  if (after_run) after_run(*world, report);
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

}  // namespace rankloom
