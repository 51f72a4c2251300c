#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "harness/rank_failures.h"
#include "rankloom/error.h"
#include "rankloom/testing.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"
#include "world/run_file.h"
#include "world/run_options.h"

namespace rankloom {

using namespace internal;
namespace {

using testing::TestPartResult;

const testing::TestInfo& running_test_info() {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) {
    refuse({.rank = -1, .group = {}, .op = "run_ranks"}, ErrorKind::kInvalidArgument,
           "MultiThreadedTestCase: no test is running, want calls from within a test, or run_world()");
  }
  return *test;
}

// Failed parts and skips of the running test so far.
int failed_parts() {
  const testing::TestResult& result = *running_test_info().result();
  int failed = 0;
  for (int i = 0; i < result.total_part_count(); ++i) {
    if (!result.GetTestPartResult(i).passed()) ++failed;
  }
  return failed;
}

bool names_schedule(const WorldOptions& options) { return options.schedule.kind() != Schedule::Kind::kUnset; }

// The failure of the world that is no failed assertion; empty: none. An assertion is reported by its own text.
// `assertion_led`: an assertion was the first failure.
std::string world_failure(RunReport report, bool* assertion_led) {
  *assertion_led = true;
  if (report.ok()) return "";
  std::vector<std::pair<int, std::string>> others;
  for (size_t rank = 0; rank < report.outcomes.size(); ++rank) {
    RunReport::Outcome& outcome = report.outcomes[rank];
    if (outcome.state != RunReport::Outcome::State::kFailed) continue;
    if (internal::is_assertion(outcome.exception)) {
      outcome.text = "an assertion";
    } else {
      others.emplace_back(static_cast<int>(rank), outcome.text);
    }
  }
  *assertion_led = report.first_failed >= 0 &&
                   internal::is_assertion(report.outcomes[static_cast<size_t>(report.first_failed)].exception);
  if (!*assertion_led) return report.text();
  std::string text;
  for (const internal::SaidByRanks& other : internal::folded_by_rank(others)) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", internal::ranks_text(other.ranks), " failed: ", other.text);
  }
  return text;
}

// One skip for the test, however many ranks skipped, and however often.
void tell_skip(const std::vector<internal::RankFailure>& failures) {
  const internal::RankFailure* first = nullptr;
  std::string text;
  for (const internal::RankFailure& failure : failures) {
    if (failure.failed()) continue;
    if (first == nullptr) first = &failure;
    absl::StrAppend(&text, text.empty() ? "" : "\n", failure.text());
  }
  if (first != nullptr) internal::report_part(TestPartResult::kSkip, first->file, first->line, text);
}

// One result that GoogleTest is told.
struct Part {
  TestPartResult::Type type;
  std::string file;
  int line;
  std::string text;
};

// A world that has run.
struct EndedRun {
  WorldOptions options;
  RunFiles files;
  CodeSite code;
  RunReport report = {};
  std::vector<internal::RankFailure> failures = {};
  bool skipped = false;
};

}  // namespace

struct MultiThreadedTestCase::State {
  // The engine and schedule that count, the environment's included.
  absl::Status prepare(EngineKind engine, WorldOptions* options, RunFiles* files) const;
  // Reports to GoogleTest.
  void tell(const EndedRun& run, Expected expected) const;
  // Returns the line that says how to replay it; empty: there is nothing to replay.
  std::string save_trace(const EndedRun& run) const;
  // The line that names the file of the run, if the environment asks for one.
  std::string save_run(const EndedRun& run) const;
  // Of files of this run: "train_test.AllReduce.AddsUp.run2".
  std::string file_name() const;

  int runs = 0;                      // which run of this test, or of this round of seeds(), is the last, from 1
  std::optional<Schedule> schedule;  // within seeds()
  bool in_round = false;             // of seeds(), which says itself how to run it again
  bool capture_output = false;
  std::vector<std::string> outputs;  // of the last run, by rank
};

