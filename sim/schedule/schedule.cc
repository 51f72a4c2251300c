#include "rankloom/schedule.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

std::string_view internal::engine_kind_name(EngineKind engine) {
  return engine == EngineKind::kThreads ? "threads" : "fibers";
}

absl::StatusOr<Schedule::BreakPoint> Schedule::BreakPoint::parse(std::string_view text) {
  Schedule::BreakPoint at;
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == last || !absl::SimpleAtoi(sv(text.substr(0, first)), &at.rank) || at.rank < 0 ||
      !absl::SimpleAtoi(sv(text.substr(last + 1)), &at.seq) || at.seq < 0) {
    return internal::invalid_argument("break point \"", sv(text), "\" is not RANK:GROUP:SEQ, such as 2:0:15");
  }
  at.group = text.substr(first + 1, last - first - 1);
  return at;
}

namespace {

// Of pct: more changes than any run has steps for.
constexpr int kMostDepth = 1'000'000;

}  // namespace

Schedule Schedule::pct(uint64_t seed, int depth, CodeSite code) {
  if (depth < 1 || depth > kMostDepth)
    refuse({.rank = -1, .group = {}, .op = "pct"}, ErrorKind::kInvalidArgument, "Schedule::pct: depth is ", depth,
           ", want 1 to ", kMostDepth, site_place(Site{.code = code}));
  return Schedule(Kind::kPct, seed, depth);
}

Schedule Schedule::replay(Trace trace) {
  // The ranks' own randomness is part of the run.
  const absl::StatusOr<Schedule> recorded = parse(trace.schedule());
  Schedule schedule(Kind::kReplay, recorded.ok() ? recorded->seed() : 0, 0);
  schedule.trace_ = std::make_shared<const Trace>(std::move(trace));
  return schedule;
}

Schedule Schedule::recorded() const {
  if (kind_ != Kind::kReplay) return *this;
  const absl::StatusOr<Schedule> parsed = parse(trace_->schedule());
  return parsed.ok() ? *parsed : *this;
}

Schedule Schedule::steered(uint64_t seed, std::vector<Schedule::Switch> switches) {
  Schedule schedule(Kind::kSteered, seed, 0);
  schedule.switches_ = std::make_shared<const std::vector<Schedule::Switch>>(std::move(switches));
  return schedule;
}

const std::vector<Schedule::Switch>& Schedule::switches() const {
  static const auto* const none = new std::vector<Schedule::Switch>;
  return switches_ != nullptr ? *switches_ : *none;
}

bool Schedule::explores() const {
  switch (kind_) {
    case Kind::kUnset:
    case Kind::kFree:
    case Kind::kFifo:
    case Kind::kRoundRobin:
      return false;
    case Kind::kReplay: {
      const Schedule schedule = recorded();
      return schedule.kind() == Kind::kReplay ? !trace_->empty() : schedule.explores();
    }
    case Kind::kSeeded:
    case Kind::kPct:
    case Kind::kStarve:
    case Kind::kLate:
    case Kind::kSteered:
      return true;
  }
  return true;
}

namespace {

// "0@5>1", "s@0>2", "1@3>c0", "1#0=2".
void append_switch(std::string* out, const Schedule::Switch& s) {
  const bool value = s.kind == Schedule::Switch::Kind::kValue;
  absl::StrAppend(out, s.at == Schedule::Switch::kStart ? "s" : absl::StrCat(s.at), value ? "#" : "@", s.nth,
                  value ? "=" : ">", s.kind == Schedule::Switch::Kind::kCompletion ? "c" : "", s.to);
}

bool parse_switch(absl::string_view text, Schedule::Switch* s) {
  const size_t mark = text.find_first_of("@#");
  if (mark == absl::string_view::npos) return false;
  const bool value = text[mark] == '#';
  const size_t arrow = text.find(value ? '=' : '>', mark);
  if (arrow == absl::string_view::npos) return false;
  absl::string_view to = text.substr(arrow + 1);
  s->kind = value ? Schedule::Switch::Kind::kValue : Schedule::Switch::Kind::kTask;
  if (!value && !to.empty() && to[0] == 'c') {
    s->kind = Schedule::Switch::Kind::kCompletion;
    to.remove_prefix(1);
  }
  const absl::string_view at = text.substr(0, mark);
  if (at != "s" && (!absl::SimpleAtoi(at, &s->at) || s->at < 0)) return false;
  return absl::SimpleAtoi(text.substr(mark + 1, arrow - mark - 1), &s->nth) && s->nth >= 0 &&
         absl::SimpleAtoi(to, &s->to) && s->to >= 0;
}

}  // namespace

std::string Schedule::text() const {
  switch (kind_) {
    case Kind::kUnset:
      return "unset";
    case Kind::kFree:
      return "free";
    case Kind::kFifo:
      return "fifo";
    case Kind::kRoundRobin:
      return "round_robin";
    case Kind::kSeeded:
      return absl::StrCat("seeded:", seed_);
    case Kind::kPct:
      return absl::StrCat("pct:", seed_, ":", depth_);
    case Kind::kStarve:
      return absl::StrCat("starve:", seed_);
    case Kind::kLate:
      return absl::StrCat("late:", seed_);
    case Kind::kSteered:
      return absl::StrCat("steered:", seed_, switches().empty() ? "" : ":",
                          absl::StrJoin(switches(), ",", append_switch));
    case Kind::kReplay:
      return "replay";
  }
  return "unset";
}

absl::StatusOr<Schedule> Schedule::parse(std::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(sv(text), absl::MaxSplits(':', 3));  // one too many at most
  uint64_t seed = 0;
  int depth = 3;
  if (parts[0] == "free" && parts.size() == 1) return free();
  if (parts[0] == "fifo" && parts.size() == 1) return fifo();
  if (parts[0] == "round_robin" && parts.size() == 1) return round_robin();
  if (parts[0] == "seeded" && parts.size() == 2 && absl::SimpleAtoi(parts[1], &seed)) return seeded(seed);
  if (parts[0] == "pct" && parts.size() >= 2 && parts.size() <= 3 && absl::SimpleAtoi(parts[1], &seed) &&
      (parts.size() == 2 || (absl::SimpleAtoi(parts[2], &depth) && depth >= 1 && depth <= kMostDepth))) {
    return pct(seed, depth);
  }
  if (parts[0] == "starve" && parts.size() == 2 && absl::SimpleAtoi(parts[1], &seed)) return starve(seed);
  if (parts[0] == "late" && parts.size() == 2 && absl::SimpleAtoi(parts[1], &seed)) return late_completion(seed);
  if (parts[0] == "steered" && parts.size() >= 2 && parts.size() <= 3 && absl::SimpleAtoi(parts[1], &seed)) {
    std::vector<Schedule::Switch> switches;
    bool good = true;
    if (parts.size() == 3) {
      for (const absl::string_view part : absl::StrSplit(parts[2], ',')) {
        good = good && parse_switch(part, &switches.emplace_back());
      }
    }
    if (good) return steered(seed, std::move(switches));
  }
  return internal::invalid_argument(
      "schedule \"", sv(text),
      "\" is none of free, fifo, round_robin, seeded:SEED, pct:SEED[:DEPTH], starve:SEED, "
      "late:SEED, steered:SEED[:SWITCH,...]");
}

}  // namespace rankloom
