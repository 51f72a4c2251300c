// Random jobs (job.h) in several processes, each in several gears, against the oracle and against each other.
//   campaign [--programs N] [--minutes M] [--seed S] [--processes P] [--quick] [--keep FOLDER]
//   campaign --show SEED | --replay FILE | --cpp FILE    one job: what it is and does; as C++
// The seed of the first program is S (the day, if not given), of the next S + 1. A failure is shrunk, printed as text
// and as C++, and kept in FOLDER, whose files the test campaign_test replays. A process that crashes, or hangs for
// two minutes in one program, is a failure, too; another one goes on after it.

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/print.h"
#include "tests/campaign/todays_seed.h"
#include "tests/temp_dir.h"

namespace {

using namespace rankloom;
using Clock = std::chrono::steady_clock;

constexpr int kMaxProcesses = 64;
constexpr int kHangs = 120;      // seconds in one program
constexpr int kPrinted = 3;      // failures of a process, as C++
constexpr int kHangsAlone = 15;  // in a process of its own, while it is shrunk

struct Options {
  uint64_t programs = 20'000;
  double minutes = 60;
  uint64_t seed = todays_seed();
  int processes = 2;
  Effort effort = Effort::kFull;
  std::string keep;
};

// Messages between the processes, in memory that they share.
struct Told {
  std::atomic<uint64_t> next, done, runs, acts, ended_badly, wrong;
  struct Process {
    std::atomic<uint64_t> program;
    std::atomic<int64_t> since;  // seconds
  } process[kMaxProcesses];
};

int64_t now_s() { return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count(); }

void say(const std::string& text) {
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

// The kind of a failure: the beginning of its text without the numbers, which differ from job to job.
std::string kind_of(const std::string& wrong) {
  constexpr size_t kBeginning = 60;
  std::string kind;
  for (const char c : wrong.substr(0, wrong.find('\n'))) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || kind.empty() || kind.back() != '#') kind += digit ? '#' : c;
  }
  return kind.substr(0, std::min(kBeginning, kind.find("bytes, ")));
}

// How a process of its own ends that runs the job in all gears: "" if well, or by which signal or exit code.
std::string end_of_process(const Job& job) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kHangsAlone);
    compare_gears(job, Effort::kFull);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return absl::StrCat("ended by signal ", WTERMSIG(status));
  return status == 0 ? "" : absl::StrCat("exited with ", WEXITSTATUS(status));
}

void tell_failure(const Options& options, uint64_t seed, const std::string& wrong, const Job& small,
                  const std::string& why, const std::optional<Gear>& gear = {}) {
  static int told = 0;
  std::string text = absl::StrCat("== seed ", seed, ": ", wrong, "\n");
  absl::StrAppend(&text, small == draw_job(seed) ? "" : "shrunk to:\n", to_text(small), why, "\n");
  if (++told <= kPrinted) {
    text += to_cpp(small, gear);
  } else if (told == kPrinted + 1) {
    text += "Those that follow are not printed as C++: --keep FOLDER keeps them all, --cpp FILE prints one.\n";
  }
  say(text);
  if (options.keep.empty()) return;
  std::ofstream file(absl::StrCat(options.keep, "/", seed, ".job"));
  file << "# Found by seed " << seed << (gear.has_value() ? absl::StrCat(", on ", gear->text()) : "") << ".\n"
       << to_text(small);
}

void tell_wrong(const Options& options, uint64_t seed, const Job& job, const std::string& wrong) {
  const std::string kind = kind_of(wrong);
  const Job small = shrink(job, [&](const Job& smaller) {
    return kind_of(compare_gears(smaller, Effort::kFull).wrong.value_or("")) == kind;
  });
  const Comparison again = compare_gears(small, Effort::kFull);
  tell_failure(options, seed, wrong, small,
               again.wrong.has_value() ? absl::StrCat(*again.wrong, "\n(", again.others, ")")
                                       : "it went well when run once more, as it may on threads that run freely",
               again.gear);
}

// A crash or hang is shrunk from outside, in a process for each try; by one that has no thread.
void tell_crash(const Options& options, uint64_t seed, const std::string& end) {
  const Job job = draw_job(seed);
  const std::string alone = end_of_process(job);
  if (alone.empty()) {
    return tell_failure(options, seed, end, job, "it went well in a process of its own, and is not shrunk");
  }
  const Job small = shrink(job, [&](const Job& smaller) { return end_of_process(smaller) == alone; });
  tell_failure(options, seed, end, small, absl::StrCat("in a process of its own: ", alone));
}

void work(const Options& options, Told* told, int process, int64_t end) {
  while (true) {
    const uint64_t i = told->next++;
    if (i >= options.programs || now_s() >= end) return;
    const uint64_t seed = options.seed + i;
    told->process[process].since = now_s();  // first: a program without its time would hang
    told->process[process].program = seed;
    const Job job = draw_job(seed);
    const Comparison result = compare_gears(job, options.effort);
    ++told->done;
    told->runs += static_cast<uint64_t>(result.runs);
    told->acts += job.acts.size();
    told->ended_badly += job.may_fail();
    if (!result.wrong.has_value()) continue;
    ++told->wrong;
    tell_wrong(options, seed, job, *result.wrong);
  }
}

