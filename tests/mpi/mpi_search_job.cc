// A search by the processes of a job, for mpi_searches_test.py: mpi_search_job KIND FOLDER. Each process appends the
// outcome of each run that it makes to a file of its own in FOLDER, and process 0 tells of the report.

#include <mpi.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/mpi/mpi_world.h"
#include "harness/mpi/mpi_team.h"
#include "rankloom/explore.h"
#include "rankloom/faults.h"
#include "rankloom/mpi.h"
#include "rankloom/sync.h"

namespace {

using namespace rankloom;

// Before MPI is initialised.
int process_by_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const rank = std::getenv(variable); rank != nullptr) return std::atoi(rank);
  }
  return -1;
}

int process() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int rank = 0;
  if (initialized != 0) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// Before MPI_Init(), as launchers tell it.
int number_in_job() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const value = std::getenv(variable); value != nullptr) return std::atoi(value);
  }
  return 0;
}

class Job {
 public:
  Job(std::string kind, const std::string& folder) : kind_(std::move(kind)), folder_(folder) {
    // Process 0 has another past than the others, or makes more objects before it searches.
    if (kind_ == "captured" && number_in_job() == 0) std::thread([] { const Mutex other; }).join();
    if (kind_ == "captured_by_thread") {
      std::thread([this] { captured_ = std::make_unique<Mutex>(); }).join();
    } else {
      captured_ = std::make_unique<Mutex>();
    }
    if (kind_ == "captured_in_other_numbers" && number_in_job() == 0) others_.push_back(std::make_unique<Mutex>());
  }

  ExploreOptions options() const {
    ExploreOptions options{.world = {.world_size = 3, .engine = EngineKind::kFibers},
                           .strategies = {Strategy::exhaustive()},
                           .max_runs = 100'000,
                           .checks = {.store_values = false}};
    if (kind_ == "threads") options.world.engine = EngineKind::kThreads;
    if (kind_ == "drawn") {
      options.strategies = {Strategy::random(), Strategy::pct()};
      options.max_runs = 602;
    }
    if (kind_ == "drawn_fails" || kind_ == "fails_by_one") options.strategies = {Strategy::random()};
    if (kind_ == "options" && process() == 1) options.max_steps = 77'777;
    if (kind_ == "processes") options.processes = 2;
    if (kind_ == "missed_fault") options.world.faults = *FaultPlan::parse("crash@op=all_reduce");
    if (kind_ == "max_runs") options.max_runs = 0;
    if (kind_ == "max_runs_of_one" && process() == 1) options.max_runs = 0;
    if (kind_.starts_with("hang")) options.max_time = absl::Seconds(15);
    if (kind_ == "late") options.world.stall = absl::Milliseconds(400);
    if (kind_ == "first_hangs") options.max_time = absl::Seconds(1);
    if (kind_ == "progress_throws") {
      options.strategies = {Strategy::random()};
      options.max_runs = int64_t{1} << 40;
      options.progress = [](const ExploreOptions::Progress&) { throw std::runtime_error("no more of it"); };
    }
    if (kind_ == "progress") {
      options.max_runs = 400;
      options.progress = [](const ExploreOptions::Progress& now) {
        if (now.runs == 400) std::printf("progress told by process %d\n", process());
      };
    }
    return options;
  }

  void run(RankContext& rank) {
    if (kind_ == "first_hangs" && process() == 1) hang_for_ever();
    if (kind_.starts_with("captured")) return lock_captured(rank);
    const bool fails = kind_.find("fails") != std::string::npos;
    const bool hangs = kind_ == "hang_of_0" || kind_ == "hang_of_1";
    const bool ends = hangs || kind_ == "kill" || kind_ == "abort" || kind_ == "exit";
    const std::string order = append_numbers(rank, fails ? 1 : kind_ == "drawn" ? 2 : ends ? 4 : 3);
    if (order.empty()) return;
    note(order);
    if (kind_ == "child_exits" && ++made_ == 5) run_child();
    if (fails && order == "210" && (kind_ != "fails_by_one" || process() == 1)) throw std::runtime_error("backwards");
    if (kind_ == "default_fails") throw std::runtime_error("always");
    if (!ends || ++made_ < 4) return;
    if (hangs) return process() == kind_.back() - '0' ? hang() : fail_when_other_hangs();
    if (process() != 1 || made_ < 20) return;
    if (kind_ == "kill") std::raise(SIGKILL);
    if (kind_ == "abort") std::abort();
    if (kind_ == "exit") std::exit(3);
  }

