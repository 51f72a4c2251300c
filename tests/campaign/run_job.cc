#include "tests/campaign/run_job.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/campaign/rank_run.h"

namespace rankloom {

namespace {

using State = RunReport::Outcome::State;

std::string sight_text(const Sight& sight) {
  constexpr size_t kMost = 64;
  const std::string shown = absl::BytesToHexString(sight.saw.substr(0, kMost));
  return absl::StrCat("act ", sight.act, ": ", sight.saw.size(), " bytes, ", shown,
                      sight.saw.size() > kMost ? "..." : "", " (\"", absl::CHexEscape(sight.saw.substr(0, kMost)),
                      "\")");
}

// The first sight that is not what the oracle says; nullopt: none. `whole`: the rank must have seen everything.
std::optional<std::string> first_wrong_sight(const std::vector<Sight>& want, const std::vector<Sight>& have,
                                             bool whole) {
  for (size_t i = 0; i < have.size(); ++i) {
    if (i == want.size()) return absl::StrCat("saw more than the oracle: ", sight_text(have[i]));
    if (!(have[i] == want[i])) {
      return absl::StrCat("saw ", sight_text(have[i]), "\n  the oracle says ", sight_text(want[i]));
    }
  }
  if (whole && have.size() < want.size()) return absl::StrCat("did not come to ", sight_text(want[have.size()]));
  return std::nullopt;
}

// Ranks may see other things after it: other data, or a Timeout of the store where there is a value.
bool changes_sights(const Fault& fault) {
  return fault.kind == Fault::Kind::kCorrupt || fault.kind == Fault::Kind::kDuplicate ||
         fault.kind == Fault::Kind::kStoreTimeout;
}

// How a rank may fail: by an error of rankloom's with a text, or as planned.
std::optional<std::string> wrong_end(const RunReport::Outcome& outcome, bool may_crash) {
  if (outcome.state == State::kRunning) return "has not ended";
  if (outcome.exception == nullptr) return std::nullopt;
  try {
    std::rethrow_exception(outcome.exception);
  } catch (const DistError& error) {
    if (std::string_view(error.what()).size() < 20) return absl::StrCat("an error without a text: ", error.what());
  } catch (const PlannedError&) {
  } catch (const std::exception& error) {
    return absl::StrCat("another exception: ", error.what());
  } catch (...) {
    // A crash by plan is nothing that a program could catch.
    if (may_crash && absl::StrContains(outcome.text, "crashed by the fault plan")) return std::nullopt;
    return absl::StrCat("an exception that is no std::exception: ", outcome.text);
  }
  return std::nullopt;
}

// The rank that goes its own way at an act; -1: none.
int departs(const Act& act) {
  return act.type() == ActKind::kLeave || act.type() == ActKind::kDropWork ? act.rank : -1;
}

}  // namespace

std::string Gear::text() const {
  return absl::StrCat(std::string(internal::engine_kind_name(engine)), " ", schedule.text());
}

JobRun run_job(const Plan& plan, const Gear& gear) {
  const Job& job = plan.job();
  JobRun run;
  run.log.resize(static_cast<size_t>(job.world_size));
  run.drawn.resize(static_cast<size_t>(job.world_size));
  WorldOptions options{.world_size = job.world_size, .engine = gear.engine, .schedule = gear.schedule};
  options.seed = static_cast<uint64_t>(job.seed);
  options.recorded_calls = job.recorded;
  options.faults = job.faults;
  options.max_steps = gear.schedule.deterministic() ? 1'000'000 : 0;
  options.on_warning = [](const std::string&) {};
  World world(std::move(options));
  run.report = world.run([&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank());
    run_rank(plan, rank, &run.log[r], &run.drawn[r]);
  });
  return run;
}

std::optional<std::string> wrong_with(const Plan& plan, const JobLog& expected, const JobRun& run) {
  const Job& job = plan.job();
  const RunReport& report = run.report;
  if (!job.may_fail() && !report.ok()) return absl::StrCat("a job without a fault failed: ", report.text());
  // Of the faults that are drawn some fit no call.
  const auto wrong = std::find_if(report.notes.begin(), report.notes.end(),
                                  [](const std::string& note) { return !absl::StartsWith(note, "the fault "); });
  if (!job.may_fail() && wrong != report.notes.end()) return absl::StrCat("a note: ", *wrong);
  if (report.ok() && !report.cause.ok()) return "the report is ok and has a cause";
  if (!report.ok() && report.text().size() < 20) return absl::StrCat("a report without a text: ", report.text());
  if (std::any_of(report.faults.begin(), report.faults.end(), changes_sights)) return std::nullopt;
  for (int rank = 0; rank < job.world_size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const bool departed =
        std::any_of(job.acts.begin(), job.acts.end(), [&](const Act& act) { return departs(act) == rank; });
    if (const auto wrong = wrong_end(report.outcomes[r], !job.faults.empty()))
      return absl::StrCat("rank ", rank, ": ", *wrong);
    if (const auto wrong = first_wrong_sight(expected[r].seen, run.log[r].seen, report.ok() && !departed)) {
      return absl::StrCat("rank ", rank, " ", *wrong);
    }
    if (job.may_fail()) continue;  // nobody waits for these calls, so the run may end before them
    for (const auto& [act, saw] : expected[r].late) {
      const auto it = run.log[r].late.find(act);
      if (it == run.log[r].late.end()) return absl::StrCat("rank ", rank, ": an owner has not ended: act ", act);
      if (it->second != saw) {
        return absl::StrCat("rank ", rank, ": an owner saw ", sight_text({act, it->second}), "\n  the oracle says ",
                            sight_text({act, saw}));
      }
    }
  }
  return std::nullopt;
}

}  // namespace rankloom
