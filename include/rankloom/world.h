#pragma once

#include <any>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rankloom/group.h"
#include "rankloom/options.h"
#include "rankloom/report.h"
#include "rankloom/store.h"
#include "sim/base/prng.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"
#include "sim/sync/observed_mutex.h"
#include "world/flight_recorder.h"

namespace rankloom {

class World;

// What a rank knows of itself and its world. Lives as long as the world; belongs to its rank and the rank's helpers.
class RankContext {
 public:
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int world_size() const;
  World& world() const { return *world_; }
  // The store that all ranks share.
  Store& store() const;

  // A seed for this rank's own randomness: from the run's seed and the rank, equal in every repetition.
  uint64_t rng_seed() const;

  // This rank's own generator, seeded with rng_seed(): what a program would take from a global one, which ranks would share.
  Prng& rng() { return rng_; }

  // Time since the world began: virtual in deterministic runs.
  absl::Duration now() const;
  // Lets `duration` pass; costs no real time in deterministic runs. Throws DistError when the world is aborted meanwhile.
  void sleep_for(absl::Duration duration, CodeSite code = CodeSite::here());
  // A scheduling point: others may run.
  void yield(CodeSite code = CodeSite::here());

  // The last calls of this rank.
  RankRecorder& recorder() { return recorder_; }

  // Whether the calling task of this rank leaves a scope by an exception that may end the rank: nobody has caught it yet. False
  // in a stream's kernel, whose exception ends the stream, and on threads that are none of the rank's.
  bool unwinding() const;
  // `told` runs once the calling task, which is unwinding(), has returned all the same: it caught the exception. Never, if
  // that ended the rank.
  void when_caught(std::function<void()> told);

  // The context of the calling rank or helper; nullptr on a thread that belongs to no world.
  static RankContext* current();

 private:
  friend class World;
  template <typename T>
  friend class RankLocal;
  RankContext(World* world, int rank);
  // The calling task has returned.
  void task_returned();
  CalledHandle called(const char* op) const;

  World* const world_;
  const int rank_;
  RankRecorder recorder_;
  Prng rng_;
  int world_groups_ = 0;                                            // groups of all ranks that this rank has asked for
  absl::flat_hash_map<const void*, std::shared_ptr<void>> locals_;  // the rank's own

  struct Caught {
    const Task* task;
    std::function<void()> told;
  };
  RankMutex caught_mu_;  // taken after no other lock
  std::vector<Caught> caught_ ABSL_GUARDED_BY(caught_mu_);
};

// One value per rank, where code would use a thread_local: right on threads and on fibers. Make one per variable, with
// static or longer lifetime than the world. get() makes the value with T() at the first use in each rank.
// Errors: std::logic_error on a thread that belongs to no world.
template <typename T>
class RankLocal {
 public:
  T& get() {
    RankContext* const context = RankContext::current();
    if (context == nullptr) throw std::logic_error("RankLocal used on a thread that belongs to no rank");
    std::shared_ptr<void>& slot = context->locals_[this];
    if (slot == nullptr) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }
  T& operator*() { return get(); }
  T* operator->() { return &get(); }
};

// Held by code outside the world that will wake a rank: while one is held, a stuck run is no deadlock and virtual time
// does not jump.
class OutsideWaker {
 public:
  explicit OutsideWaker(Scheduler* scheduler) : scheduler_(scheduler) { scheduler_->add_outside(1); }
  OutsideWaker(OutsideWaker&& other) noexcept : scheduler_(std::exchange(other.scheduler_, nullptr)) {}
  OutsideWaker(const OutsideWaker&) = delete;
  OutsideWaker& operator=(const OutsideWaker&) = delete;
  OutsideWaker& operator=(OutsideWaker&&) = delete;
  ~OutsideWaker() {
    if (scheduler_ != nullptr) scheduler_->add_outside(-1);
  }

