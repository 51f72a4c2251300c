#include "tests/campaign/run_job.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/campaign/ends.h"
#include "tests/campaign/rank_run.h"

namespace rankloom {

namespace {

// "act 12, collective scatter in the group of act 3"; in that of all ranks without the last part.
std::string act_text(const Job& job, int id) {
  const auto act = std::find_if(job.acts.begin(), job.acts.end(), [id](const Act& one) { return one.id == id; });
  if (act == job.acts.end()) return absl::StrCat("act ", id);
  std::string text = absl::StrCat("act ", id, ", ", std::string(act_name(act->type())));
  if (act->type() == ActKind::kCollective) absl::StrAppend(&text, " ", std::string(op_name(act->call.type())));
  if (act->group != 0) absl::StrAppend(&text, " in the group of act ", act->group);
  return text;
}

std::string sight_text(const Job& job, const Sight& sight) {
  constexpr size_t kMost = 64;
  const std::string shown = absl::BytesToHexString(sight.saw.substr(0, kMost));
  return absl::StrCat(act_text(job, sight.act), ": ", sight.saw.size(), " bytes, ", shown,
                      sight.saw.size() > kMost ? "..." : "", " (\"", absl::CHexEscape(sight.saw.substr(0, kMost)),
                      "\")");
}

// ", wrong from byte 4 on"; empty: from the first on, or another size.
std::string first_byte_text(const std::string& have, const std::string& want) {
  const auto at = std::mismatch(have.begin(), have.end(), want.begin(), want.end()).first - have.begin();
  return at == 0 || have.size() != want.size() ? "" : absl::StrCat(", wrong from byte ", at, " on");
}

// The first sight that is not what the oracle says; nullopt: none. `whole`: the rank must have seen everything.
std::optional<std::string> first_wrong_sight(const Job& job, const std::vector<Sight>& want,
                                             const std::vector<Sight>& have, bool whole) {
  for (size_t i = 0; i < have.size(); ++i) {
    if (i == want.size()) return absl::StrCat("saw more than the oracle: ", sight_text(job, have[i]));
    if (!(have[i] == want[i])) {
      return absl::StrCat("saw ", sight_text(job, have[i]), first_byte_text(have[i].saw, want[i].saw),
                          "\n  the oracle says ", sight_text(job, want[i]));
    }
  }
  if (whole && have.size() < want.size()) return absl::StrCat("did not come to ", sight_text(job, want[have.size()]));
  return std::nullopt;
}

// The first sight of another act than the oracle's; nullopt: none.
std::optional<std::string> first_other_act(const Job& job, const std::vector<Sight>& want,
                                           const std::vector<Sight>& have) {
  for (size_t i = 0; i < have.size(); ++i) {
    if (i == want.size() || have[i].act != want[i].act)
      return absl::StrCat("came to ", sight_text(job, have[i]), ", which the oracle says nothing of there");
  }
  return std::nullopt;
}

// Ranks may see other things after it: other data, another message of a tag, or a Timeout of the store where there is a
// value.
bool changes_sights(const Fault& fault) {
  return fault.kind == Fault::Kind::kCorrupt || fault.kind == Fault::Kind::kDuplicate ||
         fault.kind == Fault::Kind::kDrop || fault.kind == Fault::Kind::kStoreTimeout;
}

// The rank that goes its own way at an act; -1: none.
int departing_rank(const Act& act) {
  return act.type() == ActKind::kLeave || act.type() == ActKind::kDropWork ? act.rank : -1;
}

}  // namespace

std::string Gear::text() const {
  return absl::StrCat(std::string(internal::engine_kind_name(engine)), " ", schedule.text());
}

// Those of Job::options change nothing that a rank sees.
WorldOptions world_options(const Job& job) {
  WorldOptions options{.world_size = job.world_size};
  options.seed = static_cast<uint64_t>(job.seed);
  options.recorded_calls = job.recorded;
  options.faults = job.fault_plan();
  if ((job.options & 1) != 0) options.late_completion = true;
  if ((job.options & 2) != 0) options.poison = true;
  options.fresh_threads = (job.options & 4) != 0;
  options.keep_run = (job.options & 8) != 0;
  if ((job.options & 16) != 0) options.timeout = absl::Hours(1);
  static_assert(kWorldOptions == 32);
  return options;
}

JobRun run_job(const Plan& plan, const Gear& gear) {
  const Job& job = plan.job();
  JobRun run;
  run.log.resize(static_cast<size_t>(job.world_size));
  run.drawn.resize(static_cast<size_t>(job.world_size));
  WorldOptions options = world_options(job);
  options.engine = gear.engine;
  options.schedule = gear.schedule;
  options.max_steps = gear.schedule.deterministic() ? 1'000'000 : 0;
  options.on_warning = [](const std::string&) {};
  const auto arrivals = job.has_whole_barriers() ? std::make_shared<Arrivals>() : nullptr;
  std::vector<Beside> beside(static_cast<size_t>(job.world_size));
  World world(std::move(options));
  run.report = world.run([&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank());
    run_rank(plan, rank, &run.log[r], &beside[r], arrivals);
  });
  for (size_t rank = 0; rank < beside.size(); ++rank) {
    run.drawn[rank] = std::move(beside[rank].drawn);
    if (!beside[rank].memory.rests())
      absl::StrAppend(&run.late, "somebody wrote to tensors of rank ", rank, " after their calls were done; ");
    if (gear.schedule.deterministic() && beside[rank].overslept > absl::ZeroDuration()) {
      absl::StrAppend(&run.late, "rank ", rank, " slept ", absl::FormatDuration(beside[rank].overslept), " too long; ");
    }
  }
  return run;
}