MultiThreadedTestCase::MultiThreadedTestCase() : state_(std::make_unique<State>()) {
  internal::runs_of_this_test() = 0;
}
MultiThreadedTestCase::~MultiThreadedTestCase() = default;

testing::internal::ParamGenerator<EngineKind> every_engine() {
  // A wish of the environment shows in both; one that makes no sense is reported by each test.
  WorldOptions threads{.engine = EngineKind::kThreads};
  WorldOptions fibers{.engine = EngineKind::kFibers};
  apply_environment(&threads).IgnoreError();
  apply_environment(&fibers).IgnoreError();
  if (threads.engine == fibers.engine) return testing::Values(threads.engine);
  return testing::Values(EngineKind::kThreads, EngineKind::kFibers);
}

std::string engine_name(const testing::TestParamInfo<EngineKind>& info) {
  return std::string(engine_kind_name(info.param));
}

std::ostream& operator<<(std::ostream& out, EngineKind engine) { return out << engine_kind_name(engine); }

EngineKind MultiThreadedTestCase::engine() const {
  return running_test_info().value_param() == nullptr ? EngineKind::kThreads : GetParam();
}

WorldOptions MultiThreadedTestCase::options() const { return {.world_size = world_size(), .engine = engine()}; }

void MultiThreadedTestCase::set_up_rank(RankContext&) {}
void MultiThreadedTestCase::tear_down_rank(RankContext&) {}

RunReport MultiThreadedTestCase::run_ranks(RankBody body, CodeSite code) {
  return run(world_size(), body, Expected::kSuccess, code);
}

RunReport MultiThreadedTestCase::run_ranks(int world_size, RankBody body, CodeSite code) {
  return run(world_size, body, Expected::kSuccess, code);
}

RunReport MultiThreadedTestCase::run_ranks(WorldOptions options, RankBody body, CodeSite code) {
  return run(std::move(options), body, Expected::kSuccess, code);
}

RunReport MultiThreadedTestCase::run_ranks_to_failure(RankBody body, CodeSite code) {
  return run(world_size(), body, Expected::kFailure, code);
}

RunReport MultiThreadedTestCase::run_ranks_to_failure(int world_size, RankBody body, CodeSite code) {
  return run(world_size, body, Expected::kFailure, code);
}

RunReport MultiThreadedTestCase::run_ranks_to_failure(WorldOptions options, RankBody body, CodeSite code) {
  return run(std::move(options), body, Expected::kFailure, code);
}

void MultiThreadedTestCase::capture_output(bool capture) { state_->capture_output = capture; }

absl::Status MultiThreadedTestCase::State::prepare(EngineKind engine, WorldOptions* options, RunFiles* files) const {
  options->engine = engine;
  if (!names_schedule(*options) && schedule.has_value()) options->schedule = *schedule;
  if (absl::Status status = internal::apply_environment_to_run(runs, options); !status.ok()) return status;
  add_test_defaults(options);
  absl::StatusOr<RunFiles> asked = run_files_from_environment();
  if (!asked.ok()) return asked.status();
  *files = *std::move(asked);
  return absl::OkStatus();
}

RunReport MultiThreadedTestCase::run(int world_size, RankBody body, Expected expected, CodeSite code) {
  WorldOptions base = options();
  base.world_size = world_size;
  if (state_->schedule.has_value()) base.schedule = *state_->schedule;
  return run(std::move(base), body, expected, code);
}

