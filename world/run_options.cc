#include "world/run_options.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "sim/base/dist_error.h"
#include "sim/base/system.h"
#include "sim/base/task.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace internal {

std::string shell_quoted(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace internal

namespace {

absl::Status bad_variable(const char* name, const char* value, std::string_view want) {
  return invalid_argument(name, " is \"", value, "\", want ", sv(want));
}

constexpr std::string_view kPrefix = "RANKLOOM_";
// All that runs read, without the prefix. Those of the table in docs/testing.md: a new one belongs into both.
constexpr std::string_view kVariables[] = {"BREAK_AT", "ENGINE",     "FAULTS",      "RANKS",
                                           "REPLAY",   "REPLAY_RUN", "REPORT",      "SCHEDULE",
                                           "SEED",     "TRACE_DIR",  "TRACE_LIMIT", "STALL_IS_FATAL"};

// How many letters are too many, missing, other or in each other's place: the distance of optimal string alignment
// (Boytsov, "Indexing methods for approximate dictionary searching", 2011).
size_t typos(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> from(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        from[i][j] = i + j;
        continue;
      }
      from[i][j] = std::min({from[i - 1][j] + 1, from[i][j - 1] + 1, from[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        from[i][j] = std::min(from[i][j], from[i - 2][j - 2] + 1);
    }
  }
  return from[a.size()][b.size()];
}

// A variable that nobody reads, but for a typing error: a run that it was to repeat or change would go as ever. Other
// names are the program's own.
absl::Status check_names() {
  for (char* const* variable = environment(); variable != nullptr && *variable != nullptr; ++variable) {
    std::string_view name = *variable;
    if (!name.starts_with(kPrefix)) continue;
    name = name.substr(0, name.find('=')).substr(kPrefix.size());
    if (name.size() > 20 || std::count(std::begin(kVariables), std::end(kVariables), name) > 0) continue;
    for (const std::string_view known : kVariables) {
      if (typos(name, known) <= (known.size() < 8 ? 1 : 2))
        return invalid_argument(sv(kPrefix), sv(name), " is no variable of rankloom, want ", sv(kPrefix), sv(known));
    }
  }
  return absl::OkStatus();
}

// The command line of this process, quoted for a shell.
std::string command_line() {
  std::string line;
  for (const std::string& word : program_arguments())
    absl::StrAppend(&line, line.empty() ? "" : " ", shell_quoted(word));
  return line;
}

}  // namespace

absl::Status apply_environment(WorldOptions* options) {
  if (options == nullptr) return invalid_argument("apply_environment: options are null, want some");
  if (absl::Status wrong = check_names(); !wrong.ok()) return wrong;
  if (const char* engine = std::getenv("RANKLOOM_ENGINE"); engine != nullptr) {
    if (std::string_view(engine) == "threads") {
      options->engine = EngineKind::kThreads;
    } else if (std::string_view(engine) == "fibers") {
      options->engine = EngineKind::kFibers;
    } else {
      return bad_variable("RANKLOOM_ENGINE", engine, "threads or fibers");
    }
  }
  if (const char* seed = std::getenv("RANKLOOM_SEED"); seed != nullptr) {
    uint64_t value = 0;
    if (!absl::SimpleAtoi(seed, &value)) return bad_variable("RANKLOOM_SEED", seed, "a number from 0 to 2^64 - 1");
    options->schedule = Schedule::seeded(value);
  }
  if (const char* text = std::getenv("RANKLOOM_SCHEDULE"); text != nullptr) {
    absl::StatusOr<Schedule> schedule = Schedule::parse(text);
    if (!schedule.ok()) return invalid_argument("RANKLOOM_SCHEDULE: ", schedule.status().message());
    options->schedule = *std::move(schedule);
  }
  if (const char* text = std::getenv("RANKLOOM_FAULTS"); text != nullptr) {
    absl::StatusOr<FaultPlan> faults = FaultPlan::parse(text);
    if (!faults.ok()) return invalid_argument("RANKLOOM_FAULTS: ", faults.status().message());
    options->faults = *std::move(faults);
  }
  if (const char* path = std::getenv("RANKLOOM_REPLAY"); path != nullptr) {
    absl::StatusOr<Trace> trace = Trace::load(path);
    if (!trace.ok()) return invalid_argument("RANKLOOM_REPLAY: ", trace.status().message());
    options->schedule = Schedule::replay(*std::move(trace));
  }
  if (const char* at = std::getenv("RANKLOOM_BREAK_AT"); at != nullptr) {
    absl::StatusOr<Schedule::BreakPoint> parsed = Schedule::BreakPoint::parse(at);
    if (!parsed.ok()) return invalid_argument("RANKLOOM_BREAK_AT: ", parsed.status().message());
    options->break_at = *std::move(parsed);
  }
  if (const char* text = std::getenv("RANKLOOM_TRACE_LIMIT"); text != nullptr) {
    if (!absl::SimpleAtoi(text, &options->trace_limit))
      return bad_variable("RANKLOOM_TRACE_LIMIT", text, "a number of choices from 0");
  }
  if (const char* text = std::getenv("RANKLOOM_STALL_IS_FATAL"); text != nullptr) {
    absl::Duration after;
    if (!absl::ParseDuration(text, &after) || after < absl::ZeroDuration())
      return bad_variable("RANKLOOM_STALL_IS_FATAL", text, "a duration, as 90s or 2m, or 0 for never");
    options->stall_is_fatal = after;
  }
  return absl::OkStatus();
}

namespace internal {
namespace {

// Whether any variable of the library is set. Most runs are made where none is.
bool environment_speaks() {
  for (char* const* variable = environment(); variable != nullptr && *variable != nullptr; ++variable) {
    if ((*variable)[0] == 'R' && std::string_view(*variable).starts_with(kPrefix)) return true;
  }
  return false;
}

bool names_one_run() { return std::getenv("RANKLOOM_REPLAY_RUN") != nullptr; }

}  // namespace

int next_run() {
  static std::atomic<int> runs = 0;
  return Task::current() == nullptr ? ++runs : 0;
}

std::string name_of_run(int run) {
  static std::atomic<int> inner = 0;
  return run > 0 ? absl::StrCat(run) : absl::StrCat("-inner", ++inner);
}

absl::Status apply_environment_to_run(int run, WorldOptions* options) {
  if (!environment_speaks()) [[likely]]
    return absl::OkStatus();
  const absl::StatusOr<RunFiles> files = run_files_from_environment();
  if (!files.ok()) return files.status();
  const bool meant = run == files->replayed_run;
  if (!meant && names_one_run()) return absl::OkStatus();
  const Schedule own = options->schedule;
  if (absl::Status wrong = apply_environment(options); !wrong.ok()) return wrong;
  if (!meant && options->schedule.trace() != nullptr && options->schedule.trace() != own.trace())
    options->schedule = own;
  return absl::OkStatus();
}

absl::StatusOr<int> ranks_from_environment(int run) {
  const absl::StatusOr<RunFiles> files = run_files_from_environment();
  if (!files.ok()) return files.status();
  if (names_one_run() && run != files->replayed_run) return 0;
  const char* const text = std::getenv("RANKLOOM_RANKS");
  int ranks = 0;
  if (text != nullptr && (!absl::SimpleAtoi(text, &ranks) || ranks < 1)) {
    return bad_variable("RANKLOOM_RANKS", text, "a number from 1");
  }
  return ranks;
}

bool is_replayed_file(const std::string& path) {
  const char* const replayed = std::getenv("RANKLOOM_REPLAY");
  std::error_code none;  // a path that is not there is none
  return replayed != nullptr && std::filesystem::equivalent(replayed, path, none);
}

std::string rerun_of_run(int run, std::string rerun) {
  if (run <= 1 || rerun.empty()) return rerun;
  return absl::StrCat("RANKLOOM_REPLAY_RUN=", run, " ", rerun);
}

const std::string& program_command() {
  // Read once: a test may make ten thousand worlds.
  static const std::string* const line = new std::string(command_line());
  return *line;
}

std::string rerun_command(const WorldOptions& options, std::string_view trace_path) {
  const Schedule& schedule = options.schedule;
  const bool unset = schedule.kind() == Schedule::Kind::kUnset;
  if (unset ? options.engine != EngineKind::kFibers : !schedule.deterministic()) return "";
  const std::string faults =
      options.faults.empty() ? "" : absl::StrCat("RANKLOOM_FAULTS=", shell_quoted(options.faults.text()), " ");
  const auto command = [&](std::string_view name, const absl::AlphaNum& value) {
    return absl::StrCat("RANKLOOM_ENGINE=", sv(engine_kind_name(options.engine)), " ", sv(name), value, " ", faults,
                        program_command());
  };
  if (!trace_path.empty()) return command("RANKLOOM_REPLAY=", shell_quoted(trace_path));
  if (unset) return command("RANKLOOM_SCHEDULE=", Schedule::fifo().text());
  if (schedule.kind() == Schedule::Kind::kSeeded) return command("RANKLOOM_SEED=", schedule.seed());
  if (schedule.kind() != Schedule::Kind::kReplay) return command("RANKLOOM_SCHEDULE=", shell_quoted(schedule.text()));
  const char* const path = std::getenv("RANKLOOM_REPLAY");
  return command("RANKLOOM_REPLAY=", shell_quoted(path != nullptr ? path : "<the same trace>"));
}

namespace {

// The process's folder when the first world was made.
const std::filesystem::path& first_folder() {
  static const auto* const folder = [] {
    std::error_code ignored;  // without a folder relative paths stay as they are
    return new std::filesystem::path(std::filesystem::current_path(ignored));
  }();
  return *folder;
}

// A folder that the environment names. A relative one begins where the first world was made, wherever the program has
// gone to since.
std::string folder_from(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return "";
  const std::filesystem::path folder = value;
  std::error_code ignored;
  return folder.is_absolute() || std::filesystem::current_path(ignored) == first_folder() ? value
                                                                                          : first_folder() / folder;
}

}  // namespace

absl::StatusOr<RunFiles> run_files_from_environment() {
  RunFiles files;
  files.folder = folder_from("RANKLOOM_TRACE_DIR");
  files.reports = folder_from("RANKLOOM_REPORT");
  if (const char* run = std::getenv("RANKLOOM_REPLAY_RUN"); run != nullptr) {
    if (!absl::SimpleAtoi(run, &files.replayed_run) || files.replayed_run < 1) {
      return bad_variable("RANKLOOM_REPLAY_RUN", run, "a number from 1");
    }
  }
  return files;
}

bool reports_are_wanted() {
  const char* const folder = std::getenv("RANKLOOM_REPORT");
  const bool wanted = folder != nullptr && *folder != '\0';
  if (wanted) (void)first_folder();
  return wanted;
}

bool is_terminal(std::FILE* stream) {
  const char* const kind = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

LaunchedProcesses launched_processes() {
  // Open MPI's; MPICH's, Intel's and Slurm's. Slurm sets its own number for whatever it starts, a launcher, too: under
  // PMIx alone that number is of the processes.
  std::vector<const char*> variables = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
  if (std::getenv("PMIX_RANK") != nullptr) variables.push_back("SLURM_STEP_NUM_TASKS");
  for (const char* const variable : variables) {
    const char* const value = std::getenv(variable);
    int count = 0;
    if (value != nullptr && absl::SimpleAtoi(value, &count) && count > 0) return {variable, count};
  }
  return {};
}

bool takes_colours(std::FILE* stream) {
  const char* const unwanted = std::getenv("NO_COLOR");
  return is_terminal(stream) && (unwanted == nullptr || *unwanted == '\0');
}

}  // namespace internal
}  // namespace rankloom
