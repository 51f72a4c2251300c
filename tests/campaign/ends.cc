#include "tests/campaign/ends.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/base/text.h"
#include "sim/schedule/policies.h"
#include "tests/campaign/rank_run.h"

namespace rankloom {

namespace {

using State = RunReport::Outcome::State;

constexpr const char* kPlanned = "planned";          // PlannedError
constexpr const char* kCrashed = "crashed by plan";  // an exception that no program catches

// The ends that a job may have, by the kind of the error that came first.
struct Ends {
  std::set<std::string> kinds;
  std::map<std::string, std::set<int>> ranks;  // by kind: those that may have that error first; none: any
  bool must_fail = false;
  std::string why;

  void may(const std::string& what, std::initializer_list<const char*> more) {
    for (const char* const kind : more) kinds.insert(kind);
    absl::StrAppend(&why, why.empty() ? "" : ", ", what);
  }
  void must(const std::string& what, std::initializer_list<const char*> more) {
    may(what, more);
    must_fail = true;
  }
};

// How a rank ended: kPlanned, kCrashed or a DistError's kind; wrong: an exception that is none of these.
struct End {
  std::string kind;
  std::optional<std::string> wrong;
};

End end_of(const RunReport::Outcome& outcome) {
  if (outcome.state == State::kRunning) return {"", "has not ended"};
  const bool returned = outcome.state == State::kReturned;
  if (returned != (outcome.exception == nullptr)) return {"", "has returned with an exception, or failed without one"};
  if (returned) return {};
  try {
    std::rethrow_exception(outcome.exception);
  } catch (const DistError& error) {
    const std::string kind(internal::error_kind_name(error.kind()));
    const std::string text = error.what();
    if (text.size() < 20 || !text.starts_with(kind + ": "))
      return {"", absl::StrCat("an error without a text: ", text)};
    if (absl::StrContains(text, "the run did not end within") ||
        internal::is_error_of_replay(internal::message_of(error.status())))
      return {"", text};
    return {kind, {}};
  } catch (const PlannedError&) {
    return {kPlanned, {}};
  } catch (const std::exception& error) {
    return {"", absl::StrCat("another exception: ", error.what())};
  } catch (...) {
    if (absl::StrContains(outcome.text, "crashed by the fault plan")) return {kCrashed, {}};
    return {"", absl::StrCat("an exception that is no std::exception: ", outcome.text)};
  }
}

// Whether the group of an act has another one later; of these that all members make, or any.
bool has_more(const Plan& plan, size_t act, bool of_all) {
  const std::vector<Act>& acts = plan.job().acts;
  for (size_t i = act + 1; i < acts.size(); ++i) {
    const Act& later = acts[i];
    if (plan.where(i) == nullptr) continue;
    const bool here = later.group == acts[act].group && later.dim == acts[act].dim;
    const bool second = later.type() == ActKind::kTwoGroups && later.a == acts[act].group && later.b == acts[act].dim;
    const bool by_all = later.type() == ActKind::kCollective || later.type() == ActKind::kMonitored;
    if (of_all ? here && by_all : here || second) return true;
  }
  return false;
}

void add_act(const Plan& plan, size_t at, Ends* ends) {
  const Act& act = plan.job().acts[at];
  const Partition& where = *plan.where(at);
  const std::string name(act_name(act.type()));
  const bool member = where.has(act.rank);
  const bool has_others = member && where.of(act.rank).size() > 1;
  switch (act.type()) {
    case ActKind::kThrow:
      ends->ranks[kPlanned].insert(act.rank);
      return ends->must(name, {kPlanned});
    case ActKind::kAbortWorld:
      return ends->must(name, {"Aborted"});
    case ActKind::kAbortGroup:
      if (member) ends->may(name, {"Aborted"});
      ends->must_fail |= member && has_more(plan, at, /*of_all=*/true);
      return;
    case ActKind::kDropWork:  // Aborted where a stream has the call
      return ends->may(name, {"RankFailed", "Aborted"});
    // With works that are open, or with peers that wait for it. Mismatch where threads are free and stand still while
    // the rank is on its way out: a message from anyone might not have come from it then.
    case ActKind::kLeave:
      return ends->may(name, {"RankFailed", "Aborted", "Deadlock", "Mismatch"});
    case ActKind::kOtherCall:  // Aborted where a member comes to a group that has failed
      if (has_others) ends->must(name, {"Mismatch", "Aborted"});
      return;
    case ActKind::kGroupTimeout:  // Mismatch where others come to the group with their next calls
      if (!has_others) return;
      if (act.a == 5) return ends->must(name, {"Timeout"});
      // A group's timeout does not keep a job that is stuck from being a deadlock.
      if (!has_more(plan, at, /*of_all=*/false))
        return act.a == 2 ? ends->must(name, {"Timeout", "Deadlock"}) : ends->must(name, {"Timeout"});
      return ends->must(name, {"Timeout", "Mismatch", "Aborted", "Deadlock"});
    default:
      no_such("act that ends badly", act.kind);
  }
}

void add_fault(const Fault& fault, bool others_may_leave, bool doubles, Ends* ends) {
  const std::string name(internal::fault_kind_name(fault.kind));
  switch (fault.kind) {
    case Fault::Kind::kCrash:
      ends->ranks[kCrashed].insert(fault.rank);
      if (!others_may_leave) ends->ranks["RankFailed"].insert(fault.rank);
      return ends->must(name, {"RankFailed", kCrashed});
    case Fault::Kind::kHang:
      return ends->must(name, {"Deadlock"});
    case Fault::Kind::kDrop:  // where another message of its tag comes instead: Mismatch, and Aborted behind it
      ends->may(name, {"Deadlock", "Mismatch", "Aborted"});
      ends->must_fail |= !others_may_leave && !doubles;  // which let the receiver go, or give it another message
      return;
    case Fault::Kind::kDuplicate:
      return ends->may(name, {"Mismatch", "Aborted", "Deadlock"});
    case Fault::Kind::kAbort:
      return ends->may(name, {"Aborted"});
    case Fault::Kind::kStoreTimeout:  // Deadlock where others wait for what was not set
      return ends->may(name, {"Timeout", "Deadlock"});
    case Fault::Kind::kDelay:
    case Fault::Kind::kCorrupt:
      return;
  }
}

Ends ends_of(const Plan& plan, const RunReport& report) {
  Ends ends;
  const Job& job = plan.job();
  const bool leaves = std::any_of(job.acts.begin(), job.acts.end(), [](const Act& act) { return act.ends_badly(); });
  for (size_t i = 0; i < job.acts.size(); ++i) {
    if (job.acts[i].ends_badly() && plan.where(i) != nullptr) add_act(plan, i, &ends);
  }
  const bool doubles = std::any_of(report.faults.begin(), report.faults.end(),
                                   [](const Fault& fault) { return fault.kind == Fault::Kind::kDuplicate; });
  for (const Fault& fault : report.faults) add_fault(fault, leaves, doubles, &ends);
  return ends;
}

// Of a fault that happened the report has the rank, and its call by number.
bool is_planned(const Job& job, const Fault& fault) {
  return job.fault_rate != 0 || std::any_of(job.faults.begin(), job.faults.end(), [&](const Fault& planned) {
           return planned.kind == fault.kind && (planned.rank < 0 || planned.rank == fault.rank);
         });
}

}  // namespace

std::optional<std::string> wrong_end(const Plan& plan, const JobRun& run) {
  const RunReport& report = run.report;
  for (const Fault& fault : report.faults) {
    if (!is_planned(plan.job(), fault)) return absl::StrCat("a fault that nobody planned: ", fault.text());
  }
  std::vector<End> ends;
  for (const RunReport::Outcome& outcome : report.outcomes) {
    ends.push_back(end_of(outcome));
    if (ends.back().wrong.has_value()) return absl::StrCat("rank ", ends.size() - 1, ": ", *ends.back().wrong);
  }
  const bool all_returned = std::all_of(ends.begin(), ends.end(), [](const End& end) { return end.kind.empty(); });
  if (report.ok() != (all_returned && report.cause.ok())) {
    return absl::StrCat(report.ok() ? "the report is ok, and " : "the report is not ok, and ",
                        all_returned ? "all ranks returned; " : "a rank did not return; ", report.cause.ToString());
  }
  const Ends planned = ends_of(plan, report);
  if (report.ok()) {
    if (planned.must_fail) return absl::StrCat("went well in spite of ", planned.why);
    return std::nullopt;
  }
  if (report.text().size() < 20) return absl::StrCat("a report without a text: ", report.text());
  const std::string first = report.first_failed >= 0 ? ends[static_cast<size_t>(report.first_failed)].kind
                                                     : std::string(internal::error_kind_name(error_kind(report.cause)));
  const auto ranks = planned.ranks.find(first);
  if (ranks != planned.ranks.end() && ranks->second.count(report.first_failed) == 0) {
    return absl::StrCat("rank ", report.first_failed, " failed first, want rank ", absl::StrJoin(ranks->second, " or "),
                        ": ", report.text());
  }
  if (planned.kinds.count(first) != 0) return std::nullopt;
  return absl::StrCat("failed by ", first.empty() ? "a rank that returned" : first, ", want ",
                      planned.kinds.empty() ? "no failure" : absl::StrJoin(planned.kinds, " or "),
                      planned.why.empty() ? "" : " after ", planned.why, ": ", report.text());
}

}  // namespace rankloom