  int tell(const ExploreReport& report) const {
    std::ofstream(absl::StrCat(folder_, "/report.", process())) << report.text() << "\n";
    const int code = kind_ == "fails" && !report.ok() ? 1 : 0;  // Open MPI takes a second for others than 0
    if (process() != 0) return code;
    std::printf("ok %d verified %d runs %ld schedules %ld open %ld\nsummary: %s\n", report.ok(), report.verified,
                report.runs, report.shares.empty() ? 0 : report.shares[0].schedules,
                report.shares.empty() ? 0 : report.shares[0].open, report.summary().c_str());
    if (report.failure.has_value()) std::printf("report: %s\n", report.text().c_str());
    std::fflush(stdout);
    return code;
  }

 private:
  // Ranks append their numbers to one key, each so many times: each order is a class of its own. Returns the order to
  // the rank that was last, "" to others.
  std::string append_numbers(RankContext& rank, int times) {
    for (int i = 0; i < times; ++i) {
      rank.store().append("order", absl::StrCat(rank.rank()));
      order_ += absl::StrCat(rank.rank());  // one step with the call
    }
    if (order_.size() < static_cast<size_t>(times * rank.world_size())) return "";
    return std::exchange(order_, "");
  }
  // The lock is all that orders the ranks, which then note who came first.
  void lock_captured(RankContext& rank) {
    for (int i = 0; i < 3; ++i) {
      const MutexLock lock(captured_.get());
      order_ += absl::StrCat(rank.rank());
    }
    if (order_.size() == static_cast<size_t>(3 * rank.world_size())) note(std::exchange(order_, ""));
  }
  static void run_child() {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    waitpid(child, nullptr, 0);
  }
  [[noreturn]] static void hang_for_ever() {
    for (;;) pause();
  }
  // Both processes have work before one hangs, so that the other comes to fail.
  void hang() const {
    if (!said("other works")) return say("works");
    say("hangs");
    hang_for_ever();
  }
  void fail_when_other_hangs() const {
    if (!said("works")) return;
    say("other works");
    for (int i = 0; i < 200 && !said("hangs"); ++i) usleep(1000);
    if (said("hangs")) throw std::runtime_error("the other one hangs");
  }
  void say(const std::string& what) const { std::ofstream(absl::StrCat(folder_, "/", what)) << "\n"; }
  bool said(const std::string& what) const { return access(absl::StrCat(folder_, "/", what).c_str(), F_OK) == 0; }
  void note(const std::string& line) {
    std::ofstream file(absl::StrCat(folder_, "/runs.", process()), std::ios::app);
    file << line << "\n";
  }

  const std::string kind_;
  const std::string folder_;
  std::string order_;  // of the run
  int made_ = 0;
  std::vector<std::unique_ptr<Mutex>> others_;
  std::unique_ptr<Mutex> captured_;
};

}  // namespace

// Another program, to rankloom: its machine code differs.
#ifdef OTHER_VERSION
extern const char other_version[];
const char other_version[] = "another version";
#endif

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string kind = argv[1];
  const bool low_level = kind == "level" || (kind == "level_of_one" && process_by_launcher() == 1);
  if (low_level) MPI_Init(nullptr, nullptr);
  if (kind == "late" && process_by_launcher() == 1) usleep(1'500'000);
  if (kind == "version_of_one" && process_by_launcher() == 1) internal::pretend_version("0.0.9");
  if (kind.starts_with("options") || kind.starts_with("max_runs_of")) {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  }
  internal::grace_of_runs_ns = 1'000'000'000;
  Job job(kind, argv[2]);
  const auto program = [&](RankContext& rank) { job.run(rank); };
  const auto search = [&] {
    if (kind == "other_call" && process_by_launcher() == 1) {
      (void)run_mpi_world({}, program);
      return ExploreReport();
    }
    return kind == "alone" || kind == "captured_alone" ? explore(job.options(), program)
                                                       : explore(&argc, &argv, job.options(), program);
  };
  int code = 0;
  try {
    code = job.tell(search());
  } catch (const std::exception& error) {
    std::printf("process %d caught: %s\n", process(), error.what());
  }
  // A process that goes without it may take its output with it, under MPICH.
  if (low_level || kind.starts_with("options") || kind.starts_with("max_runs_of")) MPI_Finalize();
  return code;
}
