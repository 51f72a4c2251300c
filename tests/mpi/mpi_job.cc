// A job of one kind each, for mpi_jobs_test.py: what goes wrong around run_mpi_world(), and what does not.

#include <mpi.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/mpi_world.h"
#include "rankloom/mpi.h"
#include "rankloom/store.h"

namespace {

using namespace rankloom;

std::string file_of_job;  // for a store that all processes share

// Faults of MPI, whose own calls stand behind those below.
std::atomic<bool> no_probe{false};      // MPI_Improbe() fails
std::atomic<bool> sizes_differ{false};  // MPI_Iallgatherv() tells of data
std::atomic<bool> late_sizes{false};    // MPI_Ialltoall(), of sizes, is late by 3 s, longer than anybody asks

}  // namespace

extern "C" int MPI_Improbe(int source, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
  if (no_probe.load()) return MPI_ERR_OTHER;
  return PMPI_Improbe(source, tag, comm, found, message, status);
}

extern "C" int MPI_Ialltoall(const void* given, int count, MPI_Datatype type, void* taken, int taken_count,
                             MPI_Datatype taken_type, MPI_Comm comm, MPI_Request* request) {
  if (late_sizes.load()) usleep(3'000'000);
  return PMPI_Ialltoall(given, count, type, taken, taken_count, taken_type, comm, request);
}

extern "C" int MPI_Iallgatherv(const void* given, int count, MPI_Datatype type, void* taken, const int* counts,
                               const int* places, MPI_Datatype taken_type, MPI_Comm comm, MPI_Request* request) {
  if (sizes_differ.load() && type != MPI_CHAR) std::printf("data travel\n");
  return PMPI_Iallgatherv(given, count, type, taken, counts, places, taken_type, comm, request);
}

namespace {

// A member with nothing to do but to say that it moves, or how many calls it has made.
class IdleMember final : public internal::MpiMember {
 public:
  IdleMember(internal::MpiEngine* engine, std::shared_ptr<const Group> group, std::string key, bool restless,
             int64_t calls)
      : MpiMember(engine, std::move(group), std::move(key), 0), restless_(restless), calls_(calls) {}

  bool progress(int64_t) override { return restless_; }
  bool busy() const override { return restless_; }
  bool take_back(internal::MpiCollective&) override { return true; }
  bool take_back(internal::MpiMessage&) override { return true; }
  void received(int64_t, bool, const absl::Status&) override {}
  void fail(const absl::Status&, bool) override {}
  int64_t calls() const override { return calls_; }
  int64_t call_number(const internal::MpiCollective&) const override { return 0; }
  void want() override {}
  void close_up_to(int64_t) override {}
  void nothing_from(int, bool, const std::vector<int32_t>&) override {}
  std::vector<int32_t> sends_to(int) const override { return {}; }
  bool describing() const override { return false; }
  void tell_unmatched(bool, std::vector<Leftover>*) override {}
  bool discard(std::vector<Leftover>*) override { return false; }

