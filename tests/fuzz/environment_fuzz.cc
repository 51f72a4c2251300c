// The variables of the library with values of any bytes: each is obeyed or refused with an error that names one of
// them. The rerun command tells a shell all that is obeyed, and says the same to the next run.

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/options.h"
#include "rankloom/schedule.h"
#include "tests/fuzz/fuzz.h"
#include "world/run_options.h"

namespace rankloom::fuzz {
namespace {

constexpr std::array kVariables = {
    "RANKLOOM_ENGINE",    "RANKLOOM_SEED",        "RANKLOOM_SCHEDULE",       "RANKLOOM_FAULTS", "RANKLOOM_REPLAY",
    "RANKLOOM_BREAK_AT",  "RANKLOOM_TRACE_LIMIT", "RANKLOOM_STALL_IS_FATAL", "RANKLOOM_RANKS",  "RANKLOOM_REPORT",
    "RANKLOOM_TRACE_DIR", "RANKLOOM_REPLAY_RUN",  "RANKLOOM_OTHER",
};

void clear() {
  for (const char* name : kVariables) unsetenv(name);
}

void must_name_a_variable(const absl::Status& status) {
  if (status.ok()) return;
  const absl::string_view text = status.message();
  bool named = false;
  for (const char* name : kVariables) named = named || (std::getenv(name) != nullptr && absl::StartsWith(text, name));
  if (error_kind(status) != ErrorKind::kInvalidArgument || !named) wrong("refused with " + status.ToString());
}

// The words of a line as a POSIX shell has them, for words that are quoted by ' or not at all.
std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted ? c != '\'' : c != '\'' && c != ' ' && c != '\\') {
      if (!quoted && std::string_view("\t\n$`\"|&;<>()*?[]#~!{}").find(c) != std::string_view::npos)
        wrong("a shell takes a character of the rerun command for its own: " + line);
      word += c;
      any = true;
    } else if (c == '\'') {
      quoted = !quoted;
      any = true;
    } else if (c == '\\') {
      if (++i < line.size()) word += line[i];
      any = true;
    } else {
      if (any) words.push_back(word);
      word.clear();
      any = false;
    }
  }
  if (quoted) wrong("a quote of the rerun command is open: " + line);
  if (any) words.push_back(word);
  return words;
}

// The options of the run that a rerun command starts. False: it does not replay what this process can.
bool rerun_says_the_same(const WorldOptions& options) {
  const std::string line = internal::rerun_command(options);
  if (line.empty()) return true;
  clear();
  for (const std::string& word : shell_words(line)) {
    const size_t equals = word.find('=');
    if (!word.starts_with("RANKLOOM_") || equals == std::string::npos) break;
    setenv(word.substr(0, equals).c_str(), word.substr(equals + 1).c_str(), 1);
  }
  WorldOptions again;
  const absl::Status status = apply_environment(&again);
  if (!status.ok()) wrong("the rerun command is refused: " + status.ToString() + "\n" + line);
  const bool unset = options.schedule.kind() == Schedule::Kind::kUnset;
  const std::string schedule = unset ? Schedule::fifo().text() : options.schedule.text();
  if (again.engine == options.engine && again.schedule.text() == schedule &&
      again.faults.text() == options.faults.text() && again.faults.faults() == options.faults.faults() &&
      again.faults.rate() == options.faults.rate())
    return true;
  std::fprintf(stderr, "%s\nhave schedule %s, faults %s, want schedule %s, faults %s\n", line.c_str(),
               again.schedule.text().c_str(), again.faults.text().c_str(), schedule.c_str(),
               options.faults.text().c_str());
  return false;
}