RunReport MultiThreadedTestCase::run(WorldOptions options, RankBody body, Expected expected, CodeSite code) {
  state_->runs = ++internal::runs_of_this_test();
  RunFiles files;
  if (absl::Status status = state_->prepare(engine(), &options, &files); !status.ok()) {
    internal::report_part(TestPartResult::kFatalFailure, code.file, code.line, message_of(status));
    RunReport report;
    report.cause = std::move(status);
    return report;
  }
  if (!files.reports.empty()) options.keep_run = true;  // a failed assertion may be all that went wrong
  EndedRun run{.options = options, .files = std::move(files), .code = code};
  {
    World world(std::move(options), code);
    // All runs of a round of seeds() are under its seed.
    const int run_alone = state_->in_round ? 1 : state_->runs;
    world.scheduler().set_rerun(internal::rerun_of_run(run_alone, internal::for_this_test(world.scheduler().rerun())));
    const internal::RankFailuresScope failures(&world);
    std::optional<RankOutput> output;
    if (state_->capture_output) output.emplace(&world);
    run.report = world.run([&](RankContext& rank) {
      failures->run_guarded(
          rank,
          [&](RankContext& self) {
            set_up_rank(self);
            body(self);
          },
          [&](RankContext& self) { tear_down_rank(self); });
    });
    run.failures = failures->folded();
    run.skipped = failures->skip_ended_run();
    state_->outputs = output.has_value() ? output->texts() : std::vector<std::string>();
  }
  RecordProperty("world_size", run.options.world_size);
  RecordProperty("engine", run.report.engine);
  RecordProperty("schedule", run.report.schedule);
  if (run.options.schedule.kind() == Schedule::Kind::kSeeded || run.options.schedule.kind() == Schedule::Kind::kPct) {
    RecordProperty("seed", absl::StrCat(run.options.schedule.seed()));
  }
  state_->tell(run, expected);
  return std::move(run.report);
}

void MultiThreadedTestCase::State::tell(const EndedRun& run, Expected expected) const {
  const RunReport& report = run.report;
  const bool assertions_failed =
      std::any_of(run.failures.begin(), run.failures.end(), [](const auto& f) { return f.failed(); });
  std::string world_text;
  bool assertion_led = true;
  if (expected == Expected::kSuccess && !run.skipped) {
    RunReport shown = report;
    shown.rerun.clear();  // told below, or by seeds()
    world_text = world_failure(std::move(shown), &assertion_led);
  } else if (expected == Expected::kFailure && report.ok() && !run.skipped) {
    world_text = absl::StrCat("the world was to fail, but all ", report.outcomes.size(), " ranks returned");
  }
  const bool failed = assertions_failed || !world_text.empty();
  if (failed) RankOutput::print(outputs, std::cout);
  if (world_text.empty()) {
    for (const std::string& note : report.notes) std::cout << "note: " << note << "\n" << std::flush;
  }
  std::string rerun, replay, run_file;
  if (failed && RankContext::current() == nullptr) {  // a world inside another: that one's runs again
    if (!report.rerun.empty() && !in_round) {
      rerun =
          absl::StrCat("\nschedule ", report.schedule, ", engine ", report.engine, "; run it again: ", report.rerun);
    }
    replay = save_trace(run);
    run_file = save_run(run);
  }
  // How to run it again ends the last of them, once.
  std::vector<Part> parts;
  const auto tell_world = [&] {
    if (!world_text.empty()) parts.push_back({TestPartResult::kFatalFailure, run.code.file, run.code.line, world_text});
  };
  const auto tell_failures = [&](absl::FunctionRef<bool(const internal::RankFailure&)> chosen) {
    for (const internal::RankFailure& failure : run.failures) {
      if (!failure.failed() || !chosen(failure)) continue;
      parts.push_back({failure.type, failure.file, failure.line, failure.text()});
    }
  };
  // The first failure leads.
  if (assertion_led) {
    tell_failures([](const auto&) { return true; });
    tell_world();
  } else {
    tell_failures([](const auto& failure) { return !failure.after_abort(); });
    tell_world();
    tell_failures([](const auto& failure) { return failure.after_abort(); });
  }
  // The report of a world that failed says so itself that no trace is there.
  const auto says = [&replay](const Part& part) {
    return absl::StrContains(part.text, absl::StripLeadingAsciiWhitespace(replay));
  };
  if (std::any_of(parts.begin(), parts.end(), says)) replay.clear();
  if (!parts.empty()) absl::StrAppend(&parts.back().text, rerun, replay, run_file);
  for (const Part& part : parts) internal::report_part(part.type, part.file, part.line, part.text);
  tell_skip(run.failures);
}

