#include "collectives/mpi/mpi_world.h"

#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "collectives/mpi/abort_job.h"
#include "collectives/mpi/gathered_report.h"
#include "collectives/mpi/host_engine.h"
#include "collectives/mpi/mpi_calls.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_process_group.h"
#include "collectives/mpi/mpi_store.h"
#include "collectives/mpi/startup_watch.h"
#include "collectives/mpi/wire.h"
#include "collectives/ops/op_table.h"
#include "fake_store/store_state.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "rankloom/mpi.h"
#include "rankloom/version.h"
#include "sim/base/crash.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/library_scope.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/schedule/run_hooks.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom {
namespace internal {

int64_t most_report_bytes = INT_MAX;
int64_t endless_grace_ns = 5'000'000'000;

namespace {

template <typename... Parts>
[[noreturn]] void refuse_call(const char* call, CodeSite code, const Parts&... parts) {
  refuse({.rank = -1, .group = {}, .op = call}, ErrorKind::kInvalidArgument, call, ": ", parts...,
         site_place(Site{.code = code}));
}
template <typename... Parts>
[[noreturn]] void refuse_run(CodeSite code, const Parts&... parts) {
  refuse_call("run_mpi_world", code, parts...);
}

const char* level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

// The call of this process that is under way: MPI must not end before that. Null: none.
std::atomic<const char*> running{nullptr};
std::atomic<bool> exiting{false};
// The process whose MPI this is: one that it forks has none, and may end by exit().
pid_t of_process = 0;
// The call of a CallOfJob; null: none.
std::atomic<const char*> of_job{nullptr};

// MPI_Finalize() deletes the attributes of MPI_COMM_SELF before it does anything else.
int finalized_early(MPI_Comm, int, void*, void*) {
  const char* const call = running.load();
  if (call == nullptr || job_is_aborted() || getpid() != of_process) return MPI_SUCCESS;
  std::fprintf(stderr, "rankloom: %s was called while %s() runs, want it after that\n",
               exiting.load() ? "exit()" : "MPI_Finalize()", call);
  abort_job();
}

void watch_for_finalize() {
  static const bool watched = [] {
    int key = MPI_KEYVAL_INVALID;
    return MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &finalized_early, &key, nullptr) == MPI_SUCCESS &&
           MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr) == MPI_SUCCESS;
  }();
  (void)watched;
}

void finalize_at_exit() {
  if (job_is_aborted() || getpid() != of_process) return;
  exiting.store(true);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Finalize();
}

std::string wrong_everywhere(const WorldOptions& options) {
  if (options.poison.value_or(false) || options.late_completion.value_or(false)) {
    return absl::StrCat(options.poison.value_or(false) ? "poison" : "late_completion",
                        " is on, want it off: when a call is done is MPI's to say");
  }
  if (options.break_at.has_value()) return "break_at is set, want it unset: there is no schedule to repeat";
  return "";
}

// The option that does not fit, and why; empty: all do.
std::string wrong_options(const WorldOptions& options, int ranks_per_process, int processes) {
  const Schedule::Kind kind = options.schedule.kind();
  if (ranks_per_process < 1) return absl::StrCat("ranks_per_process is ", ranks_per_process, ", want 1 or more");
  if (ranks_per_process > 1) {
    const int64_t most = int64_t{ranks_per_process} * processes;
    const int64_t least = most - ranks_per_process + 1;
    if (options.world_size != 1 && (options.world_size < least || options.world_size > most)) {
      const int64_t wanted = (int64_t{options.world_size} + ranks_per_process - 1) / ranks_per_process;
      return absl::StrCat("world_size is ", options.world_size, " and ranks_per_process ", ranks_per_process,
                          ", which is ", wanted, wanted == 1 ? " process" : " processes", "; the job has ", processes,
                          ", want as many (mpirun -n ", wanted, ")");
    }
    if (most > INT_MAX) return absl::StrCat("the world has ", most, " ranks, want at most 2^31 - 1");
    if (kind != Schedule::Kind::kUnset && kind != Schedule::Kind::kFifo)
      return absl::StrCat("schedule is ", options.schedule.text(), ", want fifo: processes run as they like");
    return wrong_everywhere(options);
  }
  if (options.world_size != 1 && options.world_size != processes) {
    return absl::StrCat("world_size is ", options.world_size, " and the job has ", processes,
                        processes == 1 ? " process" : " processes",
                        ", want the same, or 1 for as many as there are (mpirun -n ", options.world_size, ")");
  }
  if (options.engine != EngineKind::kThreads) return "engine is fibers, want threads: ranks are processes";
  if (kind != Schedule::Kind::kUnset && kind != Schedule::Kind::kFree)
    return absl::StrCat("schedule is ", options.schedule.text(), ", want free: processes run as they like");
  return wrong_everywhere(options);
}

