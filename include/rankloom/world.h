#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "rankloom/group.h"
#include "rankloom/options.h"
#include "rankloom/random.h"
#include "rankloom/schedule.h"
#include "rankloom/store.h"

namespace rankloom {

class World;

namespace internal {

class RankState;
class Scheduler;
class WorldState;
struct RunData;
struct RunHooks;

// The value that the calling rank has under `key`, made by `make` at the first call. Throws std::logic_error on a
// thread that belongs to no rank.
void* rank_local(const void* key, std::shared_ptr<void> (*make)());

// The object that ranks of `world` share under `name`. `type`: an address that stands for its type.
std::shared_ptr<void> world_local(World& world, std::string_view name, const void* type,
                                  absl::FunctionRef<std::shared_ptr<void>()> make, CodeSite code);
void forget_world_local(World& world, std::string_view name);

template <typename T>
inline constexpr char type_mark = 0;

}  // namespace internal

// The report of a run. A value; reading it needs no lock.
struct RunReport {
  // How one rank ended.
  struct Outcome {
    enum class State : uint8_t {
      kRunning,  // has not ended (a world whose ranks are the caller's threads)
      kReturned,
      kFailed,   // threw, or a call of its own failed
      kStopped,  // left because the world was aborted for another's failure
    };
    State state = State::kRunning;
    std::string text;              // kFailed, kStopped: what it threw
    std::exception_ptr exception;  // kFailed, kStopped: the same, to rethrow
  };

  std::vector<Outcome> outcomes;   // by rank; none if the environment does not fit
  int first_failed = -1;           // the rank whose failure came first: the headline
  absl::Status cause;              // why the world was aborted; OK if it was not
  Trace trace;                     // replays with Schedule::replay(trace); empty in the free gear, and if it is cut()
  std::string schedule;            // "seeded:7"
  std::string engine;              // "fibers"
  uint64_t steps = 0;              // scheduling points passed
  std::vector<Fault> faults;       // those that happened; as a plan, they happen again
  std::vector<std::string> notes;  // leftovers (works dropped, messages unmatched, errors unasked for), warnings,
                                   // and, of a run that went well, faults of the plan that fitted no call
  std::string rerun;               // the command that repeats this run; empty in the free gear
  std::string run_file;            // what RANKLOOM_REPORT had written: its path, or why there is none
  // The calls and waits of ranks, for write_run(). Null for a run that went well, but for WorldOptions::keep_run.
  std::shared_ptr<internal::RunData> kept;

  // All ranks returned and nobody aborted the world.
  bool ok() const;
  // The first failure as the headline, the other ranks folded under it, the notes, and how to run it again. "ok" if
  // ok().
  std::string text() const;
  // Throws DistError with text() unless ok(); its kind is the first failure's (RankFailed for an exception of the
  // program).
  void throw_if_failed() const;
  // Writes the run as a file (docs/run-files.md), which the command `rankloom` shows as a page or as text.
  // Errors: InvalidArgument that names the file and the system's reason.
  absl::Status write_run(const std::string& path) const;
};

// A rank's view of itself and its world: the argument of a rank program. Lives as long as the world; belongs to its
// rank and the rank's helpers.
//   run_world({.world_size = 4}, [](RankContext& rank) {
//     rank.store().set(std::to_string(rank.rank()), "here");
//     rank.sleep_for(absl::Milliseconds(5));
//   });
class RankContext {
 public:
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }  // in the world: 0 <= rank < world_size()
  int world_size() const;
  World& world() const { return *world_; }
  // The store that all ranks share.
  Store& store() const;

  // A seed for this rank's own randomness: from the run's seed and the rank, equal in every repetition.
  uint64_t rng_seed() const;
  // This rank's own generator, seeded with rng_seed(): what a program would take from a global one, which ranks would
  // share.
  Prng& rng();

  // Time since the world began: virtual in deterministic runs.
  absl::Duration now() const;
  // Lets `duration` pass; costs no real time in deterministic runs. Throws DistError when the world is aborted
  // meanwhile.
  void sleep_for(absl::Duration duration, CodeSite code = CodeSite::here());
  // A scheduling point: others may run.
  void yield(CodeSite code = CodeSite::here());