 private:
  const bool restless_;
  const int64_t calls_;
};

void add_member(internal::MpiEngine* engine, const std::string& name, bool restless, int64_t calls) {
  const auto group = std::make_shared<const Group>(0, name, 1);
  engine->name_group(group, name);
  (void)engine->member_of(group, {}, [&](std::string key) {
    return std::make_shared<IdleMember>(engine, group, std::move(key), restless, calls);
  });
}

// A wait ends in time, also where something moves all the time.
void drive_what_always_moves() {
  internal::MpiEngine engine(MPI_COMM_WORLD, /*compares=*/true);
  add_member(&engine, "restless", /*restless=*/true, 0);
  engine.drive([] { return false; }, 20'000'000);
  std::printf("the wait has ended\n");
}

// Two threads ask at a time: process 1 answers both at once, process 2 never.
void ask_by_two_threads() {
  internal::MpiEngine engine(MPI_COMM_WORLD, /*compares=*/true);
  add_member(&engine, "a", /*restless=*/false, 5);
  add_member(&engine, "b", /*restless=*/false, 7);
  int over = 0;
  MPI_Request end = MPI_REQUEST_NULL;
  if (engine.rank() == 0) {
    const auto ask = [&engine](const char* key) {
      const auto answers = engine.ask(key, {1, 2});
      std::printf("%s: process 1 has made %ld calls, process 2 has answered: %d\n", key,
                  static_cast<long>(answers.at(1).calls), answers.at(2).answered ? 1 : 0);
    };
    std::thread other([&] { ask("b"); });
    ask("a");
    other.join();
  }
  MPI_Ibarrier(MPI_COMM_WORLD, &end);
  while (over == 0) {
    if (engine.rank() == 1) engine.progress();
    MPI_Test(&end, &over, MPI_STATUS_IGNORE);
    usleep(1000);
  }
}

// Rank 0 gives up a call whose sizes differ, while rank 1 is late to tell its own.
void give_up_while_sizes_travel(RankContext& rank) {
  auto pg = init_process_group(rank);
  late_sizes.store(rank.rank() == 1);
  sizes_differ.store(true);
  std::vector<float> mine(rank.rank() == 1 ? 60'000 : 50'000, static_cast<float>(rank.rank() + 1));
  std::vector<std::vector<float>> all(2, std::vector<float>(50'000));
  all[static_cast<size_t>(rank.rank())].resize(mine.size());
  const std::vector<TensorView> outputs(all.begin(), all.end());
  try {
    pg->all_gather(outputs, mine).wait(rank.rank() == 0 ? absl::Milliseconds(100) : absl::Seconds(20));
  } catch (const DistError& error) {
    std::printf("rank %d: %s\n", rank.rank(), error.what());
  }
  rank.store().add("told", 1);
  while (rank.store().get("told") != "2") rank.yield();
}

// A world with several ranks in each process, and its faults.
void host(const std::string& kind, RankContext& rank) {
  auto pg = init_process_group(rank);
  const int last = pg->size() - 1;
  const bool is_last = rank.rank() == last;
  std::vector<int> x(kind == "differ" && is_last ? 3 : 2, rank.rank() + 1);
  if (kind == "deadlock" && is_last) return pg->recv(x, 0, 3).wait();
  if (kind == "deadlock_of_stores" && is_last) return rank.store().wait({"never"});
  if (kind == "deadlock_of_groups") {
    // In the first half nobody waits for the other one.
    auto half = pg->split_group(rank.rank() <= last / 2 ? 0 : 1);
    if (rank.rank() <= last / 2 || !is_last) half->barrier().wait();
    return;
  }
  if (kind == "throw" && is_last) throw std::runtime_error("the disk is full");
  if (kind == "exit" && is_last) std::exit(0);
  if (kind == "leftover" && is_last) {
    auto eager = init_process_group(rank, {.eager_bytes = 64});
    eager->send(x, 0, 5).wait();
  } else if (kind == "leftover") {
    (void)init_process_group(rank, {.eager_bytes = 64});
  }
  pg->all_reduce(x).wait();
  if (kind == "kill" && is_last) kill(getpid(), SIGKILL);
  if (kind == "kill_in_call" && is_last) {
    Work work = pg->all_reduce(x);
    kill(getpid(), SIGKILL);
  }
  if (kind == "poll") {
    // Rank 0 asks until a rank of the other process has slept.
    if (is_last) rank.sleep_for(absl::Minutes(1));
    if (is_last) rank.store().set("slept", "");
    while (rank.rank() == 0 && !rank.store().check({"slept"})) rank.yield();
  }
  if (kind == "go_on" && is_last) throw std::runtime_error("the disk is full");
  for (volatile bool computes = kind == "go_on" && rank.rank() == 0; computes;) usleep(1000);
  if (kind.starts_with("file")) {
    // The last rank waits for a file that a rank of the other process writes to when it has slept; others sleep, too.
    const auto file = FileStore::open(file_of_job, {.scheduler = &rank.world().scheduler()});
    const auto begun = std::chrono::steady_clock::now();
    const absl::Duration begun_at = rank.now();
    if (kind == "file" && is_last) file->wait({"slept"}, absl::Seconds(20));
    for (bool came = kind != "file_again" || !is_last; !came;) {
      try {
        file->wait({"slept"}, absl::Milliseconds(2));
        came = true;
      } catch (const DistError&) {
      }
    }
    while (kind == "file_polls" && is_last && !file->check({"slept"})) rank.yield();
    if (!is_last) rank.sleep_for(absl::Milliseconds(100 * (rank.rank() + 1)));
    if (rank.rank() == 1) file->set("slept", "");
    const absl::Duration now = rank.now();  // before the real time, so that a busy machine makes only that one longer
    const absl::Duration real = absl::FromChrono(std::chrono::steady_clock::now() - begun);
    // Rank 1 begins its 200 ms before this rank comes here, as long before as the machine has other work. The clocks of
    // the processes are set to each other by calls only.
    if (is_last && (now < absl::Milliseconds(100) || now - begun_at > real + absl::Milliseconds(50))) {
      throw std::runtime_error(absl::StrCat(absl::FormatDuration(now), ", ", absl::FormatDuration(now - begun_at),
                                            " in ", absl::FormatDuration(real)));
    }
  }
  if (kind == "sleep") rank.sleep_for(absl::Minutes(rank.rank() + 1));
  pg->all_reduce(x).wait();
  if (rank.rank() == 0) std::printf("sum %d at %s\n", x[0], absl::FormatDuration(rank.now()).c_str());
}

int tell(const RunReport& report) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) std::printf("report: %s\n", report.text().c_str());
  std::fflush(stdout);
  return report.ok() ? 0 : 1;
}

// Before MPI is initialised.
int process() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const rank = std::getenv(variable); rank != nullptr) return std::atoi(rank);
  }
  return -1;
}

