#include "sim/schedule.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sim/dist_error.h"
#include "sim/text.h"
#include "sim/trace.h"

namespace rankloom {

std::string_view engine_kind_name(EngineKind engine) { return engine == EngineKind::kThreads ? "threads" : "fibers"; }

absl::StatusOr<BreakPoint> BreakPoint::parse(std::string_view text) {
  BreakPoint at;
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == last || !absl::SimpleAtoi(sv(text.substr(0, first)), &at.rank) || at.rank < 0 ||
      !absl::SimpleAtoi(sv(text.substr(last + 1)), &at.seq) || at.seq < 0) {
    return make_error(ErrorKind::kInvalidArgument,
                      absl::StrCat("break point \"", sv(text), "\" is not RANK:GROUP:SEQ, such as 2:0:15"));
  }
  at.group = text.substr(first + 1, last - first - 1);
  return at;
}

Schedule Schedule::replay(Trace trace) {
  Schedule schedule(Kind::kReplay, 0, 0);
  schedule.trace_ = std::make_shared<const Trace>(std::move(trace));
  return schedule;
}

Schedule Schedule::recorded() const {
  if (kind_ != Kind::kReplay) return *this;
  const absl::StatusOr<Schedule> parsed = parse(trace_->schedule());
  return parsed.ok() ? *parsed : *this;
}

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
    case Kind::kReplay:
      return "replay";
  }
  return "unset";
}

absl::StatusOr<Schedule> Schedule::parse(std::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(sv(text), ':');
  uint64_t seed = 0;
  int depth = 3;
  if (parts[0] == "free" && parts.size() == 1) return free();
  if (parts[0] == "fifo" && parts.size() == 1) return fifo();
  if (parts[0] == "round_robin" && parts.size() == 1) return round_robin();
  if (parts[0] == "seeded" && parts.size() == 2 && absl::SimpleAtoi(parts[1], &seed)) return seeded(seed);
  if (parts[0] == "pct" && parts.size() >= 2 && parts.size() <= 3 && absl::SimpleAtoi(parts[1], &seed) &&
      (parts.size() == 2 || (absl::SimpleAtoi(parts[2], &depth) && depth >= 1))) {
    return pct(seed, depth);
  }
  return make_error(
      ErrorKind::kInvalidArgument,
      absl::StrCat("schedule \"", sv(text), "\" is none of free, fifo, round_robin, seeded:SEED, pct:SEED[:DEPTH]"));
}

}  // namespace rankloom
