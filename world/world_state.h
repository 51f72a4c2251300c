#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rankloom/group.h"
#include "rankloom/options.h"
#include "rankloom/random.h"
#include "rankloom/store.h"
#include "rankloom/world.h"
#include "sim/base/kept_memory.h"
#include "sim/base/lock_order.h"
#include "sim/faults/fault_injector.h"
#include "sim/schedule/run_hooks.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/deadlock_report.h"
#include "sim/scheduler/scheduler.h"
#include "sim/sync/observed_mutex.h"
#include "sim/sync/rank_mutex.h"
#include "world/flight_recorder.h"
#include "world/group_order.h"
#include "world/open_outputs.h"
#include "world/operation_log.h"

namespace rankloom::internal {

class GroupBackend;

// The library's side of a rank, behind its RankContext: recorder, open outputs, generator. Every RankContext is one.
class RankState final : public RankContext, public Kept {
 public:
  RankState(WorldState* world, int rank);
  ~RankState() = default;

  WorldState& world() const { return state_; }

  // The last calls of this rank.
  RankRecorder& recorder() { return recorder_; }
  // Null: no run file is wanted.
  OperationLog* log() { return log_.get(); }
  OpenOutputs& open_outputs() { return open_outputs_; }
  uint64_t rng_seed() const;
  Prng& rng() { return rng_; }

  // Whether the calling task of this rank leaves a scope by an exception that may end the rank: nobody has caught it
  // yet. False in a stream's kernel, whose exception ends the stream, and on threads that are none of the rank's.
  bool unwinding() const;
  // `told` runs once the calling task, which is unwinding(), has returned all the same: it caught the exception. Never,
  // if that ended the rank.
  void when_caught(std::function<void()> told);

  // Of a run with poisoned outputs: why the rank may find NaN or 0xEB bytes, "all_reduce seq 2 [train.cc:12]"; else
  // empty.
  std::string open_calls_text() const;
  // The same at the throw of an exception that the calling task has caught, or that has left it.
  std::string open_at_throw_text();
  // The groups that this rank has called, by name and in the order of their first calls; a name may come twice.
  std::vector<std::string> groups_called() const;
  void calls_group(const std::string& name);
  // `call` was open when the last handle on it went, in a scope that an exception leaves.
  void lost_by_exception(std::string call);

  CalledHandle called(const char* op, CodeSite code) const {
    return {.rank = rank(), .handle = "context", .op = op, .code = code};
  }

  // The state of the calling rank or helper; nullptr on a thread that belongs to no world.
  static RankState* current();

 private:
  friend class WorldState;
  friend void* rank_local(const void* key, std::shared_ptr<void> (*make)());
  // The calling task has returned.
  void task_returned();
  // The object of a RankLocal, made if there is none.
  void* local(const void* key, std::shared_ptr<void> (*make)());
  // Lets the rank's locals go, the last that was made first. False: there was none.
  bool release_locals();
  // The number of the last call, from 0; -1: none, or none is recorded.
  int64_t last_call() const;

  WorldState& state_;
  const std::unique_ptr<OperationLog> log_;
  RankRecorder recorder_;
  Prng rng_;
  int world_groups_ = 0;                             // groups of all ranks that this rank has asked for
  absl::flat_hash_map<std::string, int> groups_of_;  // the same of others, by name and ranks
  std::vector<std::string> groups_made_;             // by name, as the rank got them, under WorldState::mu_

  struct Caught {
    uint64_t task;  // Task::current_serial()
    std::function<void()> told;
  };
  mutable RankMutex caught_mu_;  // of all below
  std::vector<Caught> caught_ ABSL_GUARDED_BY(caught_mu_);
  std::vector<std::string> groups_called_ ABSL_GUARDED_BY(caught_mu_);
  std::vector<std::string> lost_ ABSL_GUARDED_BY(caught_mu_);  // lost_by_exception(), before the next call
  int64_t lost_after_ ABSL_GUARDED_BY(caught_mu_) = -1;        // the last call by then