// The first words of a process, which the others compare with theirs: of this form in all versions.
struct Greeting {
  std::array<char, 40> version = {};
  uint32_t operations = 0;  // two numbers that a change of the messages between processes most likely changes
  uint32_t fields = 0;
  uint8_t refuses = 0;
  uint8_t compares = 0;
  uint8_t searches = 0;
  uint8_t reserved = 0;
  int32_t world_size = 0;
  int32_t ranks_per_process = 0;
  std::array<uint8_t, 4> more_reserved = {};
};
static_assert(sizeof(Greeting) == 64 && std::is_trivially_copyable_v<Greeting>);

std::string& own_version() {
  static auto* const text = new std::string(version());
  return *text;
}

// A call of all processes, as texts name it.
struct Greeted {
  const char* call;     // "run_mpi_world"
  const char* process;  // "rank"
  const char* what;     // "run"
  CodeSite code;
  int world_size = 0;
  int ranks_per_process = 1;
  bool searches = false;
};

// Says no, in all processes, unless all of them have the same library and want the call. `refusal`: of this one, or
// empty. Collective; MPI may have any thread level.
void greet(MPI_Comm processes, const std::string& refusal, bool compares, const Greeted& greeted) {
  Greeting mine;
  own_version().copy(mine.version.data(), mine.version.size() - 1);
  mine.operations = static_cast<uint32_t>(kOpTypeCount);
  mine.fields = static_cast<uint32_t>(kCallFields.size());
  mine.refuses = refusal.empty() ? 0 : 1;
  mine.compares = compares ? 1 : 0;
  mine.searches = greeted.searches ? 1 : 0;
  mine.world_size = greeted.world_size;
  mine.ranks_per_process = greeted.ranks_per_process;
  int size = 1;
  MPI_Comm_size(processes, &size);
  std::vector<Greeting> all(static_cast<size_t>(size));
  MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, processes);
  const auto no = [&greeted](const auto&... parts) { refuse_call(greeted.call, greeted.code, parts...); };
  if (!refusal.empty()) no(refusal);
  const Greeting& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const Greeting& one = all[rank];
    if (one.version != first.version || one.operations != first.operations || one.fields != first.fields) {
      no(greeted.process, " ", rank, " has rankloom ", one.version.data(), " and ", greeted.process, " 0 has ",
         first.version.data(), one.version == first.version ? " of another build" : "",
         ", want the same in all processes");
    }
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].searches == first.searches) continue;
    const auto called = [](const Greeting& one) { return one.searches != 0 ? "explore()" : "run_mpi_world()"; };
    no("process 0 has called ", called(first), " and process ", rank, " ", called(all[rank]),
       ", want the same call of all processes");
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refuses != 0) no(greeted.process, " ", rank, " refuses the ", greeted.what, ", and says why");
  }
  const auto differs = [&](const char* option, int32_t Greeting::*value) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].*value == first.*value) continue;
      no(option, " is ", first.*value, " for process 0 and ", all[rank].*value, " for process ", rank,
         ", want the same");
    }
  };
  differs("ranks_per_process", &Greeting::ranks_per_process);
  if (first.ranks_per_process > 1) differs("world_size", &Greeting::world_size);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].compares != first.compares) {
      no("compare_calls is ", first.compares != 0, " for rank 0 and ", all[rank].compares != 0, " for rank ", rank,
         ", want the same");
    }
  }
}

