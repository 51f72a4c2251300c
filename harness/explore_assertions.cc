#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "harness/explore/search.h"
#include "harness/rank_failures.h"
#include "rankloom/testing.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#include "world/run_file.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;
namespace {

WorldRun run_with_assertions(const std::shared_ptr<World>& world, absl::FunctionRef<void(RankContext&)> program,
                             std::vector<std::string>* failures, absl::FunctionRef<void()> look) {
  const internal::RankFailuresScope kept(world.get());
  state_of(*world).tell_rerun_by(&internal::for_this_test);
  RunReport report = world->run([&](RankContext& rank) { kept->run_guarded(rank, program, [](RankContext&) {}); });
  look();
  const auto add_failures = [&] {
    for (const internal::RankFailure& failure : kept->folded()) {
      if (!failure.failed() || failure.after_abort()) continue;
      failures->push_back(absl::StrCat(sv(base_name(failure.file)), ":", failure.line, ": ", failure.text()));
    }
  };
  const bool skipped = kept->skip_ended_run();
  if (!skipped) add_failures();
  // Destructors of what ranks left may have assertions, too: of a run that failed before they follow from that.
  const bool well = !skipped && report.ok() && failures->empty();
  state_of(*world).end();
  if (well) add_failures();
  if (!skipped) return report;
  RunReport good;
  good.outcomes.resize(report.outcomes.size(),
                       {.state = RunReport::Outcome::State::kReturned, .text = {}, .exception = {}});
  return {std::move(good), /*skipped=*/true};
}

// For the files of a search that failed in the running test: of the second such search there and of later ones with a
// number. Empty outside of a test. On GoogleTest's own thread.
std::string next_file_name() {
  struct Failed {
    const testing::TestInfo* test = nullptr;
    testing::TimeInMillis begun = 0;  // tells repetitions of the test apart
    int searches = 0;
  };
  static Failed failed;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return "";
  const testing::TimeInMillis begun = test->result()->start_timestamp();
  if (failed.test != test || failed.begun != begun) failed = {.test = test, .begun = begun};
  ++failed.searches;
  const std::string name = absl::StrCat(program_name(), ".", test->test_suite_name(), ".", test->name(),
                                        failed.searches > 1 ? absl::StrCat(".search", failed.searches) : "");
  return absl::StrReplaceAll(name, {{"/", "_"}});
}

// The line that says how to replay it; empty if there is nothing to replay.
std::string save_trace(const ExploreReport::Failure& failure, const std::string& name) {
  const absl::StatusOr<RunFiles> files = run_files_from_environment();
  if (name.empty() || !files.ok() || failure.report.trace.empty()) return "";
  const std::filesystem::path folder = files->folder.empty() ? testing::TempDir() : files->folder;
  std::error_code ignored;  // save() tells
  std::filesystem::create_directories(folder, ignored);
  const std::string path = folder / absl::StrCat(name, ".rltrace");
  if (is_replayed_file(path)) return absl::StrCat("\ntrace: ", path);  // as it was
  if (const absl::Status saved = failure.report.trace.save(path); !saved.ok())
    return absl::StrCat("\n", message_of(saved));
  return absl::StrCat("\ntrace: ", path);
}

// Tells what a search that found nothing has looked at: for readers of the log, and for the XML.
void tell_success(const ExploreOptions& options, const ExploreReport& report) {
  constexpr const char* kProperty = "explored";
  const std::string summary = report.summary();
  if (!options.progress && !testing::GTEST_FLAG(brief)) std::cout << "[ rankloom ] " << summary << "\n" << std::flush;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return;
  // GoogleTest keeps the last value of a property; a test may search more than once.
  std::string all = summary;
  for (int i = 0; i < test->result()->test_property_count(); ++i) {
    const testing::TestProperty& property = test->result()->GetTestProperty(i);
    if (property.key() == std::string_view(kProperty)) all = absl::StrCat(property.value(), "; ", summary);
  }
  testing::Test::RecordProperty(kProperty, all);
}

// `name`: of the files of a failure, for the caller.
ExploreReport search_in_test(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body, CodeSite code,
                             std::string* name) {
  ExploreOptions in_test = options;
  add_test_defaults(&in_test.world);
  const int number = next_run_of_test();
  ExploreReport report = internal::search(in_test, number, body, &run_with_assertions, code);
  if (report.failure.has_value()) {
    report.failure->rerun = internal::for_this_test(std::move(report.failure->rerun));
    report.failure->report.rerun.clear();
    if (report.failure->report.kept != nullptr) report.failure->report.kept->rerun = report.failure->rerun;
    *name = next_file_name();
    if (name->empty()) *name = absl::StrCat(program_name(), ".explore", name_of_run(number));
    write_failed_run(*name, &report.failure->report);
  }
  return report;
}

}  // namespace

ExploreReport explore_assertions(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body,
                                 CodeSite code) {
  std::string name;
  return search_in_test(options, body, code, &name);
}

bool expect_no_failure_in_schedules(const ExploreOptions& options, absl::FunctionRef<void(RankContext&)> body,
                                    CodeSite code) {
  std::string name;
  ExploreReport report = search_in_test(options, body, code, &name);
  if (report.ok()) {
    tell_success(options, report);
    return true;
  }
  // The file of the run is said last.
  std::string run_file;
  if (report.failure.has_value()) run_file = std::exchange(report.failure->report.run_file, "");
  std::string text = report.text();
  if (report.failure.has_value()) text += save_trace(*report.failure, name);
  if (!run_file.empty()) absl::StrAppend(&text, "\n", run_file);
  internal::report_part(testing::TestPartResult::kNonFatalFailure, code.file, code.line, text);
  return false;
}

}  // namespace rankloom