// The options are what the variables say, the later ones of a schedule before the others.
void must_be_obeyed(const WorldOptions& options) {
  const auto said = [](const char* name, const auto& obeys) {
    const char* const text = std::getenv(name);
    if (text != nullptr && !obeys(text)) wrong(std::string(name) + "=" + text + " is not obeyed");
    return text != nullptr;
  };
  said("RANKLOOM_ENGINE", [&](std::string_view text) {
    return options.engine == (text == "fibers" ? EngineKind::kFibers : EngineKind::kThreads);
  });
  const bool replays = std::getenv("RANKLOOM_REPLAY") != nullptr;
  const bool has_schedule = said("RANKLOOM_SCHEDULE", [&](const char* text) {
    return replays || options.schedule.text() == Schedule::parse(text)->text();
  });
  said("RANKLOOM_SEED", [&](const char* text) {
    const std::string seeded = "seeded:" + std::to_string(std::strtoull(text, nullptr, 10));
    return replays || has_schedule || options.schedule.text() == seeded;
  });
  said("RANKLOOM_REPLAY", [&](const char* path) {
    return options.schedule.trace() != nullptr &&
           internal::first_difference(*options.schedule.trace(), *Trace::load(path)) == "equal";
  });
  said("RANKLOOM_FAULTS", [&](const char* text) { return options.faults.text() == FaultPlan::parse(text)->text(); });
  said("RANKLOOM_BREAK_AT", [&](const char* text) {
    const Schedule::BreakPoint at = *Schedule::BreakPoint::parse(text);
    const std::optional<Schedule::BreakPoint>& have = options.break_at;
    return have.has_value() && have->rank == at.rank && have->group == at.group && have->seq == at.seq;
  });
  said("RANKLOOM_TRACE_LIMIT", [&](const char* text) {
    return options.trace_limit == static_cast<decltype(options.trace_limit)>(std::strtoull(text, nullptr, 10));
  });
  said("RANKLOOM_STALL_IS_FATAL", [&](const char* text) {
    absl::Duration after;
    return absl::ParseDuration(text, &after) && options.stall_is_fatal == after;
  });
}

// The wishes to searches and to keepers of traces, of the first run of a process: by a reader of the test's own.
void wishes_must_be_obeyed() {
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return text == nullptr ? std::string() : std::string(text);
  };
  const absl::StatusOr<internal::RunFiles> files = internal::run_files_from_environment();
  must_name_a_variable(files.status());
  if (!files.ok()) return;
  if (files->folder.empty() != value("RANKLOOM_TRACE_DIR").empty()) wrong("RANKLOOM_TRACE_DIR is not obeyed");
  if (files->reports.empty() != value("RANKLOOM_REPORT").empty()) wrong("RANKLOOM_REPORT is not obeyed");
  if (!files->folder.empty() && !files->folder.ends_with(value("RANKLOOM_TRACE_DIR")))
    wrong("RANKLOOM_TRACE_DIR is " + files->folder);
  if (!files->reports.empty() && !files->reports.ends_with(value("RANKLOOM_REPORT")))
    wrong("RANKLOOM_REPORT is " + files->reports);
  if (internal::reports_are_wanted() == value("RANKLOOM_REPORT").empty()) wrong("reports are wanted against the wish");
  const std::string run = value("RANKLOOM_REPLAY_RUN");
  if (files->replayed_run != (run.empty() ? 1 : std::atoi(run.c_str()))) wrong("RANKLOOM_REPLAY_RUN is not obeyed");
  const absl::StatusOr<int> ranks = internal::ranks_from_environment(files->replayed_run);
  must_name_a_variable(ranks.status());
  if (ranks.ok() && *ranks != std::atoi(value("RANKLOOM_RANKS").c_str())) wrong("RANKLOOM_RANKS is not obeyed");
}

// A number of the variable, a length and a value each. A value of RANKLOOM_REPLAY that begins with "file:" is the
// content of the trace.
void set_variables(Input& in, const std::string& trace_path) {
  while (!in.empty()) {
    const char* const name = kVariables[static_cast<size_t>(in.below(kVariables.size()))];
    std::string value = in.text();
    if (value.starts_with("file:") && name == std::string_view("RANKLOOM_REPLAY")) {
      std::ofstream(trace_path, std::ios::binary | std::ios::trunc) << value.substr(5);
      value = trace_path;
    }
    setenv(name, value.c_str(), 1);  // up to the first NUL
  }
}

void check(Input& in) {
  static const std::string trace_path = [] {
    const char* const folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return std::string(folder) + "/rankloom_fuzz_trace_" + std::to_string(getpid());
  }();
  clear();
  set_variables(in, trace_path);
  WorldOptions of_run;
  must_name_a_variable(internal::apply_environment_to_run(1, &of_run));
  must_name_a_variable(internal::apply_environment_to_run(2, &of_run));
  must_name_a_variable(internal::ranks_from_environment(1).status());
  wishes_must_be_obeyed();
  WorldOptions options;
  const absl::Status status = apply_environment(&options);
  must_name_a_variable(status);
  if (status.ok()) must_be_obeyed(options);
  if (status.ok() && !rerun_says_the_same(options)) wrong("the rerun command says something else");
  clear();
  unlink(trace_path.c_str());
}

}  // namespace
}  // namespace rankloom::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankloom::fuzz::Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  rankloom::fuzz::check(in);
  return 0;
}