 private:
  Scheduler* scheduler_;
};

// N ranks in this process, with what they share. Runs one program once; make another world for another run.
// Thread-safety: attach(), detach(), abort() from any thread; the rest before and after the run.
class World {
 public:
  // Throws DistError(InvalidArgument) for options that do not fit together.
  explicit World(WorldOptions options) : World(std::move(options), RunHooks()) {}
  // A run of a search.
  World(WorldOptions options, const RunHooks& hooks);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const WorldOptions& options() const { return options_; }
  int size() const { return options_.world_size; }
  Scheduler& scheduler() { return *scheduler_; }
  Store& store() { return *store_; }

  // Runs `program` once per rank and returns when all have ended. What a rank throws ends up in the report. Throws
  // DistError(InvalidArgument) if it was called before, or ranks have attached.
  RunReport run(absl::FunctionRef<void(RankContext&)> program);

  // Instead of run(): the calling thread becomes rank `rank` until detach(). Threads only. Under a deterministic schedule it
  // blocks until all ranks have attached. Throws DistError(InvalidArgument) for a rank outside the world or taken.
  RankContext& attach(int rank);
  // `failure`: what the rank's program threw, if it did. Does nothing on a thread that is no task of this world; throws
  // DistError(InvalidArgument) on one that did not attach.
  void detach(std::exception_ptr failure = nullptr);
  // After the last detach(). Ends what is unfinished: works, groups and streams that are kept answer `the world has ended`.
  RunReport report();

  // A further thread of the calling rank (a fiber on fibers). Ends before run() returns. What it throws is a failure of its
  // rank, unless the world was aborted before: then its calls throw the cause, and it just ends.
  void spawn_helper(absl::AnyInvocable<void()> body);
  // Runs `body` on the calling task, a helper of `rank`, with what spawn_helper() says of what it throws.
  void run_helper(int rank, absl::FunctionRef<void()> body);

  OutsideWaker outside_waker() { return OutsideWaker(scheduler_.get()); }

  // Ends the run: all waits and later calls fail with this cause (Aborted).
  void abort(std::string_view reason);
  // `listener` is told the cause when the world is aborted, on the thread that aborts it: for what nobody waits in, such as
  // works whose completion others were promised. It must not wait. Not called for an abort that is past. Returns what
  // forget_on_abort() takes.
  int64_t on_abort(std::function<void(const absl::Status&)> listener);
  void forget_on_abort(int64_t listener);
  // Ends the run for a failure of `rank`; the first one is the headline. A rank that is told of twice keeps its first.
  void rank_failed(int rank, std::exception_ptr failure);