  // The rank's own objects by RankLocal, which its helpers ask for, too; and in the order of their making.
  absl::flat_hash_map<const void*, void*> locals_ ABSL_GUARDED_BY(caught_mu_);
  std::vector<std::pair<const void*, std::shared_ptr<void>>> locals_made_ ABSL_GUARDED_BY(caught_mu_);

  OpenOutputs open_outputs_;
};

inline RankState& state_of(RankContext& rank) { return static_cast<RankState&>(rank); }
inline const RankState& state_of(const RankContext& rank) { return static_cast<const RankState&>(rank); }

// The library's side of a World: what its ranks share and how they ended. It schedules no tasks and moves no data.
// Thread-safety: attach(), detach(), abort() from any thread; the rest before and after the run, or by its ranks.
class WorldState : public Kept {
 public:
  // `code`: of the caller, for options that do not fit.
  WorldState(World* face, WorldOptions&& options, const RunHooks& hooks, CodeSite code);
  ~WorldState();
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;

  static WorldState& of(World& world) { return *world.state_; }
  static const WorldState& of(const World& world) { return *world.state_; }
  // A run of a search.
  static std::unique_ptr<World> make(WorldOptions options, const RunHooks& hooks) {
    return std::unique_ptr<World>(new World(std::move(options), hooks, /*code=*/{}));
  }
  World& face() { return face_; }

  const WorldOptions& options() const { return options_; }
  int size() const { return options_.world_size; }
  // Calls that each rank's recorder keeps.
  int recorded_calls() const {
    return options_.recorded_calls.value_or(std::clamp((1 << 18) / options_.world_size, 8, 64));
  }
  // Whether each rank has an OperationLog.
  bool keeps_log() const { return keeps_log_; }
  Scheduler& scheduler() { return *scheduler_; }
  Store& store() { return *store_; }
  int64_t start_ns() const { return start_ns_; }

  // As those of World.
  RunReport run(absl::FunctionRef<void(RankContext&)> program, CodeSite code);
  // The same for a world of which nobody will ask for a report() any more: the trace is moved into this one.
  RunReport run_once(absl::FunctionRef<void(RankContext&)> program, CodeSite code);
  RankState& attach(int rank, CodeSite code);
  void detach(std::exception_ptr failure, CodeSite code);
  // To be called before a report of ranks that attached: their helpers may outlast them. Does nothing after run().
  void await_helpers();
  RunReport report() { return report(/*last=*/false); }
  void spawn_helper(absl::AnyInvocable<void()> body, CodeSite code);
  // The cause is `reason` alone.
  void abort(std::string_view reason);
  using AbortListener = std::function<void(const absl::Status&)>;
  // The library's own listeners are told before users'.
  int64_t on_abort(AbortListener listener, bool of_user = false);
  void forget_on_abort(int64_t listener);
  void rank_failed(int rank, std::exception_ptr failure);
  // `rank` was ended by a failure that another one is to blame for.
  void rank_stopped(int rank, std::string text, std::exception_ptr failure);
  // A line for the report. A search takes all but warnings for failures (ExploreOptions::Checks::leaks).
  enum class NoteKind : uint8_t {
    kLeftover,  // a work, message or call that nobody will end; what users note
    kWarning,   // of a wait that lasts
    kHook,      // of a hook, helper or callback that threw
  };
  void note(NoteKind kind, std::string text);
  struct Note {
    NoteKind kind;
    std::string text;
  };
  // The notes that a search takes for failures, in their order, and the errors that no rank asked for.
  std::vector<Note> failing_notes() const;
  // Lines of the faults that could not happen (FaultInjector::missed()).
  std::vector<std::string> missed_faults() const;
  // Calls of this world have ended with an error of their own, a Mismatch perhaps, whose text names group and call: a
  // leftover, unless it is retrieved before the run ends. A rank retrieves an error that it has thrown, asks for or has
  // a callback called with; or one with a text that has this one in it, as later calls of the group have.
  void not_retrieved(const absl::Status& error);
  void retrieved(const absl::Status& error);
  // Hooks run in the order of `place`, and within that in the order in which they came: first those of groups, by group
  // and rank, then those of devices, then those of users. Those of groups run in an ActsForFibers; those of devices
  // wait for threads that take one.
  static constexpr int64_t kDevices = int64_t{1} << 62;
  static constexpr int64_t kUsers = kDevices + 1;
  int64_t at_end(int64_t place, std::function<void()> hook);
  void forget_at_end(int64_t hook);
  // After the run: the world takes no more tasks, and the objects go that users left in it, as in its destructor. Calls
  // after the first do nothing.
  void end();
  std::vector<std::shared_ptr<const Group>> groups() const;
  std::string describe() const;

