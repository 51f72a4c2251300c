// Traces: any bytes are refused with an error that says why, or are a trace, which is described, and written as one
// that reads as the same. A run's trace, changed, is replayed: as that run, or with an error that says where it is
// another.

#include <algorithm>
#include <string>
#include <vector>

#include "rankloom/error.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"
#include "sim/schedule/policies.h"
#include "tests/fuzz/fuzz.h"

namespace rankloom::fuzz {
namespace {

// The sum of a file, which random bytes never have.
std::string with_sum(std::string body) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : body) sum = (sum ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  for (int i = 0; i < 8; ++i) body.push_back(static_cast<char>(sum >> (8 * i)));
  return body;
}

void must_come_back(const Trace& trace) {
  const std::string bytes = trace.serialize();
  const absl::StatusOr<Trace> again = Trace::parse(bytes);
  if (!again.ok()) wrong("a trace is written as what is none: " + again.status().ToString());
  if (!(*again == trace)) wrong("a trace comes back as another");
  if (again->serialize() != bytes) wrong("a trace comes back as one that is written otherwise");
  if (internal::first_difference(*again, trace) != "equal") wrong("a trace differs from itself");
}

void look_at(const Trace& trace) {
  for (const Trace::Step& step : trace.steps()) {
    if (!trace.describe(step).starts_with("rank ")) wrong("a step is not described");
  }
  const Schedule replay = Schedule::replay(trace);
  if (replay.text() != "replay" || replay.trace() == nullptr) wrong("a replay is none");
  const absl::StatusOr<Schedule> recorded = Schedule::parse(trace.schedule());
  if (recorded.ok() && replay.recorded().text() != recorded->text())
    wrong("a replay was recorded under another schedule");
  if (recorded.ok() && replay.explores() != recorded->explores()) wrong("a replay explores otherwise than its run");
}

void check_bytes(const std::string& bytes) {
  const absl::StatusOr<Trace> trace = read_in_little_memory(bytes, &Trace::parse);
  if (!trace.ok()) {
    if (error_kind(trace.status()) != ErrorKind::kInvalidArgument ||
        !std::string_view(trace.status().message().data(), trace.status().message().size())
             .starts_with("not a usable trace: "))
      wrong("refused with " + trace.status().ToString());
    return;
  }
  look_at(*trace);
  must_come_back(*trace);
}

// As a run records it.
void check_made_trace(Input& in) {
  Trace trace;
  trace.set_schedule(in.text());
  while (!in.empty()) {
    const uint16_t what = trace.intern(in.take(static_cast<size_t>(in.below(4))));
    trace.add({.kind = static_cast<uint8_t>(in.below(256)),
               .what = what,
               .rank = in.below(256) - 2,
               .size = static_cast<int32_t>(in.word() >> 33),
               .value = static_cast<int32_t>(in.word() >> 33),
               .seq = static_cast<int64_t>(in.word() >> 1) - 2});
  }
  look_at(trace);
  must_come_back(trace);
}

// Ranks that yield, and count in a store.
std::string seen_by_ranks(RankContext& rank) {
  std::string seen;
  for (int i = 0; i <= rank.rank(); ++i) {
    rank.yield();
    seen += std::to_string(rank.store().add("count", 1)) + " ";
  }
  return seen;
}

struct Ended {
  std::vector<std::string> seen = std::vector<std::string>(3);
  RunReport report;
};

Ended run_under(const Schedule& schedule) {
  Ended ended;
  ended.report =
      run_world({.world_size = 3, .engine = EngineKind::kFibers, .schedule = schedule},
                [&](RankContext& rank) { ended.seen[static_cast<size_t>(rank.rank())] = seen_by_ranks(rank); });
  return ended;
}

// The steps of `whole` with one of them changed, left out, doubled or moved to the end, or the first ones.
Trace changed(const Trace& whole, Input& in) {
  std::vector<Trace::Step> steps = whole.steps();
  const auto at = steps.begin() + in.below(static_cast<int>(steps.size()));
  const int number = in.below(256) - 8;
  switch (in.below(10)) {
    case 0:
      at->kind = static_cast<uint8_t>(number);
      break;
    case 1:
      at->what = static_cast<uint16_t>(number);
      break;
    case 2:
      at->rank = number;
      break;
    case 3:
      at->size = number;
      break;
    case 4:
      at->value = number;
      break;
    case 5:
      at->seq = number;
      break;
    case 6:
      steps.erase(at);
      break;
    case 7:
      steps.insert(at, Trace::Step(*at));
      break;
    case 8:
      std::rotate(at, at + 1, steps.end());
      break;
    default:
      steps.erase(at, steps.end());
  }
  Trace trace;
  trace.set_schedule(whole.schedule());
  for (const std::string& name : whole.names()) trace.intern(name);
  for (const Trace::Step& step : steps) trace.add(step);
  return trace;
}

void check_replay(Input& in) {
  const Ended run = run_under(Schedule::seeded(in.word()));
  if (!run.report.ok()) wrong("a run failed: " + run.report.text());
  const Trace trace = changed(run.report.trace, in);
  const Ended replay = run_under(Schedule::replay(trace));
  if (replay.report.ok()) {
    const std::vector<Trace::Step>&made = replay.report.trace.steps(), &want = trace.steps();
    if (made.size() > want.size() || !std::equal(made.begin(), made.end(), want.begin()))
      wrong("a replay went well with other steps");
    if (trace == run.report.trace && replay.seen != run.seen) wrong("a replay saw other things");
    return;
  }
  if (trace == run.report.trace) wrong("a trace that is as it was is not replayed: " + replay.report.text());
  if (!internal::is_error_of_replay(std::string(replay.report.cause.message())))
    wrong("a replay of another trace ends with " + replay.report.cause.ToString());
}

}  // namespace
}  // namespace rankloom::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rankloom::fuzz;
  Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  // A letter: r raw bytes, s a sum is added, p a part is repeated and a sum is added, m a trace is made, w a world's
  // trace is replayed.
  switch (in.below(256)) {
    case 'r':
      check_bytes(in.rest());
      break;
    case 'm':
      check_made_trace(in);
      break;
    case 'w':
      check_replay(in);
      break;
    case 'p':
      check_bytes(with_sum("RLTRACE1" + repeated(in)));
      break;
    default:
      check_bytes(with_sum("RLTRACE1" + in.rest()));
      break;
  }
  return 0;
}