  RankContext& context(int rank) { return *contexts_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<const Group>& world_group() const { return world_group_; }

  // The object that ranks share under `key`, made by the first that asks. `kSame`: it does not matter which one that is, so that
  // explored runs need not try each.
  enum class Maker : uint8_t { kMatters, kSame };
  std::shared_ptr<void> shared(std::string_view key, absl::FunctionRef<std::shared_ptr<void>()> make,
                               Maker maker = Maker::kMatters);
  // Forgets the object; who holds it keeps it.
  void unshare(std::string_view key);

  // A group of all ranks: the n-th call of a rank gives what the n-th call of the others does. `name` may be empty.
  std::shared_ptr<const Group> next_world_group(RankContext& rank, std::string_view name);
  // A group of these global ranks, in this order, with an id of its own, which no other group of the world ever gets. The world
  // has it until all members have left. `object`: its name in explored runs (Group::object).
  std::shared_ptr<const Group> add_group(std::string name, std::vector<int> ranks, std::string description,
                                         uint64_t object = 0);
  // The same of `size` ranks from `first` on, `stride` apart.
  std::shared_ptr<const Group> add_group(std::string name, int first, int stride, int size, std::string description,
                                         uint64_t object = 0);
  // Global rank `rank` has left the group and makes no more calls; said twice, it counts once. Of any other world's group: nothing.
  void leave_group(const Group& group, int rank);
  // The same of so many members that never came.
  void leave_group_absent(const Group& group, int members);
  // All groups but those that all members have left, by id; that of all ranks stays.
  std::vector<std::shared_ptr<const Group>> groups() const;
  // groups() has all groups of the run: for code that compares runs. To be called before the run.
  void keep_all_groups();

  bool poison() const { return poison_; }
  bool late_completion() const { return late_completion_; }

  // Null: nothing goes wrong by plan.
  FaultInjector* faults() { return faults_.get(); }

  // A line for the report: something left over or about to go wrong.
  void note(std::string text);
  // A note that is told at once, to WorldOptions::on_warning as well.
  void warn(const std::string& text);

  // `hook` runs once, when all ranks have ended and before the report is made: to note what was left over. Returns what
  // forget_at_end() takes.
  int64_t at_end(std::function<void()> hook);
  void forget_at_end(int64_t hook);

  // Where all ranks are, one line for those that are alike: who waits in what, from which line and for whom, who runs, who
  // has ended. For a debugger, and for ranks; from another thread it is right only while no rank moves.
  std::string describe() const;

  // What became of a rank, for reports: "" while it runs, else "returned" or "failed: ...".
  std::string ended_text(int rank) const;

 private:
  friend class RankContext;
  void run_rank(int rank, Task& task, absl::FunctionRef<void(RankContext&)> program);
  void rank_returned(int rank);
  bool all_ended() const;
  void run_end_hooks();
  // What a hook throws, on a thread that has nobody to catch it, is a note: "whereabouts threw: no debugger".
  void run_hook(const char* what, absl::FunctionRef<void()> hook) noexcept;
  void stalled(const std::string& text);
  void record_group();
  void count_left(const Group& group, int rank, int members);
  std::shared_ptr<const Group> keep_group(Group group, uint64_t object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status deadlock(const std::vector<Task*>& blocked);

  const WorldOptions options_;
  bool poison_ = false;
  bool late_completion_ = false;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FaultInjector> faults_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<const Group> world_group_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  int64_t start_ns_ = 0;
  uint64_t object_ = 0;  // explored runs: the name of the ids of groups, and of what ranks share

  absl::Mutex listeners_mu_;  // taken after mu_
  std::map<int64_t, std::function<void(const absl::Status&)>> listeners_ ABSL_GUARDED_BY(listeners_mu_);
  int64_t listener_ids_ ABSL_GUARDED_BY(listeners_mu_) = 0;

  ObservedMutex shared_mu_;  // before mu_: what is made may add groups and listeners
  absl::flat_hash_map<std::string, std::shared_ptr<void>> shared_ ABSL_GUARDED_BY(shared_mu_);

  mutable ObservedMutex mu_;  // taken after no other lock but shared_mu_
  std::vector<RankOutcome> outcomes_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> attached_ ABSL_GUARDED_BY(mu_);
  bool ran_ ABSL_GUARDED_BY(mu_) = false;  // run() was called
  int first_failed_ ABSL_GUARDED_BY(mu_) = -1;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::function<void()>> end_hooks_ ABSL_GUARDED_BY(mu_);
  int64_t hook_ids_ ABSL_GUARDED_BY(mu_) = 0;
  struct Joined {
    std::shared_ptr<const Group> group;
    int left = 0;            // members that have left it
    std::vector<bool> gone;  // [rank in group] those, but for absent ones; empty as long as there are none
  };
  std::map<int, Joined> groups_ ABSL_GUARDED_BY(mu_);  // by id
  int group_ids_ ABSL_GUARDED_BY(mu_) = 0;
  bool keeps_all_groups_ ABSL_GUARDED_BY(mu_) = false;
  struct Asked {
    std::shared_ptr<const Group> group;
    int ranks = 0;  // that have asked for it
  };
  // The groups of all ranks that some rank has not asked for yet, in their order, and how many there were before.
  std::deque<Asked> world_groups_ ABSL_GUARDED_BY(mu_);
  size_t world_groups_before_ ABSL_GUARDED_BY(mu_) = 0;
};

// Runs `program` on `options.world_size` ranks and returns what became of them. Throws DistError(InvalidArgument) for
// options that do not fit; a failure of a rank is in the report.
RunReport run_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program);

}  // namespace rankloom

// For a debugger: prints World::describe() of the world that the selected thread belongs to ("info threads" names the threads:
// rank 0, rank 1, ..., or "rankloom fibers").
extern "C" void rankloom_describe();
