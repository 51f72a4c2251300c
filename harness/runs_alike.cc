#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "harness/explore/baseline.h"
#include "harness/rank_failures.h"
#include "rankloom/schedule.h"
#include "rankloom/testing.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "world/run_data.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// All that is compared, as texts: equal runs have equal ones.
struct Events {
  RunReport report;
  std::vector<std::vector<std::string>> calls;  // by rank
  std::vector<std::string> store;
  std::vector<RankFailure> failures;
};

// "[2,3] [6]".
std::string shapes_text(const FlightEntry& entry) {
  std::vector<std::string> shapes;
  for (size_t at = 0; at < entry.shapes.size();)
    shapes.push_back(absl::StrCat("[", absl::StrJoin(entry.shapes.take(&at), ","), "]"));
  return absl::StrJoin(shapes, " ");
}

std::string call_text(const FlightEntry& entry) {
  return absl::StrCat(entry.op, entry.seq >= 0 ? absl::StrCat(" seq ", entry.seq) : "",
                      entry.root >= 0 ? absl::StrCat(", root ", entry.root) : "",
                      entry.peer >= 0 ? absl::StrCat(", peer ", entry.peer) : "",
                      entry.tag != 0 ? absl::StrCat(", tag ", entry.tag) : "", ", dtype ", entry.dtype, ", shapes ",
                      shapes_text(entry), ", ", flight_state_name(entry.state), ", begun at ", entry.created_ns,
                      " ns, ended at ", entry.completed_ns, " ns [group ",
                      entry.group != nullptr ? entry.group->name() : "?", ", ", entry.code.file, ":", entry.code.line,
                      "]");
}

std::vector<std::string> texts(const std::vector<RankFailure>& failures) {
  std::vector<std::string> all;
  for (const RankFailure& failure : failures) {
    all.push_back(absl::StrCat(failure.file, ":", failure.line, ": ", failure.text()));
  }
  return all;
}

Events run_once(const WorldOptions& options, absl::FunctionRef<void(RankContext&)> body, CodeSite code) {
  Events events;
  World world(options, code);
  const RankFailuresScope failures(&world);
  events.report = world.run([&](RankContext& rank) { failures->run_guarded(rank, body, [](RankContext&) {}); });
  for (int rank = 0; rank < world.size(); ++rank) {
    std::vector<std::string>& calls = events.calls.emplace_back();
    for (const FlightEntry& entry : state_of(world).context(rank).recorder().entries())
      calls.push_back(call_text(entry));
  }
  for (const std::string& key : keys_of(world.store())) {
    const std::optional<std::string> value = value_of(world.store(), key);
    events.store.push_back(
        absl::StrCat("key \"", key, "\" = ", value.has_value() ? absl::StrCat("\"", *value, "\"") : "?"));
  }
  events.failures = failures->folded();
  if (events.report.kept != nullptr) events.report.kept->failures = texts(events.failures);
  return events;
}

// The first place where two lists differ: "who: first run: ..., second run: ..."; empty: they are equal.
std::string difference(std::string_view who, const std::vector<std::string>& first,
                       const std::vector<std::string>& second) {
  const auto at = [](const std::vector<std::string>& items, size_t i) {
    return i < items.size() ? items[i] : "nothing";
  };
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (at(first, i) != at(second, i)) {
      return absl::StrCat(std::string(who), ": first run: ", at(first, i), "; second run: ", at(second, i));
    }
  }
  return "";
}

// The line that names the files of both runs; empty: none are asked for.
std::string save_runs(const RunReport& first, const RunReport& second) {
  static int differences = 0;  // of the process: each has files of its own
  ++differences;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string of = test != nullptr ? absl::StrCat(".", test->test_suite_name(), ".", test->name()) : "";
  const std::string line = write_both_runs(
      absl::StrCat(program_name(), of, ".alike", differences > 1 ? absl::StrCat(differences) : ""), first, second);
  return line.empty() ? "" : "\n  " + line;
}

std::vector<std::string> ends(const RunReport& report) {
  std::vector<std::string> all;
  for (size_t rank = 0; rank < report.outcomes.size(); ++rank) {
    const RunReport::Outcome& outcome = report.outcomes[rank];
    const bool returned = outcome.state == RunReport::Outcome::State::kReturned;
    all.push_back(absl::StrCat("rank ", rank, returned ? " returned" : " failed: ", outcome.text));
  }
  return all;
}

}  // namespace

testing::AssertionResult runs_alike(WorldOptions options, absl::FunctionRef<void(RankContext&)> body, CodeSite code) {
  if (options.schedule.kind() == Schedule::Kind::kUnset) options.schedule = Schedule::seeded(options.seed.value_or(1));
  if (absl::Status status = apply_environment_to_run(next_run_of_test(), &options); !status.ok()) {
    return testing::AssertionFailure() << message_of(status);
  }
  add_test_defaults(&options);
  options.trace_limit = Trace::kWhole;
  options.keep_run |= reports_are_wanted();
  if (!options.schedule.deterministic()) {
    return testing::AssertionFailure() << "the schedule is " << options.schedule.text()
                                       << ", want one that repeats itself";
  }
  Events first = run_once(options, body, code);
  Events second = run_once(options, body, code);

  std::vector<std::string> differences;
  const auto add = [&differences](std::string text) {
    if (!text.empty()) differences.push_back(std::move(text));
  };
  if (first.report.trace != second.report.trace) {
    add(absl::StrCat("choices: ", first_difference(first.report.trace, second.report.trace)));
  }
  for (size_t rank = 0; rank < first.calls.size(); ++rank) {
    add(difference(absl::StrCat("calls of rank ", rank), first.calls[rank], second.calls[rank]));
  }
  add(difference("outcomes", ends(first.report), ends(second.report)));
  add(difference("store", first.store, second.store));
  add(difference("failed assertions", texts(first.failures), texts(second.failures)));
  if (first.report.steps != second.report.steps) {
    add(absl::StrCat("scheduling points: first run: ", first.report.steps, "; second run: ", second.report.steps));
  }

  for (const RankFailure& failure : first.failures) {
    report_part(failure.type, failure.file, failure.line, failure.text());
  }
  if (differences.empty())
    return testing::AssertionSuccess() << "two runs under " << options.schedule.text() << " are alike";
  return testing::AssertionFailure() << "two runs under " << options.schedule.text() << " differ\n  "
                                     << absl::StrJoin(differences, "\n  ") << save_runs(first.report, second.report);
}

}  // namespace rankloom