  // Runs `body` on the calling task, a helper of `rank`, with what spawn_helper() says of what it throws.
  void run_helper(int rank, absl::FunctionRef<void()> body);

  RankState& context(int rank) { return *contexts_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<const Group>& world_group() const { return world_group_; }

  // The object that ranks share under `key`, made by the first that asks. `kSame`: no matter which one that is, so that
  // explored runs need not try each. Throws DistError(InvalidArgument) if `key` has an object of another type.
  enum class Maker : uint8_t { kMatters, kSame };
  template <typename T, typename Make>
  std::shared_ptr<T> shared(std::string_view key, Make make, Maker maker = Maker::kMatters) {
    return std::static_pointer_cast<T>(
        shared_object(key, &type_mark<T>, [&]() -> std::shared_ptr<void> { return make(); }, maker, /*code=*/{}));
  }
  std::shared_ptr<void> shared_object(std::string_view key, const void* type,
                                      absl::FunctionRef<std::shared_ptr<void>()> make, Maker maker, CodeSite code);
  bool has_shared_object(std::string_view key);
  // Whether the ranks' tensors may be a device's. Takes no lock, and once true stays true.
  bool uses_device() const { return uses_device_.load(std::memory_order_acquire); }
  // `blocked` tells, for the text of a stall, which streams wait for works. Once.
  void set_uses_device(std::function<std::string()> blocked) {
    blocked_streams_ = std::move(blocked);
    uses_device_.store(true, std::memory_order_release);
  }
  // Forgets the object; its holders keep it.
  void unshare(std::string_view key);

  // A group of all ranks: the n-th call of a rank gives what the n-th call of the others does. `name` may be empty.
  std::shared_ptr<const Group> next_world_group(RankState& rank, std::string_view name);
  // The same of these global ranks, in this order: the n-th call of a rank for this name and these ranks.
  std::shared_ptr<const Group> next_group_of(RankState& rank, std::string name, std::vector<int> ranks);
  // A group of these global ranks, in this order, with an id of its own, which no other group of the world ever gets.
  // The world has it until all members have left. `object`: its name in explored runs (GroupAccess::object).
  std::shared_ptr<const Group> add_group(std::string name, std::vector<int> ranks, std::string description,
                                         uint64_t object = 0);
  // The same of `size` ranks from `first` on, `stride` apart.
  std::shared_ptr<const Group> add_group(std::string name, int first, int stride, int size, std::string description,
                                         uint64_t object = 0);
  // Global rank `rank` asks for a group that the first rank to ask makes: a search is told whether the order matters.
  void asks_for_group(const Group& group, int rank);
  // All members of `parent` have asked for the group.
  void made_together(const Group& group, const Group& parent);
  // Global rank `rank` has left the group and makes no more calls; said twice, it counts once. Of any other world's
  // group: nothing.
  void leave_group(const Group& group, int rank);
  // The same of so many members that never came.
  void leave_group_absent(const Group& group, int members);
  // groups() and groups_made() have all groups of the run: for code that compares runs. To be called before the run.
  void keep_all_groups();
  // The groups beside the world's that the rank has asked for or made with others, by name, in the order in which the
  // rank got them: not that of groups(), of which the first rank to come decides. Empty without keep_all_groups().
  std::vector<std::string> groups_made(int rank);
  void gets_group(const Group& group, int rank);
  bool keeps_all_groups() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return keeps_all_groups_; }  // written before the run