// Tells the report of process 0 to those that were not in the run.
RunReport told_report(const RunReport* mine, int ranks) {
  WireWriter out;
  if (mine != nullptr) {
    out.number(mine->first_failed);
    write_status(mine->cause, &out);
    for (const RunReport::Outcome& outcome : mine->outcomes) out.number(outcome.state).text(outcome.text);
    std::vector<std::string> faults;
    for (const Fault& fault : mine->faults) faults.push_back(fault.text());
    out.text(mine->run_file);
    write_texts(faults, &out);
    write_texts(mine->notes, &out);
  }
  std::string text = out.take();
  share_text(MPI_COMM_WORLD, &text);
  WireReader in(text);
  RunReport report;
  report.first_failed = in.number<int>();
  report.cause = read_status(&in);
  for (int rank = 0; rank < ranks; ++rank) {
    RunReport::Outcome outcome;
    outcome.state = in.number<RunReport::Outcome::State>();
    outcome.text = in.text();
    report.outcomes.push_back(std::move(outcome));
  }
  report.run_file = in.text();
  for (const std::string& text : read_texts(&in)) {
    const absl::StatusOr<FaultPlan> fault = FaultPlan::parse(text);
    if (fault.ok()) report.faults.insert(report.faults.end(), fault->faults().begin(), fault->faults().end());
  }
  report.notes = read_texts(&in);
  return report;
}

// Why the launcher is none of this MPI; empty: it may be. Each process would be a job of its own then.
std::string other_launcher() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const LaunchedProcesses launched = launched_processes();
  if (size > 1 || launched.count < 2) return "";
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string line(version, std::strcspn(version, ",\n"));
  // MPICH fills its own with tabs or spaces.
  const std::string name = absl::StrJoin(absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty()), " ");
  return absl::StrCat(launched.variable, " is ", launched.count, ", and MPI (", name,
                      ") sees this process only, want the mpirun of the MPI "
                      "that the program is linked with, or the variable unset");
}

// Whether a handler of signals is one of the libraries below MPI, which print a stack and end the process.
bool is_of_mpi(CrashFacts::Handler handler) {
  Dl_info found;
  if (dladdr(reinterpret_cast<void*>(handler), &found) == 0 || found.dli_fname == nullptr) return false;
  const std::string_view file = found.dli_fname;
  const std::string_view name = file.substr(file.rfind('/') + 1);
  return name.starts_with("libopen-pal.") || name.starts_with("libucs.");
}

// Initialises MPI, if nobody has. Returns why this MPI does not fit; empty: it does.
std::string begin_mpi(CodeSite code, const char* call, int* argc, char*** argv) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) refuse_call(call, code, "MPI is finalized, want ", call, "() before MPI_Finalize()");
  int initialized = 0;
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  struct sigaction before {};
  sigaction(SIGSEGV, nullptr, &before);
  of_process = getpid();
  if (initialized != 0) {
    MPI_Query_thread(&level);
  } else {
    throw_if_error(mpi_status(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"),
                   {.rank = -1, .group = {}, .op = call});
    std::atexit(&finalize_at_exit);
  }
  // Set by MPI_Init(), or earlier: by a library as it is loaded, or by the program's own MPI_Init().
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && (now.sa_sigaction != before.sa_sigaction || is_of_mpi(now.sa_sigaction)))
    CrashFacts::ends_the_process.store(now.sa_sigaction);
  if (level < MPI_THREAD_MULTIPLE) {
    return absl::StrCat("MPI gives ", level_name(level), ", want MPI_THREAD_MULTIPLE",
                        initialized != 0 ? " from MPI_Init_thread(), or no MPI_Init() before this call"
                                         : ": this MPI was built without it");
  }
  watch_for_finalize();
  return other_launcher();
}

// Where ranks of a world over several processes meet: process 0 has the keys.
class HostedStore final : public Store {
 public:
  HostedStore(Scheduler* scheduler, HostEngine* engine, absl::Duration timeout)
      : Store(scheduler), engine_(*engine), keys_(scheduler) {
    StoreAccess::state(keys_).set_timeout(timeout);
    if (engine->process() == 0) engine->keep_keys(&keys_);
  }
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override { return engine_.store_call(call, own_timeout()); }
  std::string_view kind() const override { return "MpiStore"; }

 private:
  HostEngine& engine_;
  HashStore keys_;
};

