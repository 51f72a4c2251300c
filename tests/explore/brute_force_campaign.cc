// Compares the searches of many small programs (searches.h), in several processes, and prints what is wrong with any.
//   brute_force_campaign [--first SEED] [--programs N] [--minutes M] [--processes P] [--unreduced RUNS]
//                        [--reduced RUNS] [--seeds N] [--free RUNS] [--shuffles N] [--parts N] [--show SEED]
//                        [--no-shrink] [--leave-out N] [--without WHAT] [--counts] [--until-found TIMES]
// --leave-out: the reduced searches are not told of one access in N, drawn by object: flaws must turn up. --without: of
// no access of this StepRecord::What, a number. --until-found: only says how many programs it takes until one shows
// what is left out, so many times, each time for other programs and other accesses.
// A process that crashes, or hangs for some minutes in one program, is a failure, too; another one goes on after it.

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/explore/small_program.h"

namespace {

using namespace rankloom;
using namespace rankloom::internal;
using Clock = std::chrono::steady_clock;

struct Options {
  uint64_t first = 1;
  uint64_t programs = 1'000;
  double minutes = 60;
  int processes = 2;
  bool shrinks = true;
  uint64_t leave_out = 0;  // 0: nothing
  int without = -1;
  int until_found = 0;  // times
  SearchLimits limits;

  // Null: nothing.
  LeaveOut left_out() const {
    if (without >= 0)
      return [w = without](const StepRecord::Op& op, uint64_t) { return static_cast<int>(op.what) == w; };
    return leave_out != 0 ? leave_out_one_in(leave_out) : nullptr;
  }
};

// Messages between the processes, in memory that they share.
struct Told {
  std::atomic<uint64_t> next;
  std::atomic<uint64_t> done, unreduced_finished, reduced_finished, runs;
  std::atomic<uint64_t> flaws[16];
  struct Process {
    std::atomic<uint64_t> program;
    std::atomic<int64_t> since;  // seconds
  } process[64];
};

int64_t now_s() { return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count(); }

void work(const Options& options, Told* told, int process) {
  const int64_t end = told->process[process].since;
  const LeaveOut left_out = options.left_out();
  while (true) {
    const uint64_t i = told->next++;
    if (i >= options.programs || now_s() >= end) return;
    const uint64_t seed = options.first + i;
    told->process[process].program = seed;
    told->process[process].since = now_s();
    const SmallProgram program = draw_program(seed);
    SearchLimits limits = options.limits;
    if (left_out != nullptr) limits.leave_out = [&](const StepRecord::Op& op) { return left_out(op, seed); };
    const Comparison result = compare_searches(program, limits);
    ++told->done;
    told->unreduced_finished += result.unreduced_finished;
    told->reduced_finished += result.reduced_finished;
    told->runs += static_cast<uint64_t>(result.runs);
    ++told->flaws[static_cast<size_t>(result.flaw)];
    if (result.flaw == Flaw::kNone) continue;
    // With the campaign's time, or after a minute, shrinking ends.
    const absl::Duration most = absl::Seconds(std::clamp<int64_t>(end - now_s(), 10, 60));
    const std::string text = options.shrinks ? shrunk_text(program, limits, result.flaw, most)
                                             : flaw_name(result.flaw) + ": " + to_text(program) + result.text;
    const std::string whole = "== " + text + "\n";
    if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) return;
  }
}

pid_t start(const Options& options, Told* told, int process, int64_t end) {
  told->process[process].program = 0;
  told->process[process].since = end;
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    work(options, told, process);
    std::fflush(stdout);
    _exit(0);
  }
  return pid;
}

int say_until_found(const Options& options) {
  uint64_t first = options.first;
  for (int i = 0; i < options.until_found; ++i) {
    const int64_t found = programs_until_found(options.left_out(), first, INT64_MAX, options.limits);
    first += static_cast<uint64_t>(found);
    std::printf("program %ld shows it: seed %lu\n", found, first - 1);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--no-shrink") {
      options.shrinks = false;
      continue;
    }
    if (flag == "--counts") {
      options.limits.counts = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s: no value\n", argv[i]);
      return 2;
    }
    const char* const value = argv[++i];
    const uint64_t number = std::strtoull(value, nullptr, 10);
    if (flag == "--first") {
      options.first = number;
    } else if (flag == "--programs") {
      options.programs = number;
    } else if (flag == "--minutes") {
      options.minutes = std::strtod(value, nullptr);
    } else if (flag == "--processes") {
      options.processes = static_cast<int>(number);
    } else if (flag == "--unreduced") {
      options.limits.unreduced = static_cast<int>(number);
    } else if (flag == "--reduced") {
      options.limits.reduced = static_cast<int>(number);
    } else if (flag == "--seeds") {
      options.limits.seeds = static_cast<int>(number);
    } else if (flag == "--free") {
      options.limits.free = static_cast<int>(number);
    } else if (flag == "--parts") {
      options.limits.parts = static_cast<int>(number);
    } else if (flag == "--shuffles") {
      options.limits.shuffles = static_cast<int>(number);
    } else if (flag == "--leave-out") {
      options.leave_out = number;
    } else if (flag == "--without") {
      options.without = static_cast<int>(number);
    } else if (flag == "--until-found") {
      options.until_found = static_cast<int>(number);
    } else if (flag == "--show") {
      const SmallProgram program = draw_program(number);
      const Comparison result = compare_searches(program, options.limits);
      std::printf("%s%s\n%s", to_text(program).c_str(), flaw_name(result.flaw).c_str(), result.text.c_str());
      return result.flaw == Flaw::kNone ? 0 : 1;
    } else {
      std::fprintf(stderr, "%s: not known\n", flag.c_str());
      return 2;
    }
  }
  if (options.processes < 1 || options.processes > 64) return 2;
  if (options.until_found > 0) return options.left_out() != nullptr ? say_until_found(options) : 2;

  Told* const told =
      static_cast<Told*>(mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto began = Clock::now();
  const int64_t end = now_s() + static_cast<int64_t>(options.minutes * 60);
  std::map<pid_t, int> processes;
  for (int p = 0; p < options.processes; ++p) processes[start(options, told, p, end)] = p;
  uint64_t crashes = 0;
  while (!processes.empty()) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      const int p = processes[pid];
      processes.erase(pid);
      if (status == 0) continue;
      ++crashes;
      const uint64_t seed = told->process[p].program;
      std::printf("== %s %d: %s\n", WIFSIGNALED(status) ? "ended by signal" : "exited with",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), to_text(draw_program(seed)).c_str());
      processes[start(options, told, p, end)] = p;
      continue;
    }
    for (const auto& [child, p] : processes) {
      // Shrinking has its own limit.
      if (told->process[p].program != 0 && now_s() - told->process[p].since > 200) kill(child, SIGKILL);
    }
    usleep(20'000);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("%lu programs in %.1f s: %lu runs, unreduced search finished for %lu, reduced one for %lu; %lu crashes",
              told->done.load(), seconds, told->runs.load(), told->unreduced_finished.load(),
              told->reduced_finished.load(), crashes);
  uint64_t flaws = crashes;
  for (size_t flaw = 1; flaw <= static_cast<size_t>(Flaw::kUntold); ++flaw) {
    const uint64_t n = told->flaws[flaw];
    flaws += n;
    if (n > 0) std::printf("; %lu %s", n, flaw_name(static_cast<Flaw>(flaw)).c_str());
  }
  std::printf("\n");
  return flaws == 0 ? 0 : 1;
}
