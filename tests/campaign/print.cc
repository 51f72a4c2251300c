#include "tests/campaign/print.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/print_rank.h"
#include "tests/campaign/run_job.h"

namespace rankloom {

namespace {

std::string group_options_text(const Job& job) {
  constexpr const char* kRooted[] = {"kTogether", "kEach", "kBySchedule"};
  return absl::StrCat("const GroupOptions options = {",
                      job.order != 0 ? absl::StrCat(order_text(order_of({.order = job.order}, 0)), ", ") : "",
                      ".eager_bytes = ", job.eager_bytes,
                      ", .rooted = GroupOptions::Rooted::", kRooted[static_cast<size_t>(job.rooted)], "};\n");
}

// As world_options() has them.
std::string world_options_text(const Job& job) {
  std::string text = absl::StrCat("  WorldOptions world = {.world_size = ", job.world_size, "};\n",
                                  "  world.seed = ", job.seed, ";\n", "  world.recorded_calls = ", job.recorded, ";\n");
  const std::string faults = job.fault_plan().text();
  if (!faults.empty()) {
    absl::StrAppend(&text, "  world.faults = FaultPlan::parse(", literal_text(faults), ").value();\n");
  }
  constexpr const char* kOptions[] = {"late_completion = true", "poison = true", "fresh_threads = true",
                                      "keep_run = true", "timeout = absl::Hours(1)"};
  static_assert(kWorldOptions == 1 << std::size(kOptions));
  for (size_t i = 0; i < std::size(kOptions); ++i) {
    if ((job.options >> i & 1) != 0) absl::StrAppend(&text, "  world.", kOptions[i], ";\n");
  }
  return text;
}

}  // namespace

std::string to_cpp(const Job& job, const std::optional<Gear>& gear) { return to_cpp(job, oracle(Plan(job)), gear); }

std::string to_cpp(const Job& job, const JobLog& expected, const std::optional<Gear>& gear) {
  const Plan plan(job);
  Given given;
  (void)oracle(plan, &given);
  std::string text = absl::StrCat(
      "// Arguments: a schedule, as RANKLOOM_SCHEDULE has it (\"seeded:7\", \"fifo\", \"free\"), and threads or "
      "fibers.\n",
      "#include \"tests/campaign/printed.h\"\n\nnamespace {\n\nusing namespace rankloom;\n",
      "using namespace rankloom::printed;\n\n",
      "// What `campaign --replay` reads.\nconstexpr const char* kJob = R\"(\n", to_text(job), ")\";\n\n",
      group_options_text(job));
  std::vector<std::string> names;
  for (int rank = 0; rank < job.world_size; ++rank) {
    names.push_back(absl::StrCat("rank_", rank));
    absl::StrAppend(&text, "\nvoid ", names.back(),
                    "([[maybe_unused]] RankContext& rank, [[maybe_unused]] Log& log) {\n",
                    RankPrinter(plan, expected[static_cast<size_t>(rank)], given, rank).print(), "}\n");
  }
  absl::StrAppend(&text, "\n}  // namespace\n\nint main(int argc, char** argv) {\n", world_options_text(job),
                  "  choose_gear(argc, argv, \"", gear.has_value() ? gear->schedule.text() : exploring(job).text(),
                  "\", \"", gear.has_value() ? std::string(internal::engine_kind_name(gear->engine)) : "",
                  "\", &world);\n", "  const Programs ranks = {", absl::StrJoin(names, ", "), "};\n");
  if (job.two_worlds == 0) return absl::StrCat(text, "  return run(kJob, world, ranks);\n}\n");
  return absl::StrCat(text, "  if (run(kJob, world, ranks) != 0) return 1;\n",
                      "  return run_two_worlds(kJob, world, ranks);\n}\n");
}

}  // namespace rankloom