// The part of a report that is the same in all processes, each of which tells of its own ranks.
void finish_report(MPI_Comm processes, RanksHere here, int run, const absl::Status& cause, RunReport* report) {
  report->engine = "mpi";
  report->rerun.clear();
  if (!cause.ok()) report->cause = cause;
  gather_report(processes, here, most_report_bytes, report);
  // The same in all processes, whoever heard of what first.
  report->first_failed = -1;
  for (size_t rank = 0; rank < report->outcomes.size() && report->first_failed < 0; ++rank) {
    if (report->outcomes[rank].state == RunReport::Outcome::State::kFailed)
      report->first_failed = static_cast<int>(rank);
  }
  if (here.first == 0 && !report->ok()) write_failed_run(absl::StrCat(program_name(), ".run", run), report);
  share_text(processes, &report->run_file);
}

// Ranks are fibers, several in each process.
RunReport run_hosted(MPI_Comm processes, WorldOptions options, int ranks_per_process,
                     absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  const int run = next_run();
  HostEngine engine(processes, options.world_size, ranks_per_process, endless_grace_ns);
  const RanksHere here{.first = engine.first_here(), .count = engine.ranks_here()};
  options.engine = EngineKind::kFibers;
  options.schedule = Schedule::fifo();
  RunReport report;
  {
    const MpiInUse in_use("run_mpi_world");
    const std::unique_ptr<World> face = WorldState::make(std::move(options), RunHooks{});
    WorldState& world = WorldState::of(*face);
    world.ranks_elsewhere(/*own=*/-1,
                          std::make_unique<HostedStore>(&world.scheduler(), &engine, world.options().timeout), &engine);
    {
      const World::OutsideWaker others(&world.scheduler());
      engine.begin(&world);
      engine.finish(world.run(program, code).outcomes);
    }
    report = world.report();
  }
  if (report.kept != nullptr) report.kept->stuck = engine.stuck_run();
  finish_report(processes, here, run, engine.cause(), &report);
  return report;
}

// Throws if one of the processes refuses. `refusal`: why this process will not run, or empty. Collective.
void agree_to_run(MPI_Comm processes, WorldOptions* options, int ranks_per_process, bool compare_calls,
                  std::string refusal, CodeSite code) {
  int size = 1;
  MPI_Comm_size(processes, &size);
  if (refusal.empty()) refusal = wrong_options(*options, ranks_per_process, size);
  if (refusal.empty() && options->world_size == 1) options->world_size = size * ranks_per_process;
  greet(processes, refusal, compare_calls,
        {.call = "run_mpi_world",
         .process = ranks_per_process == 1 ? "rank" : "process",
         .what = "run",
         .code = code,
         .world_size = options->world_size,
         .ranks_per_process = ranks_per_process});
}

// By processes that have agreed to.
RunReport run_on_processes(MPI_Comm processes, WorldOptions options, int ranks_per_process,
                           absl::FunctionRef<void(RankContext&)> program, bool compare_calls, CodeSite code) {
  if (ranks_per_process > 1) return run_hosted(processes, std::move(options), ranks_per_process, program, code);
  const int run = next_run();
  options.schedule = Schedule::free();
  MpiEngine engine(processes, compare_calls);
  MpiBackend backend(&engine);
  RunReport report;
  {
    const MpiInUse in_use("run_mpi_world");
    const std::unique_ptr<World> face = WorldState::make(std::move(options), RunHooks{});
    WorldState& world = WorldState::of(*face);
    world.ranks_elsewhere(engine.rank(), std::make_unique<MpiStore>(&world.scheduler(), &engine), &backend);
    {
      // Others may always end a wait of this process's.
      const World::OutsideWaker others(&world.scheduler());
      engine.begin(&world);
      RankContext& context = world.attach(engine.rank(), code);
      std::exception_ptr failure;
      try {
        const ProgramScope own;
        program(context);
      } catch (...) {
        failure = handled_exception();
      }
      world.detach(failure, code);
      world.await_helpers();
      engine.finish(world.report().outcomes);
    }
    report = world.report();
  }
  report.schedule = "free";
  for (const std::string& note : engine.discarded()) report.notes.push_back(note);
  finish_report(processes, {.first = engine.rank(), .count = 1}, run, engine.cause(), &report);
  return report;
}

