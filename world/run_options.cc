#include "world/run_options.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sim/dist_error.h"
#include "sim/text.h"
#include "sim/trace.h"

namespace rankloom {
namespace {

absl::Status bad_variable(const char* name, const char* value, std::string_view want) {
  return make_error(ErrorKind::kInvalidArgument, absl::StrCat(name, " is \"", value, "\", want ", sv(want)));
}

}  // namespace

absl::Status apply_environment(WorldOptions* options) {
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
    if (!schedule.ok()) return make_error(ErrorKind::kInvalidArgument, absl::StrCat("RANKLOOM_SCHEDULE: ", schedule.status().message()));
    options->schedule = *std::move(schedule);
  }
  if (const char* path = std::getenv("RANKLOOM_REPLAY"); path != nullptr) {
    absl::StatusOr<Trace> trace = Trace::load(path);
    if (!trace.ok()) return make_error(ErrorKind::kInvalidArgument, absl::StrCat("RANKLOOM_REPLAY: ", trace.status().message()));
    options->schedule = Schedule::replay(*std::move(trace));
  }
  return absl::OkStatus();
}

std::string rerun_command(const WorldOptions& options) {
  Schedule schedule = options.schedule;
  if (schedule.kind() == Schedule::Kind::kUnset) {
    schedule = options.engine == EngineKind::kFibers ? Schedule::fifo() : Schedule::free();
  }
  if (!schedule.deterministic()) return "";
  std::string command = absl::StrCat("RANKLOOM_ENGINE=", sv(engine_kind_name(options.engine)), " ");
  if (schedule.kind() == Schedule::Kind::kReplay) {
    absl::StrAppend(&command, "RANKLOOM_REPLAY=<the same trace> ");
  } else if (schedule.kind() == Schedule::Kind::kSeeded) {
    absl::StrAppend(&command, "RANKLOOM_SEED=", schedule.seed(), " ");
  } else {
    absl::StrAppend(&command, "RANKLOOM_SCHEDULE=", schedule.text(), " ");
  }
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!line.empty() && line.back() == '\0') line.pop_back();
  for (char& c : line) {
    if (c == '\0') c = ' ';
  }
  return command + line;
}

}  // namespace rankloom
