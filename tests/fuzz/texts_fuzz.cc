// Texts of schedules, faults and break points: each is refused with an error, or read; then it is written, and what is
// written reads as the same.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "rankloom/schedule.h"
#include "tests/fuzz/fuzz.h"

namespace rankloom::fuzz {
namespace {

void must_be_refusal(const absl::Status& status, const std::string& text) {
  if (error_kind(status) != ErrorKind::kInvalidArgument || status.message().empty())
    wrong("\"" + text + "\" is refused with " + status.ToString());
}

void check_schedule(const std::string& text) {
  const absl::StatusOr<Schedule> schedule = read_in_little_memory(text, &Schedule::parse);
  if (!schedule.ok()) return must_be_refusal(schedule.status(), text);
  const std::string written = schedule->text();
  const absl::StatusOr<Schedule> again = Schedule::parse(written);
  if (!again.ok()) wrong("\"" + text + "\" is written as \"" + written + "\", which cannot be read");
  const bool same = again->kind() == schedule->kind() && again->seed() == schedule->seed() &&
                    again->depth() == schedule->depth() && again->switches() == schedule->switches() &&
                    again->explores() == schedule->explores() && again->text() == written;
  if (!same) wrong("\"" + text + "\" comes back as \"" + again->text() + "\"");
}

void must_come_back(const FaultPlan& plan, const std::string& of) {
  const std::string written = plan.text();
  const absl::StatusOr<FaultPlan> again = FaultPlan::parse(written);
  if (!again.ok()) wrong("\"" + of + "\" is written as \"" + written + "\", which cannot be read");
  const bool same = again->faults() == plan.faults() && again->seed() == plan.seed() && again->rate() == plan.rate() &&
                    again->kinds() == plan.kinds() && again->empty() == plan.empty() && again->text() == written;
  if (!same) wrong("\"" + of + "\" is written as \"" + written + "\" and comes back as \"" + again->text() + "\"");
}

void check_faults(const std::string& text) {
  const absl::StatusOr<FaultPlan> plan = read_in_little_memory(text, &FaultPlan::parse);
  if (!plan.ok()) return must_be_refusal(plan.status(), text);
  must_come_back(*plan, text);
}

// Faults as a program makes them: names of any bytes, as a report's rerun command has to write them.
void check_made_faults(Input& in) {
  std::vector<Fault> faults;
  const int count = in.below(4);
  for (int i = 0; i < count; ++i) {
    Fault fault = {.kind = static_cast<Fault::Kind>(in.below(internal::kFaultKindCount)),
                   .rank = in.below(8) - 1,
                   .group = in.take(static_cast<size_t>(in.below(8))),
                   .op = in.take(static_cast<size_t>(in.below(8))),
                   .seq = in.below(8) - 1,
                   .nth = in.below(8) - 1,
                   .when = static_cast<Fault::When>(in.below(3)),
                   .maybe = in.below(2) == 1};
    // Durations have a quarter of a nanosecond.
    fault.by = absl::Nanoseconds(static_cast<int64_t>(in.word() >> 1)) + absl::Nanoseconds(1) / 4 * in.below(4);
    faults.push_back(fault);
  }
  const double rate = static_cast<double>(in.word() >> 11) * 0x1p-53;
  std::vector<Fault::Kind> kinds;
  for (int n = rate > 0 ? in.below(3) : 0; n > 0; --n) {
    kinds.push_back(static_cast<Fault::Kind>(in.below(internal::kFaultKindCount)));
  }
  const FaultPlan drawn = rate > 0 ? FaultPlan::seeded(in.word(), rate, kinds) : FaultPlan();
  must_come_back(drawn.plus(faults), "made faults");
}

void check_break_point(const std::string& text) {
  const absl::StatusOr<Schedule::BreakPoint> at = read_in_little_memory(text, &Schedule::BreakPoint::parse);
  if (!at.ok()) return must_be_refusal(at.status(), text);
  if (at->rank < 0 || at->seq < 0) wrong("\"" + text + "\" is a break point at a negative number");
  const std::string written = std::to_string(at->rank) + ":" + at->group + ":" + std::to_string(at->seq);
  const absl::StatusOr<Schedule::BreakPoint> again = Schedule::BreakPoint::parse(written);
  if (!again.ok() || again->rank != at->rank || again->group != at->group || again->seq != at->seq)
    wrong("break point \"" + text + "\" is not that of \"" + written + "\"");
}

}  // namespace
}  // namespace rankloom::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rankloom::fuzz;
  Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  // The first byte of a corpus' file is a letter: s, f, b; S, F, B with a part that is repeated; m for made faults.
  const int kind = in.below(256);
  if (kind == 'm') {
    check_made_faults(in);
    return 0;
  }
  const std::string text = kind < 'a' ? repeated(in) : in.rest();
  switch (kind % 32 % 3) {
    case 0:  // f, F
      check_faults(text);
      break;
    case 1:  // s, S
      check_schedule(text);
      break;
    default:  // b, B
      check_break_point(text);
      break;
  }
  return 0;
}
