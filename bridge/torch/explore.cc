#include "bridge/torch/explore.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "bridge/torch/job.h"
#include "bridge/torch/python_frames.h"
#include "bridge/torch/report_dict.h"
#include "harness/explore/search.h"
#include "rankloom/explore.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"
#include "world/run_options.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

Strategy strategy_of(const std::string& name) {
  const Strategy known[] = {Strategy::exhaustive(), Strategy::pct(), Strategy::starve(), Strategy::late_completion(),
                            Strategy::random()};
  for (const Strategy& strategy : known) {
    if (strategy.name() == name) return strategy;
  }
  absl::string_view depth = name;
  int changes = 3;
  if (name == "pct" ||
      (absl::ConsumePrefix(&depth, "pct(") && absl::ConsumeSuffix(&depth, ")") && absl::SimpleAtoi(depth, &changes)))
    return Strategy::pct(changes);
  throw py::value_error(absl::StrCat(
      "explore: a strategy is \"", name, "\", want one of ",
      absl::StrJoin(known, ", ", [](std::string* out, const Strategy& strategy) { out->append(strategy.name()); })));
}

ExploreOptions options_of(const Asked& asked, const py::object& progress) {
  WorldOptions from_environment;
  if (const absl::Status wrong = apply_environment_to_run(asked.number, &from_environment); !wrong.ok())
    throw py::value_error(std::string(wrong.message()));
  refuse_fibers(from_environment);
  ExploreOptions options;
  options.world = {.world_size = asked.ranks, .engine = EngineKind::kThreads};
  if (asked.timeout.has_value()) options.world.timeout = absl::Seconds(*asked.timeout);
  absl::StatusOr<FaultPlan> faults = FaultPlan::parse(asked.faults);
  if (!faults.ok()) throw py::value_error(std::string(faults.status().message()));
  options.world.faults = *std::move(faults);
  options.strategies.clear();
  for (const std::string& name : asked.strategies) options.strategies.push_back(strategy_of(name));
  options.max_runs = asked.runs;
  options.max_time = asked.seconds.has_value() ? absl::Seconds(*asked.seconds) : absl::InfiniteDuration();
  options.first_seed = asked.first_seed;
  options.vary_faults = asked.vary_faults;
  options.min_ranks = asked.min_ranks;
  options.max_shrink_runs = asked.shrink_runs;
  options.max_steps = asked.max_steps;
  options.checks.leaks = asked.leaks;
  options.checks.groups = asked.groups;
  options.checks.store_keys = asked.store_keys;
  options.checks.store_values = asked.store_values;
  if (!progress.is_none()) {
    options.progress = [&progress](const ExploreOptions::Progress& now) {
      const py::gil_scoped_acquire gil;
      progress(now.strategy, now.runs, absl::ToDoubleSeconds(now.elapsed));
    };
  }
  return options;
}

py::dict share_dict(const ExploreReport::Share& share) {
  py::dict result;
  result["strategy"] = share.strategy;
  result["runs"] = share.runs;
  result["schedules"] = share.schedules;
  result["open"] = share.open;
  result["finished"] = share.finished;
  result["unseen"] = share.unseen;
  return result;
}

py::dict failure_dict(const ExploreReport::Failure& failure, std::vector<std::string> flight) {
  py::dict result;
  result["headline"] = failure.headline;
  result["strategy"] = failure.strategy;
  result["run"] = failure.run;
  result["found"] = failure.found.text();
  result["ranks"] = failure.world.world_size;
  result["schedule"] = failure.world.schedule.text();
  result["faults"] = failure.world.faults.text();
  result["failures"] = failure.failures;
  result["story"] = failure.story;
  result["rerun"] = failure.rerun;
  result["found_switches"] = failure.found_switches;
  result["switches"] = failure.world.schedule.switches().size();
  result["shrink_runs"] = failure.shrink_runs;
  RunReport report = failure.report;
  report.rerun = failure.rerun;
  result["report"] = report_dict({std::move(report), std::move(flight)});
  return result;
}

// Changes that Python has seen and no schedule shows. Python is asked when all runs were made: the last may show it.
void add_unseen(const py::object& ranks, ExploreReport* report) {
  for (ExploreReport::Share& share : report->shares) {
    if (!share.finished || report->failure.has_value()) continue;
    const auto unseen = ranks.attr("unseen")().cast<std::vector<std::string>>();
    share.unseen.insert(share.unseen.end(), unseen.begin(), unseen.end());
    report->verified = report->verified && unseen.empty();
  }
}

}  // namespace

py::dict explore(const Asked& asked, const py::object& ranks, const py::object& progress) {
  ExploreOptions options = options_of(asked, progress);
  Job* running = nullptr;
  options.world.whereabouts = [&running] { return running != nullptr ? running->stacks() : ""; };
  int64_t runs = 0;
  JobReport latest;
  const auto run = [&](const std::shared_ptr<World>& world, internal::Program, std::vector<std::string>*,
                       absl::FunctionRef<void()> look) {
    ++runs;
    StepRecord* const record = world->scheduler().record();
    const std::shared_ptr<Job> job = Job::explored(world, asked.swap_random);
    running = job.get();
    const absl::Cleanup ended = [&] { running = nullptr; };
    bool kept = false;
    {
      const py::gil_scoped_acquire gil;
      ranks.attr("run")(job);
      // A run that repeats the first one may differ from it; one with texts is the smallest that fails.
      kept = (record != nullptr && !record->texts().empty()) || (runs == 2 && options.checks.twice);
      ranks.attr("end")(kept);
    }
    RunReport report;
    if (kept) {
      latest = job->report();
      report = latest.run;
    } else {
      report = world->report();
    }
    look();
    return report;
  };
  const CodeSite code = python_site();
  ExploreReport report;
  {
    const GilRelease no_gil;
    const auto nothing = [](RankContext&) {};
    report = search(options, asked.number, nothing, run, code);
    if (!latest.flight.empty()) set_last_report(latest);
  }
  if (!report.error.ok()) throw py::value_error(std::string(report.error.message()));
  add_unseen(ranks, &report);
  py::dict result;
  result["runs"] = report.runs;
  result["seconds"] = absl::ToDoubleSeconds(report.elapsed);
  result["verified"] = report.verified;
  result["summary"] = report.summary();
  result["text"] = report.text();
  py::list shares;
  for (const ExploreReport::Share& share : report.shares) shares.append(share_dict(share));
  result["shares"] = shares;
  result["failure"] =
      report.failure.has_value() ? py::object(failure_dict(*report.failure, std::move(latest.flight))) : py::none();
  return result;
}

void observe(std::string_view name, std::string_view text, std::string_view bytes) {
  int rank = -1;
  const std::shared_ptr<Job> job = Job::current(&rank);
  if (job == nullptr) throw std::runtime_error("observe: this thread is no rank, want a rank's own");
  const GilRelease no_gil;
  observe_bytes(job->world().context(rank), name, text, bytes);
}

}  // namespace rankloom::bridge
