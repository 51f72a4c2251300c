#include <mpi.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_world.h"
#include "harness/explore/progress_line.h"
#include "harness/explore/search.h"
#include "harness/mpi/mpi_channel.h"
#include "harness/mpi/mpi_team.h"
#include "harness/mpi/told_report.h"
#include "rankloom/explore.h"
#include "rankloom/mpi.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/parker.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "world/run_file.h"
#include "world/run_options.h"

namespace rankloom {
namespace internal {
namespace {

ExploreReport refused(absl::Status why) {
  ExploreReport report;
  report.error = std::move(why);
  return report;
}

// The options as a search of this process alone has them. Where stderr is no terminal, a line there every ten seconds
// tells of the search: jobs have a log.
ExploreOptions own_options(ExploreOptions options) {
  if (options.progress || is_terminal(stderr)) return options;
  const auto told_ns = std::make_shared<int64_t>(monotonic_ns());
  options.progress = [told_ns, most = options.max_runs](const ExploreOptions::Progress& now) {
    constexpr int64_t kEvery = 10'000'000'000;
    if (monotonic_ns() - *told_ns < kEvery) return;
    *told_ns = monotonic_ns();
    std::fprintf(stderr, "explore: %s\n", progress_text(now, most).c_str());
  };
  return options;
}

ExploreReport lead(MpiChannel* channel, const ExploreOptions& asked, int number, Program program, RunWorld run,
                   CodeSite code) {
  MpiTeam team(channel);
  ExploreReport report;
  std::exception_ptr thrown;
  try {
    if (asked.processes != 1) {
      report = refused(invalid_argument("explore: processes is ", asked.processes, ", want 1: the job has ",
                                        channel->size(), " processes", site_place(Site{.code = code})));
    } else {
      report = search(own_options(asked), number, program, run, code, channel->size() > 1 ? &team : nullptr);
    }
  } catch (...) {  // of the program's own functions: progress
    thrown = handled_exception();
    report = refused(make_error(ErrorKind::kAborted, "explore: an exception ended the search of process 0"));
  }
  team.end({});
  if (report.failure.has_value())
    write_failed_run(absl::StrCat(program_name(), ".explore", number), &report.failure->report);
  team.tell_report(encode_report(report), report.text());
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return report;
}

ExploreReport follow(MpiChannel* channel, const ExploreOptions& options, int number, Program program, RunWorld run,
                     CodeSite code) {
  MpiLeader leader(channel);
  try {
    search_for(&leader, options, number, program, run, code);
  } catch (const std::exception& error) {
    channel->end_job(absl::StrCat("explore: ", error.what()));
  }
  ExploreReport report = decode_report(leader.report(), options.world);
  channel->send(0, MpiChannel::Kind::kBye, "");
  return report;
}

}  // namespace
}  // namespace internal

using namespace internal;

ExploreReport explore(int* argc, char*** argv, const ExploreOptions& options,
                      absl::FunctionRef<void(RankContext&)> program, CodeSite code) {
  if (const RankContext* const rank = RankContext::current(); rank != nullptr) {
    return refused(invalid_argument("explore: called by rank ", rank->rank(),
                                    " of a world, want it outside of rank programs", site_place(Site{.code = code})));
  }
  std::optional<CallOfJob> call;
  try {
    call.emplace("explore", code);
    need_mpi_of_all(code, options.world, argc, argv);
  } catch (const DistError& error) {
    return refused(error.status());
  }
  const int number = next_run();
  const PlainRuns run{code};
  const MpiInUse in_use("explore");
  MpiChannel channel(MPI_COMM_WORLD);
  return channel.rank() == 0 ? lead(&channel, options, number, program, run, code)
                             : follow(&channel, options, number, program, run, code);
}

}  // namespace rankloom
