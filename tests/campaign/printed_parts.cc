#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/plan.h"
#include "tests/campaign/printed_jobs.h"
#include "tests/campaign/store_script.h"
#include "tests/campaign/values.h"

namespace rankloom {

namespace {

const char* const kWhole[] = {"two worlds",      "faults",   "fault rate",     "order of groups",   "no recorder",
                              "mesh with names", "no color", "reversed ranks", "second by a helper"};

// Whether some member's tensor lies in place: a root has both lists.
bool is_ever_within(OpType op) {
  const JobCall call = {.op = static_cast<int>(op), .count = 1, .in_place = 1};
  return within_of(call, shape_of(call, /*size=*/2, /*member=*/0)) != Within::kNothing;
}

std::string part(std::string_view of, int number) { return absl::StrCat(std::string(of), " ", number); }

// One job's.
class Parts {
 public:
  explicit Parts(const Job& job) : job_(job), plan_(job) {}

  std::set<std::string> find() {
    if (job_.two_worlds != 0) add("two worlds");
    if (!job_.faults.empty()) add("faults");
    if (job_.fault_rate != 0) add("fault rate");
    if (job_.order != 0) add("order of groups");
    if (job_.recorded == 0) add("no recorder");
    for (int bit = 0; 1 << bit < kWorldOptions; ++bit) {
      if ((job_.options >> bit & 1) != 0) add(part("option", bit));
    }
    const std::string schedule = exploring(job_).text();
    add(absl::StrCat("schedule ", schedule.substr(0, schedule.find(':'))));
    for (size_t i = 0; i < job_.acts.size(); ++i) {
      if (plan_.where(i) != nullptr) find(job_.acts[i], *plan_.where(i));
    }
    return std::move(parts_);
  }

 private:
  void add(std::string part) {
    if (counts_) parts_.insert(std::move(part));
  }

  void find(const Act& act, const Partition& where) {
    counts_ = !job_.may_fail() || act.ends_badly();  // the run may end before the other acts
    const bool is_call = act.type() >= ActKind::kCollective && act.type() < ActKind::kWait;
    if (is_call) return find_call(act, where);
    if (act.type() == ActKind::kWait) {
      if (open_.erase({act.rank, act.a}) != 0) {
        add("act wait");
        add(part("wait", act.b));
      }
      return;
    }
    if (act.type() == ActKind::kDropWork && open_.count({act.rank, act.a}) == 0) return;
    const bool of_member = act.type() == ActKind::kGroupTimeout || act.type() == ActKind::kAbortGroup ||
                           act.type() == ActKind::kOptions || act.type() == ActKind::kOtherCall;
    if (of_member && (!where.has(act.rank) || where.of(act.rank).size() == 1)) return;
    add(absl::StrCat("act ", std::string(act_name(act.type()))));
    if (act.type() == ActKind::kRefused) add(part("refused", act.a));
    if (act.type() == ActKind::kStoreMeeting && job_.world_size > 1) add(part("meeting", act.a));
    if (act.type() == ActKind::kSharedCount && job_.world_size > 1) add(part("count", act.a * 2 + act.b));
    if (act.type() == ActKind::kStoreScript) add(part("store", act.a));
    if (act.type() == ActKind::kGroupTimeout) add(part("timeout", act.a));
    if (act.type() == ActKind::kMesh && act.b == 1) add("mesh with names");
    if (act.type() == ActKind::kSplitGroup && act.b == 1) add("no color");
    if (act.type() == ActKind::kInitGroup && act.c == 1 && plan_.made(act.id, 0)->sets[0].size() > 1 && act.a != 0) {
      add("reversed ranks");
    }
  }

  void find_call(const Act& act, const Partition& where) {
    add(absl::StrCat("act ", std::string(act_name(act.type()))));
    add(part("way", act.way));
    if (static_cast<Way>(act.way) == Way::kEvent) add(part("event", act.c));
    if (act.type() == ActKind::kTwoGroups && act.c == 1) add("second by a helper");
    if (act.type() == ActKind::kCollective && act.call.order != 0) add(part("order in way", act.way));
    if (act.type() == ActKind::kCollective && act.call.timed != 0) add(part("timed in way", act.way));
    if (act.type() == ActKind::kCollective || act.type() == ActKind::kTwoGroups) find_op(act.call, where);
    for (const JobCall& each : act.parts) find_op(each, where);
    if (static_cast<Way>(act.way) == Way::kAtOnce || static_cast<Way>(act.way) == Way::kGivesAway) return;
    for (int rank = 0; rank < job_.world_size; ++rank) {
      const bool message = act.type() == ActKind::kMessage || act.type() == ActKind::kCrossed;
      const int n = where.has(rank) ? static_cast<int>(where.of(rank).size()) : 0;
      const bool takes_part =
          !message || (n > 0 && (where.member(rank) == act.a % n || where.member(rank) == act.b % n));
      if (where.has(rank) && takes_part) open_.insert({rank, act.id});
    }
  }

  void find_op(const JobCall& call, const Partition& where) {
    add(absl::StrCat("op ", std::string(op_name(call.type()))));
    if (call.in_place != 0 && is_ever_within(call.type()) &&
        std::any_of(where.sets.begin(), where.sets.end(), [](const auto& set) { return set.size() > 1; })) {
      add(absl::StrCat("in place ", std::string(op_name(call.type()))));
    }
    if (call.reduce != 0) add(part("reduce", call.reduce));
  }

  const Job& job_;
  const Plan plan_;
  std::set<std::pair<int, int>> open_;  // rank, act
  std::set<std::string> parts_;
  bool counts_ = true;
};

}  // namespace

std::set<std::string> parts_of(const Job& job) { return Parts(job).find(); }

std::set<std::string> all_parts() {
  std::set<std::string> parts(std::begin(kWhole), std::end(kWhole));
  const auto numbered = [&](std::string_view of, int first, int end) {
    for (int i = first; i < end; ++i) parts.insert(part(of, i));
  };
  numbered("way", 0, static_cast<int>(Way::kCount));
  numbered("order in way", 0, static_cast<int>(Way::kCount));
  numbered("timed in way", 0, static_cast<int>(Way::kCount));
  numbered("wait", 0, static_cast<int>(WaitWay::kCount));
  numbered("reduce", 1, internal::kReduceOpCount);
  numbered("refused", 0, kRefusals);
  numbered("meeting", 0, kMeetings);
  numbered("count", 0, 4);
  numbered("store", 0, static_cast<int>(ScriptStore::kCount));
  numbered("timeout", 0, kTimeouts);
  numbered("event", 0, kEventWays);
  for (int bit = 0; 1 << bit < kWorldOptions; ++bit) parts.insert(part("option", bit));
  for (int kind = 0; kind < static_cast<int>(ActKind::kCount); ++kind) {
    parts.insert(absl::StrCat("act ", std::string(act_name(static_cast<ActKind>(kind)))));
  }
  for (const OpType op : kCollectives) {
    parts.insert(absl::StrCat("op ", std::string(op_name(op))));
    if (is_ever_within(op)) parts.insert(absl::StrCat("in place ", std::string(op_name(op))));
  }
  for (const char* const schedule : {"pct", "starve", "late", "round_robin", "seeded"}) {
    parts.insert(absl::StrCat("schedule ", schedule));
  }
  return parts;
}

}  // namespace rankloom