  // The context of the calling rank or helper; nullptr on a thread that belongs to no world.
  static RankContext* current();

 private:
  friend class internal::RankState;
  RankContext(World* world, int rank) : world_(world), rank_(rank) {}
  ~RankContext() = default;

  World* const world_;
  const int rank_;
};

// One value per rank, where code would use a thread_local: right on threads and on fibers. Make one per variable, with
// static or longer lifetime than the world. get() makes the value with T() at the first use in each rank.
// Errors: std::logic_error on a thread that belongs to no world.
template <typename T>
class RankLocal {
 public:
  T& get() {
    return *static_cast<T*>(
        internal::rank_local(this, []() -> std::shared_ptr<void> { return std::make_shared<T>(); }));
  }
  T& operator*() { return get(); }
  T* operator->() { return &get(); }
};

// One object per world, which its ranks share: where a test of processes would use a file or a global.
//   WorldLocal<Watched<int>> counter("counter");
//   counter.get(rank.world())->update([](int& n) { ++n; });
// The first rank that asks makes the object. An explored run sees which one it is, but not what ranks do to the object:
// that is for Watched, Mutex and the like. The object goes with the world, or by forget().
// Errors: InvalidArgument if the name stands for an object of another type in this world, and within the making of
//   another object.
// Thread-safety: all methods.
template <typename T>
class WorldLocal {
 public:
  explicit WorldLocal(std::string name) : name_(std::move(name)) {}

  std::shared_ptr<T> get(World& world, CodeSite code = CodeSite::here()) const {
    return get(
        world, [] { return std::make_shared<T>(); }, code);
  }
  // `make` returns a std::shared_ptr<T>. It must come to no scheduling point, make no groups, get no other WorldLocal.
  template <typename Make>
  std::shared_ptr<T> get(World& world, Make make, CodeSite code = CodeSite::here()) const {
    return std::static_pointer_cast<T>(internal::world_local(
        world, name_, &internal::type_mark<T>, [&]() -> std::shared_ptr<void> { return make(); }, code));
  }
  // The next get() makes another object; ranks that hold this one keep it.
  void forget(World& world) const { internal::forget_world_local(world, name_); }

 private:
  const std::string name_;
};

// N ranks in this process, with what they share: a schedule, virtual time, a store, groups. Runs one program once. Most
// programs call run_world(), which makes one; a World of one's own is for attach(), outside_waker() and describe().
//   World world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(7)});
//   const RunReport report = world.run([](RankContext& rank) { ... });
//   if (!report.ok()) std::puts(report.text().c_str());
// No process is started and no address is listened on: ranks share the memory of this process, globals included.
// Thread-safety: attach(), detach(), abort() from any thread; the rest before and after the run, or by its ranks.
class World {
 public:
  // Held by code outside the world that will wake a rank: while one is held, a stuck run is no deadlock and virtual
  // time does not jump. May outlive nothing: it goes before the world does.
  class OutsideWaker {
   public:
    // `scheduler`: World::scheduler(), not null.
    explicit OutsideWaker(internal::Scheduler* scheduler, CodeSite code = CodeSite::here());
    OutsideWaker(OutsideWaker&& other) noexcept : scheduler_(other.scheduler_) { other.scheduler_ = nullptr; }
    OutsideWaker(const OutsideWaker&) = delete;
    OutsideWaker& operator=(const OutsideWaker&) = delete;
    OutsideWaker& operator=(OutsideWaker&&) = delete;
    ~OutsideWaker();

   private:
    internal::Scheduler* scheduler_;
  };

  // Throws DistError(InvalidArgument) for options that do not fit together.
  explicit World(WorldOptions options, CodeSite code = CodeSite::here());
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const WorldOptions& options() const;
  int size() const;
  Store& store();
  // A token: what stores, promises and outside wakers of this world are made with.
  internal::Scheduler& scheduler();