  bool poison() const { return poison_; }
  bool late_completion() const { return late_completion_; }
  // The schedule's answer to GroupOptions::Rooted::kBySchedule: whether the members of a rooted call are done each by
  // itself. Asked at the first such call of the run, which `site` names. By tasks, with no lock held.
  bool rooted_each(const Site& site);

  // How the command that repeats the run is told where the run itself has to be: `told` makes of it the command that
  // repeats a part of the process, such as one test. Before the run.
  void tell_rerun_by(std::string (*told)(std::string)) { rerun_told_ = told; }

  // A world of which this process has rank `own` only, before it attaches: the others run in other processes. `store`:
  // where all of them meet. `backend` makes its groups, and outlives the run.
  void ranks_elsewhere(int own, std::unique_ptr<Store> store, GroupBackend* backend);
  // Null: ranks of one process, whose groups are threaded ones.
  GroupBackend* group_backend() const { return group_backend_; }
  // How a rank of another process ended.
  void ended_elsewhere(int rank, RunReport::Outcome outcome);

  // Null: nothing goes wrong by plan.
  FaultInjector* faults() { return faults_.get(); }

  // A note that is told at once, to WorldOptions::on_warning as well.
  void warn(const std::string& text);

  // The end of a rank, for reports: "" while it runs, else "returned" or "failed: ...".
  std::string ended_text(int rank) const;