std::string MultiThreadedTestCase::State::save_trace(const EndedRun& run) const {
  if (run.report.trace.cut()) return absl::StrCat("\n", run.report.trace.why_cut());
  if (run.report.trace.empty() || run.options.schedule.kind() == Schedule::Kind::kReplay) return "";
  const std::filesystem::path folder = run.files.folder.empty() ? testing::TempDir() : run.files.folder;
  std::error_code ignored;  // save() tells
  std::filesystem::create_directories(folder, ignored);
  const std::string path = folder / absl::StrCat(file_name(), ".rltrace");
  if (const absl::Status saved = run.report.trace.save(path); !saved.ok()) return absl::StrCat("\n", message_of(saved));
  return absl::StrCat("\nreplay it: ", rerun_of_run(runs, internal::for_this_test(rerun_command(run.options, path))));
}

std::string MultiThreadedTestCase::State::save_run(const EndedRun& run) const {
  if (run.files.reports.empty()) return "";
  RunReport report = run.report;
  if (report.kept != nullptr) {
    for (const internal::RankFailure& failure : run.failures) {
      if (!failure.failed()) continue;
      report.kept->failures.push_back(
          absl::StrCat(sv(base_name(failure.file)), ":", failure.line, ": ", failure.text()));
    }
  }
  write_failed_run(file_name(), &report);
  return absl::StrCat("\n", report.run_file);
}

std::string MultiThreadedTestCase::State::file_name() const {
  const testing::TestInfo& test = running_test_info();
  const std::string name = absl::StrCat(program_name(), ".", test.test_suite_name(), ".", test.name(),
                                        runs > 1 ? absl::StrCat(".run", runs) : "");
  return absl::StrReplaceAll(name, {{"/", "_"}});
}

void MultiThreadedTestCase::seeds(int n, absl::FunctionRef<void()> body, uint64_t first, CodeSite code) {
  WorldOptions asked{.engine = engine()};
  if (absl::Status status = apply_environment(&asked); !status.ok()) {
    internal::report_part(TestPartResult::kFatalFailure, code.file, code.line, message_of(status));
    return;
  }
  const auto others_choose = absl::MakeCleanup([this] {
    state_->schedule.reset();
    state_->in_round = false;
  });
  if (names_schedule(asked)) {
    // Runs that the environment does not mean are made as they were when that one failed: under its schedule, or that
    // which its trace was recorded under.
    state_->schedule = asked.schedule;
    if (const Trace* const trace = asked.schedule.trace(); trace != nullptr) {
      state_->schedule.reset();
      if (absl::StatusOr<Schedule> recorded = Schedule::parse(trace->schedule()); recorded.ok())
        state_->schedule = *recorded;
    }
    body();
    return;
  }
  const int begun = internal::runs_of_this_test();
  state_->in_round = true;
  for (int i = 0; i < n; ++i) {
    const int before = failed_parts();
    internal::runs_of_this_test() = begun;
    asked.schedule = Schedule::seeded(first + static_cast<uint64_t>(i));
    state_->schedule = asked.schedule;
    const std::string text = absl::StrCat("schedule ", asked.schedule.text(), " (", i + 1, " of at most ", n,
                                          "); run it again: ", internal::for_this_test(rerun_command(asked)));
    try {
      const testing::ScopedTrace trace(code.file, code.line, text);
      body();
    } catch (...) {
      internal::report_part(TestPartResult::kNonFatalFailure, code.file, code.line, absl::StrCat("threw in ", text));
      throw;
    }
    if (failed_parts() != before) break;
  }
}

const std::string& MultiThreadedTestCase::rank_output(int rank) const {
  static const std::string* const nothing = new std::string;
  const std::vector<std::string>& outputs = state_->outputs;
  return static_cast<size_t>(rank) < outputs.size() ? outputs[static_cast<size_t>(rank)] : *nothing;
}

}  // namespace rankloom