pid_t start(const Options& options, Told* told, int process, int64_t end) {
  told->process[process].program = 0;
  told->process[process].since = now_s();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    work(options, told, process, end);
    std::exit(0);
  }
  return pid;
}

int run(const Options& options) {
  Told* const told =
      static_cast<Told*>(mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::printf("seeds from %lu on, %d processes\n", options.seed, options.processes);
  const auto began = Clock::now();
  const int64_t end = now_s() + static_cast<int64_t>(options.minutes * 60);
  std::map<pid_t, int> processes;
  for (int p = 0; p < options.processes; ++p) processes[start(options, told, p, end)] = p;
  uint64_t crashes = 0;
  int64_t told_at = now_s();
  while (!processes.empty()) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      const int p = processes[pid];
      processes.erase(pid);
      if (status == 0) continue;
      ++crashes;
      const uint64_t seed = told->process[p].program;
      tell_crash(options, seed,
                 absl::StrCat(WIFSIGNALED(status) ? "ended by signal " : "exited with ",
                              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
      processes[start(options, told, p, end)] = p;
      continue;
    }
    for (const auto& [child, p] : processes) {
      // Shrinking takes up to a minute.
      if (told->process[p].program != 0 && now_s() - told->process[p].since > kHangs) kill(child, SIGABRT);
    }
    if (now_s() - told_at >= 60) {
      told_at = now_s();
      std::printf("%lu programs, %lu runs, %lu wrong, %lu crashes\n", told->done.load(), told->runs.load(),
                  told->wrong.load(), crashes);
      std::fflush(stdout);
    }
    usleep(20'000);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("%lu programs of %lu acts in %.1f s: %lu runs; %lu may end badly; %lu wrong, %lu crashes\n",
              told->done.load(), told->acts.load(), seconds, told->runs.load(), told->ended_badly.load(),
              told->wrong.load(), crashes);
  return told->wrong + crashes == 0 ? 0 : 1;
}

int show(const Job& job) {
  std::printf("%s", to_text(job).c_str());
  std::fflush(stdout);
  const Comparison result = compare_gears(job, Effort::kFull);
  std::printf("%s\n(%s)\n", result.wrong.value_or("# nothing is wrong").c_str(), result.others.c_str());
  return result.wrong.has_value() ? 1 : 0;
}

int with_file(const std::string& path, int (*use)(const Job&)) {
  if (access(path.c_str(), R_OK) != 0) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), std::strerror(errno));
    return 2;
  }
  if (!std::filesystem::is_regular_file(path)) {
    std::fprintf(stderr, "%s: no file\n", path.c_str());
    return 2;
  }
  const absl::StatusOr<Job> job = parse_job(read_file(path));
  if (job.ok()) return use(*job);
  std::fprintf(stderr, "%s: %s\n", path.c_str(), std::string(job.status().message()).c_str());
  return 2;
}

constexpr const char* kUsage =
    "campaign [--programs N] [--minutes M] [--seed S] [--processes P] [--quick] [--keep FOLDER]\n"
    "campaign --show SEED | --replay FILE | --cpp FILE ";

int refuse(const std::string& flag, const std::string& value, const std::string& want) {
  std::fprintf(stderr, "%s %s: want %s\n", flag.c_str(), value.c_str(), want.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.effort = Effort::kQuick;
      continue;
    }
    if (flag == "--help" || flag == "-h") return std::puts(kUsage) < 0 ? 1 : 0;
    if (std::string_view(kUsage).find(flag + " ") == std::string_view::npos) {
      std::fprintf(stderr, "%s: not known\n%s\n", argv[i], kUsage);
      return 2;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s: no value\n", argv[i]);
      return 2;
    }
    const char* const value = argv[++i];
    const bool is_name = flag == "--keep" || flag == "--replay" || flag == "--cpp";
    uint64_t number = 0;
    if (!is_name && flag != "--minutes" && !absl::SimpleAtoi(value, &number)) return refuse(flag, value, "a number");
    if (flag == "--minutes" && (!absl::SimpleAtod(value, &options.minutes) || !(options.minutes > 0)))
      return refuse(flag, value, "a number over 0");
    if (flag == "--programs" && number == 0) return refuse(flag, value, "a number over 0");
    if (flag == "--programs") {
      options.programs = number;
    } else if (flag == "--minutes") {
      continue;  // read above
    } else if (flag == "--seed") {
      options.seed = number;
    } else if (flag == "--processes") {
      options.processes = std::clamp(static_cast<int>(number), 1, kMaxProcesses);
    } else if (flag == "--keep") {
      options.keep = value;
      std::error_code error;
      std::filesystem::create_directories(options.keep, error);
      if (error) return refuse(flag, value, absl::StrCat("a folder: ", error.message()));
    } else if (flag == "--show") {
      return show(draw_job(number));
    } else if (flag == "--replay") {
      return with_file(value, show);
    } else {
      return with_file(value, [](const Job& job) { return std::puts(to_cpp(job).c_str()) < 0 ? 1 : 0; });
    }
  }
  return run(options);
}