// By the first processes of the job; the others get the report.
RunReport run_some(int processes, WorldOptions options, int ranks_per_process,
                   absl::FunctionRef<void(RankContext&)> program, bool compare_calls, CodeSite code) {
  const int ranks = ranks_per_process > 1 ? options.world_size : processes;
  const bool here = process_of_job() < processes;
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, here ? 0 : MPI_UNDEFINED, 0, &some);
  if (!here) return told_report(nullptr, ranks);
  agree_to_run(some, &options, ranks_per_process, compare_calls, /*refusal=*/"", code);
  RunReport report = run_on_processes(some, std::move(options), ranks_per_process, program, compare_calls, code);
  MPI_Comm_free(&some);
  told_report(process_of_job() == 0 ? &report : nullptr, ranks);
  return report;
}

}  // namespace

CallOfJob::CallOfJob(const char* call, CodeSite code) {
  if (const char* other = nullptr; !of_job.compare_exchange_strong(other, call)) {
    refuse_call(call, code, "another thread of this process is in ", other, "(), want one call at a time");
  }
}

CallOfJob::~CallOfJob() { of_job.store(nullptr); }

MpiInUse::MpiInUse(const char* call) { running.store(call); }

MpiInUse::~MpiInUse() { running.store(nullptr); }

void need_mpi(CodeSite code) {
  constexpr const char* kCall = "run_mpi_world";
  if (const std::string refusal = begin_mpi(code, kCall, nullptr, nullptr); !refusal.empty())
    refuse_call(kCall, code, refusal);
}

void need_mpi_of_all(CodeSite code, const WorldOptions& options, int* argc, char*** argv) {
  StartupWatch watch("explore", code, options);
  const std::string refusal = begin_mpi(code, "explore", argc, argv);
  watch.mpi_initialized(process_of_job(), processes_of_job());
  greet(MPI_COMM_WORLD, refusal, /*compares=*/true,
        {.call = "explore", .process = "process", .what = "search", .code = code, .searches = true});
}

void pretend_version(std::string version) { own_version() = std::move(version); }

int process_of_job() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int processes_of_job() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

bool any_process(bool mine) {
  int any = mine ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return any != 0;
}

void bare_all_reduce(float* values, int count) {
  MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

RunReport run_on_first(int processes, WorldOptions options, absl::FunctionRef<void(RankContext&)> program,
                       bool compare_calls, CodeSite code) {
  return run_some(processes, std::move(options), /*ranks_per_process=*/1, program, compare_calls, code);
}

RunReport run_on_first(int processes, WorldOptions options, int ranks_per_process,
                       absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  return run_some(processes, std::move(options), ranks_per_process, program, /*compare_calls=*/true, code);
}

}  // namespace internal

namespace internal {
namespace {

RunReport run_of_job(WorldOptions options, int ranks_per_process, absl::FunctionRef<void(RankContext&)> program,
                     bool compare_calls, CodeSite code) {
  const LibraryScope library;
  if (RankContext* const rank = RankContext::current(); rank != nullptr)
    refuse_run(code, "called by rank ", rank->rank(), " of a world, want it outside of rank programs");
  const CallOfJob call("run_mpi_world", code);
  {
    StartupWatch watch("run_mpi_world", code, options);
    std::string refusal = begin_mpi(code, "run_mpi_world", nullptr, nullptr);
    watch.mpi_initialized(process_of_job(), processes_of_job());
    agree_to_run(MPI_COMM_WORLD, &options, ranks_per_process, compare_calls, std::move(refusal), code);
  }
  return run_on_processes(MPI_COMM_WORLD, std::move(options), ranks_per_process, program, compare_calls, code);
}

}  // namespace
}  // namespace internal

RunReport run_mpi_world(WorldOptions options, absl::FunctionRef<void(RankContext&)> program, bool compare_calls,
                        CodeSite code) {
  return internal::run_of_job(std::move(options), /*ranks_per_process=*/1, program, compare_calls, code);
}

RunReport run_mpi_world(WorldOptions options, int ranks_per_process, absl::FunctionRef<void(RankContext&)> program,
                        CodeSite code) {
  return internal::run_of_job(std::move(options), ranks_per_process, program, /*compare_calls=*/true, code);
}

}  // namespace rankloom