  // Runs `program` once per rank and returns when all have ended. An exception of a rank ends up in the report. Throws
  // DistError(InvalidArgument) if it was called before, or ranks have attached.
  RunReport run(absl::FunctionRef<void(RankContext&)> program, CodeSite code = CodeSite::here());

  // Instead of run(): the calling thread becomes rank `rank` until detach(). Threads only. Under a deterministic
  // schedule it blocks until all ranks have attached. Throws DistError(InvalidArgument) for a rank outside the world or
  // taken.
  RankContext& attach(int rank, CodeSite code = CodeSite::here());
  // `failure`: what the rank's program threw, if it did. Does nothing on a thread that is no task of this world; throws
  // DistError(InvalidArgument) on one that did not attach.
  void detach(std::exception_ptr failure = nullptr, CodeSite code = CodeSite::here());
  // After the last detach(). Waits for helpers that outlast their ranks, then ends what is unfinished: works, groups
  // and streams that are kept answer `the world has ended`.
  RunReport report();

  // A further thread of the calling rank (a fiber on fibers). Ends before run() returns, but maybe after the rank's
  // program: it captures by value or by shared_ptr, or the program waits for it (a Latch) before its locals go, when it
  // throws, too. Its exception is a failure of its rank, unless the world was aborted before: then its calls throw the
  // cause, and it just ends.
  void spawn_helper(internal::Callback<void()> body, CodeSite code = CodeSite::here());

  OutsideWaker outside_waker() { return OutsideWaker(&scheduler()); }

  // Ends the run: all waits and later calls fail with this cause (Aborted), "rank 1 aborted the world: REASON
  // [train.cc:12]", or "a thread of no rank aborted the world: ...".
  void abort(std::string_view reason, CodeSite code = CodeSite::here());
  // Ends the run for a failure of `rank`; the first one is the headline. A rank that is told of twice keeps its first.
  void rank_failed(int rank, std::exception_ptr failure, CodeSite code = CodeSite::here());
  // `listener` is told the cause when the world is aborted, on the thread that aborts it: for what nobody waits in,
  // such as works whose completion others were promised. It must not wait. Not called for an abort that is past. It may
  // still be running on another thread when forget_on_abort() returns: let it own what it uses.
  // Returns what forget_on_abort() takes.
  int64_t on_abort(std::function<void(const absl::Status&)> listener, CodeSite code = CodeSite::here());
  void forget_on_abort(int64_t listener);

  RankContext& context(int rank, CodeSite code = CodeSite::here());
  // All groups but those that all members have left, by id; that of all ranks stays.
  std::vector<std::shared_ptr<const Group>> groups() const;

  // A line for the report: something left over. An explored run fails for it, unless ExploreOptions::Checks::leaks is
  // off.
  void note(std::string text);
  // `hook` runs once, by no rank (RankContext::current() is null), when all have ended and before the report is made:
  // to note what was left over. Hooks run in the order in which they came, after the groups have ended what was
  // unfinished. A wait there without a timeout of its own fails with Aborted, as in callbacks that run then: for a call
  // or a key of this world at once, else after WorldOptions::stall of real time. Returns what forget_at_end() takes.
  int64_t at_end(std::function<void()> hook, CodeSite code = CodeSite::here());
  void forget_at_end(int64_t hook);

  // Where all ranks are, one line for those that are alike: in which wait, from which line and for whom, or
  // running, or ended. For a debugger, and for ranks; from another thread it is right only while no rank moves.
  std::string describe() const;

 private:
  friend class internal::WorldState;
  World(WorldOptions options, const internal::RunHooks& hooks, CodeSite code);

  const internal::Owned<internal::WorldState> state_;
};

// Runs `program` on `options.world_size` ranks and returns what became of them. Throws DistError(InvalidArgument) for
// options that do not fit; a failure of a rank is in the report, and so is a variable of the environment that does not
// fit: no rank runs then.
RunReport run_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program,
                    CodeSite code = CodeSite::here());

}  // namespace rankloom

// For a debugger: prints World::describe() of the world that the selected thread belongs to ("info threads" names the
// threads: rank 0, rank 1, ..., or "rankloom fibers").
extern "C" void rankloom_describe();
