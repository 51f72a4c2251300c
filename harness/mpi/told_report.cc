#include "harness/mpi/told_report.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "collectives/mpi/wire.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {
namespace {

void write_schedule(const Schedule& schedule, WireWriter* out) {
  const bool replays = schedule.kind() == Schedule::Kind::kReplay;
  out->number(schedule.kind()).text(replays ? schedule.trace()->serialize() : schedule.text());
}

Schedule read_schedule(WireReader* in) {
  const auto kind = in->number<Schedule::Kind>();
  const std::string text = in->text();
  if (kind == Schedule::Kind::kReplay) {
    absl::StatusOr<Trace> trace = Trace::parse(text);
    return trace.ok() ? Schedule::replay(*std::move(trace)) : Schedule();
  }
  if (kind == Schedule::Kind::kUnset) return {};
  return Schedule::parse(text).value_or(Schedule());
}

void write_run(const RunReport& run, WireWriter* out) {
  out->number(run.first_failed);
  write_status(run.cause, out);
  out->number(static_cast<uint64_t>(run.outcomes.size()));
  for (const RunReport::Outcome& outcome : run.outcomes) out->number(outcome.state).text(outcome.text);
  out->text(run.trace.serialize()).text(run.schedule).text(run.engine).number(run.steps);
  out->text(FaultPlan(run.faults).text());
  write_texts(run.notes, out);
  out->text(run.rerun).text(run.run_file);
}

void read_run(WireReader* in, RunReport* run) {
  run->first_failed = in->number<int>();
  run->cause = read_status(in);
  for (auto left = in->number<uint64_t>(); left > 0 && in->ok(); --left) {
    RunReport::Outcome& outcome = run->outcomes.emplace_back();
    outcome.state = in->number<RunReport::Outcome::State>();
    outcome.text = in->text();
  }
  run->trace = Trace::parse(in->text()).value_or(Trace());
  run->schedule = in->text();
  run->engine = in->text();
  run->steps = in->number<uint64_t>();
  if (const absl::StatusOr<FaultPlan> faults = FaultPlan::parse(in->text()); faults.ok())
    run->faults = faults->faults();
  run->notes = read_texts(in);
  run->rerun = in->text();
  run->run_file = in->text();
}

void write_failure(const ExploreReport::Failure& failure, WireWriter* out) {
  out->text(failure.headline).text(failure.strategy).number(failure.run);
  write_schedule(failure.found, out);
  out->number(failure.world.world_size);
  write_schedule(failure.world.schedule, out);
  out->text(failure.world.faults.text());
  write_run(failure.report, out);
  write_texts(failure.failures, out);
  out->text(failure.story).text(failure.rerun).number(failure.found_switches).number(failure.shrink_runs);
}

ExploreReport::Failure read_failure(WireReader* in, const WorldOptions& world) {
  ExploreReport::Failure failure;
  failure.headline = in->text();
  failure.strategy = in->text();
  failure.run = in->number<int64_t>();
  failure.found = read_schedule(in);
  failure.world = world;
  failure.world.world_size = in->number<int>();
  failure.world.schedule = read_schedule(in);
  failure.world.faults = FaultPlan::parse(in->text()).value_or(FaultPlan());
  read_run(in, &failure.report);
  failure.failures = read_texts(in);
  failure.story = in->text();
  failure.rerun = in->text();
  failure.found_switches = in->number<int>();
  failure.shrink_runs = in->number<int64_t>();
  return failure;
}

}  // namespace

std::string encode_report(const ExploreReport& report) {
  WireWriter out;
  out.number(report.runs).number(absl::ToInt64Nanoseconds(report.elapsed)).number(report.verified);
  write_status(report.error, &out);
  out.number(static_cast<uint64_t>(report.shares.size()));
  for (const ExploreReport::Share& share : report.shares) {
    out.text(share.strategy).number(share.runs).number(share.schedules).number(share.open).number(share.finished);
    write_texts(share.unseen, &out);
  }
  write_texts(report.process_notes, &out);
  write_texts(report.missed_faults, &out);
  out.number(report.failure.has_value());
  if (report.failure.has_value()) write_failure(*report.failure, &out);
  return out.take();
}

ExploreReport decode_report(std::string_view bytes, const WorldOptions& world) {
  WireReader in(bytes);
  ExploreReport report;
  report.runs = in.number<int64_t>();
  report.elapsed = absl::Nanoseconds(in.number<int64_t>());
  report.verified = in.number<bool>();
  report.error = read_status(&in);
  for (auto left = in.number<uint64_t>(); left > 0 && in.ok(); --left) {
    ExploreReport::Share& share = report.shares.emplace_back();
    share.strategy = in.text();
    share.runs = in.number<int64_t>();
    share.schedules = in.number<int64_t>();
    share.open = in.number<int64_t>();
    share.finished = in.number<bool>();
    share.unseen = read_texts(&in);
  }
  report.process_notes = read_texts(&in);
  report.missed_faults = read_texts(&in);
  if (in.number<bool>()) report.failure = read_failure(&in, world);
  if (in.ok()) return report;
  ExploreReport none;
  none.error = invalid_argument("explore: process 0 tells of the search in ", bytes.size(),
                                " bytes that make no sense here: another version of rankloom?");
  return none;
}

}  // namespace rankloom::internal