std::optional<std::string> wrong_with(const Plan& plan, const JobLog& expected, const JobRun& run) {
  const Job& job = plan.job();
  const RunReport& report = run.report;
  if (const auto wrong = wrong_end(plan, run)) return wrong;
  if (!run.late.empty()) return run.late;
  // Of the faults that are drawn some fit no call.
  const auto wrong = std::find_if(report.notes.begin(), report.notes.end(),
                                  [](const std::string& note) { return !absl::StartsWith(note, "the fault "); });
  if (!job.may_fail() && wrong != report.notes.end()) return absl::StrCat("a note: ", *wrong);
  for (size_t rank = 0; rank < run.drawn.size(); ++rank) {
    for (size_t other = 0; other < rank && !run.drawn[rank].empty(); ++other) {
      if (run.drawn[other].substr(0, run.drawn[other].find(' ')) ==
          run.drawn[rank].substr(0, run.drawn[rank].find(' ')))
        return absl::StrCat("ranks ", other, " and ", rank, " drew the same number");
    }
  }
  const bool changed = std::any_of(report.faults.begin(), report.faults.end(), changes_sights);
  for (int rank = 0; rank < job.world_size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const bool departed =
        std::any_of(job.acts.begin(), job.acts.end(), [&](const Act& act) { return departing_rank(act) == rank; });
    if (changed) {
      if (const auto wrong = first_other_act(job, expected[r].seen, run.log[r].seen))
        return absl::StrCat("rank ", rank, " ", *wrong);
      continue;
    }
    if (const auto wrong = first_wrong_sight(job, expected[r].seen, run.log[r].seen, report.ok() && !departed)) {
      return absl::StrCat("rank ", rank, " ", *wrong);
    }
    if (job.may_fail()) continue;  // nobody waits for these calls, so the run may end before them
    for (const auto& [act, saw] : expected[r].late) {
      const auto it = run.log[r].late.find(act);
      if (it == run.log[r].late.end()) return absl::StrCat("rank ", rank, ": an owner has not ended: act ", act);
      if (it->second != saw) {
        return absl::StrCat("rank ", rank, ": an owner saw ", sight_text(job, {act, it->second}),
                            "\n  the oracle says ", sight_text(job, {act, saw}));
      }
    }
  }
  return std::nullopt;
}

}  // namespace rankloom