int run(const std::string& kind, const std::string& folder) {
  if (kind == "level" || (kind == "level_of_one" && process() == 1)) MPI_Init(nullptr, nullptr);
  if (kind == "finalized") {
    MPI_Init(nullptr, nullptr);
    MPI_Finalize();
  }
  WorldOptions options;
  if (kind == "size" || (kind == "size_of_one" && process() == 1)) options.world_size = 5;
  // Process 1 comes late, or never.
  const bool late = kind == "late" || kind == "late_and_throws";
  if (late || kind == "never_comes") options.stall = absl::Milliseconds(400);
  if (kind == "late_and_throws")
    options.on_stall = [](const std::string&) { throw std::runtime_error("nobody listens"); };
  if (kind == "never_comes") options.stall_is_fatal = absl::Milliseconds(1500);
  // MPICH's MPI_Init() waits for all.
  if (late) internal::need_mpi();
  if (late && process() == 1) usleep(4'000'000);
  if (kind == "never_comes" && process() == 1) usleep(20'000'000);  // launchers may leave a process behind
  if (kind == "host_refuses" && process() == 1) options.schedule = Schedule::seeded(1);
  if (kind == "version" && process() == 1) internal::pretend_version("0.0.9");
  const bool compare_calls = !(kind == "comparison_of_one" && process() == 1);
  if (kind == "go_on" || kind == "host_go_on") internal::abort_grace_ns = 1'000'000'000;
  if (kind == "always_moves" || kind == "two_questions") {
    internal::need_mpi();
    kind == "always_moves" ? drive_what_always_moves() : ask_by_two_threads();
    std::fflush(stdout);
    return 0;
  }
  if (kind == "gives_up_sizes") return tell(run_mpi_world(options, give_up_while_sizes_travel));
  if (kind == "each_of_one") return tell(run_mpi_world(options, process() == 1 ? 3 : 2, [](RankContext&) {}));
  if (constexpr std::string_view kHosted = "host_"; kind.starts_with(kHosted)) {
    options.world_size = std::atoi(folder.c_str());
    const std::string what = kind.substr(kHosted.size());
    return tell(run_mpi_world(options, /*ranks_per_process=*/3, [&](RankContext& rank) { host(what, rank); }));
  }
  const auto program = [&](RankContext& rank) {
    if (kind == "flight") {
      World& world = rank.world();
      world.at_end([&world, &folder] { traces::dump_flight_records(world, folder + "/fr_"); });
    }
    auto pg = init_process_group(rank);
    std::vector<float> x(100'000, static_cast<float>(rank.rank() + 1));
    pg->all_reduce(x).wait();
    if (kind == "two_calls") {
      std::thread([] {
        try {
          run_mpi_world({}, [](RankContext&) {});
        } catch (const DistError& error) {
          std::printf("refused: %s\n", error.what());
        }
      }).join();
    }
    if (kind == "kill" && rank.rank() == 1) kill(getpid(), SIGKILL);
    if (kind == "crash" && rank.rank() == 1) raise(SIGSEGV);
    if (kind.ends_with("tags") && rank.rank() == 1) rank.store().wait({"sent"});
    if (kind == "coalesced_tags" && rank.rank() == 1) {
      pg->start_coalescing();
      Work part = pg->recv(x, 0, 3);
      Work whole = pg->end_coalescing();
      whole.wait(absl::Milliseconds(300));
    }
    if (kind.ends_with("tags") && rank.rank() == 0) {
      Work work = pg->send(x, 1, 4);
      rank.store().set("sent", "");
      work.wait();
    }
    if (kind == "tags" && rank.rank() == 1) pg->recv(x, 0, 3).wait(absl::Milliseconds(300));
    if (kind == "kill_in_call" && rank.rank() == 1) {
      Work work = pg->all_reduce(x);
      kill(getpid(), SIGKILL);
    }
    if (kind == "init" && rank.rank() == 1) MPI_Init(nullptr, nullptr);
    if (kind == "no_probe" && rank.rank() == 1) no_probe.store(true);
    if (kind == "flight" && rank.rank() == 1) rank.store().wait({"0 has called", "2 has called"});
    if (kind == "flight" && rank.rank() != 1) {
      Work work = pg->all_reduce(x);
      rank.store().set(std::to_string(rank.rank()) + " has called", "");
      work.wait();
    }
    if ((kind == "throw" || kind == "flight") && rank.rank() == 1) throw std::runtime_error("the disk is full");
    if (kind == "go_on" && rank.rank() == 1) throw std::runtime_error("the disk is full");
    for (volatile bool computes = kind == "go_on" || kind == "compute"; computes;) usleep(1000);
    if (kind == "finalize" && rank.rank() == 1) MPI_Finalize();
    if (kind == "child_exits" && rank.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) std::exit(5);
      int status = 0;
      waitpid(child, &status, 0);
      std::printf("the child's code is %d\n", WEXITSTATUS(status));
      std::fflush(stdout);
    }
    if (kind == "beside") {
      int sum = 0;
      const int one = 1;
      MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      if (sum != rank.world_size()) throw std::runtime_error("MPI beside rankloom gave another sum");
    }
    pg->all_reduce(x).wait();
    if (rank.rank() == 0) std::printf("sum %g\n", static_cast<double>(x[99'999]));
  };
  return tell(run_mpi_world(options, program, compare_calls));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 3) file_of_job = argv[3];
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ".");
  } catch (const DistError& error) {
    std::printf("refused: %s\n", error.what());
    std::fflush(stdout);
    // A launcher ends the others when a process goes without this, and what they say is lost.
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized != 0 && finalized == 0) MPI_Finalize();
    return 2;
  }
}