 private:
  void run_all(absl::FunctionRef<void(RankContext&)> program, CodeSite code);
  // The store with the wrappers that this run asks for.
  std::unique_ptr<Store> wrapped(std::unique_ptr<Store> store);
  RunReport report(bool last);
  std::vector<std::string> unretrieved_notes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void run_rank(int rank, Task& task, absl::FunctionRef<void(RankContext&)> program);
  void rank_returned(int rank);
  // A helper or callback of the rank threw: its failure, unless the run was aborted or has ended; a note then, if the
  // exception is the program's own.
  void callback_failed(int rank, const std::exception_ptr& failure);
  bool all_ended() const;
  void run_end_hooks();
  // Has the listeners, hooks and shared objects go while all of the world is there: destructors of users' may call it,
  // and leave more behind.
  void release_what_users_left();
  // An exception of a hook, on a thread that has nobody to catch it, becomes a note: "whereabouts threw: no debugger".
  // A hint that explains the values which `text`, of a failure of the rank, is about; else empty.
  std::string poison_hint_for(int rank, const std::exception_ptr& failure, std::string_view text);
  void run_hook(const char* what, absl::FunctionRef<void()> hook) noexcept;
  void stalled(const std::string& text);
  // A line of its own; empty: no command repeats the run.
  std::string rerun_line() const;
  void record_group();
  void asks(const Group& group, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void count_left(const Group& group, int rank, int members);
  std::shared_ptr<const Group> keep_group(Group group, uint64_t object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A better cause than that nobody can move, if one is known, and the lines about tasks that wait.
  struct Waits {
    absl::Status cause;
    std::string lines;
    StuckRun stuck;
  };
  Waits waits_of(const std::vector<Task*>& waiting) const;
  // The error that a stuck run ends with. The report has its waits as data.
  absl::Status end_of_stuck(const std::vector<Task*>& blocked, ErrorKind kind, const std::string& headline);
  std::string whereabouts();
  Scheduler::WaitReporter wait_reporter();

  // From the destructor's beginning to its end, in which destructors of the users' own run.
  std::optional<AfterRanks> after_;
  World& face_;
  const WorldOptions options_;
  bool poison_ = false;
  bool late_completion_ = false;
  const bool keeps_log_;
  std::string (*rerun_told_)(std::string) = nullptr;
  std::atomic<bool> uses_device_{false};
  std::function<std::string()> blocked_streams_;  // written before uses_device_
  std::atomic<int> rooted_each_{-1};              // -1: the schedule was not asked yet
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FaultInjector> faults_;
  std::unique_ptr<Store> store_;
  HashStore* keys_ = nullptr;              // below what wraps it; null: kept elsewhere
  GroupBackend* group_backend_ = nullptr;  // const once a rank has attached
  std::shared_ptr<const Group> world_group_;
  std::vector<std::unique_ptr<RankState>, KeptAllocator<std::unique_ptr<RankState>>> contexts_;
  int64_t start_ns_ = 0;
  uint64_t object_ = 0;  // explored runs: the name of the ids of groups, and of what ranks share

  OrderedMutex listeners_mu_{LockLevel::kAbortListeners};
  std::map<int64_t, std::shared_ptr<const AbortListener>> listeners_ ABSL_GUARDED_BY(listeners_mu_);
  // Numbers of users' own, which a program may look at: the library's would depend on which rank came first.
  int64_t listener_ids_ ABSL_GUARDED_BY(listeners_mu_) = 0;
  int64_t own_listener_ids_ ABSL_GUARDED_BY(listeners_mu_) = std::numeric_limits<int64_t>::min();

  ObservedMutex shared_mu_;
  struct Shared {
    std::shared_ptr<void> object;
    const void* type = nullptr;
    int64_t number = 0;  // in the order of their making
  };
  absl::flat_hash_map<std::string, Shared> shared_ ABSL_GUARDED_BY(shared_mu_);
  int64_t shared_number_ ABSL_GUARDED_BY(shared_mu_) = 0;                               // of the last
  absl::flat_hash_map<std::string, uint64_t> shared_made_ ABSL_GUARDED_BY(shared_mu_);  // explored runs: how often

  mutable ObservedMutex mu_;
  std::vector<RunReport::Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> attached_ ABSL_GUARDED_BY(mu_);  // [rank]; empty: none
  bool ran_ ABSL_GUARDED_BY(mu_) = false;            // run() was called
  int first_failed_ ABSL_GUARDED_BY(mu_) = -1;
  std::vector<Note> notes_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> unretrieved_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> explored_retrieved_ ABSL_GUARDED_BY(mu_);  // explored runs: all that were
  StuckRun stuck_ ABSL_GUARDED_BY(mu_);
  struct EndHook {
    std::function<void()> run;
    int64_t place = kUsers;
  };
  std::map<int64_t, EndHook> end_hooks_ ABSL_GUARDED_BY(mu_);
  int64_t hook_ids_ ABSL_GUARDED_BY(mu_) = 0;                                        // users'
  int64_t own_hook_ids_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::min();  // the library's
  struct Joined {
    std::shared_ptr<const Group> group;
    int left = 0;                 // members that have left it
    std::vector<bool> gone = {};  // [rank in group] those, but for absent ones; empty as long as there are none
  };
  std::map<int, Joined, std::less<>, KeptAllocator<std::pair<const int, Joined>>> groups_
      ABSL_GUARDED_BY(mu_);  // by id
  int group_ids_ ABSL_GUARDED_BY(mu_) = 0;
  GroupOrder group_order_ ABSL_GUARDED_BY(mu_);
  bool keeps_all_groups_ ABSL_GUARDED_BY(mu_) = false;
  struct Asked {
    std::shared_ptr<const Group> group;
    int ranks = 0;  // that have asked for it
  };
  // The groups of all ranks that some rank has not asked for yet, in their order, and how many there were before.
  std::deque<Asked, KeptAllocator<Asked>> world_groups_ ABSL_GUARDED_BY(mu_);
  size_t world_groups_before_ ABSL_GUARDED_BY(mu_) = 0;
  // The other groups that some member has not asked for yet, by name, ranks, and which of these it is.
  std::map<std::string, Asked> groups_asked_ ABSL_GUARDED_BY(mu_);
};

inline WorldState& state_of(World& world) { return WorldState::of(world); }
inline const WorldState& state_of(const World& world) { return WorldState::of(world); }

// A thread retrieves `error` from an object of this rank and world, which may have ended: WorldState::retrieved().
void retrieved_error(const WorldRef& world, int rank, const absl::Status& error);

}  // namespace rankloom::internal
