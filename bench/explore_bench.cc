// Exploring schedules: runs a second on one core, and what partial-order reduction saves.
//   explore/<strategy>          one run of 4 ranks x 10 all_reduce of one float on fibers, checks of results included;
//                               the floor
//                               is 50 us, 20,000 runs a second. cpu_ns_per_op: the same in time of the CPU, whoever
//                               else uses the machine
//   explore/processes/<strategy>/<n>
//                               the same program (exhaustive: ranks that append to one key) searched by n processes:
//                               runs a second of real time; cpu_us_per_run of the processes that search; dealing, the
//                               share of the leader's processor time in theirs, which is to stay under 0.02
//   explore/reduction/<case>    schedules that are run with reduction, and (counter plain) without it, at most 20,000

#include <sys/resource.h>

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "examples/known_bugs/known_bugs.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "sim/engine/fiber_engine.h"
#include "sim/schedule/schedule_tree.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int64_t kPlainMost = 20'000;

void reduce_ten_times(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0F + static_cast<float>(rank.rank())};
  for (int i = 0; i < 10; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
  observe(rank, "max", x[0]);
}

void explore_runs(benchmark::State& state, const Strategy& strategy) {
  double seconds = 0;
  int64_t runs = 0;
  const std::clock_t cpu = std::clock();
  for (auto _ : state) {
    const ExploreReport report = explore(
        {.world = {.world_size = 4, .engine = EngineKind::kFibers}, .strategies = {strategy}, .max_runs = 20'000},
        reduce_ten_times);
    if (!report.ok()) state.SkipWithError("a schedule fails");
    seconds += absl::ToDoubleSeconds(report.elapsed);
    runs += report.runs;
  }
  state.counters["ns_per_op"] = seconds * 1e9 / static_cast<double>(runs);
  state.counters["cpu_ns_per_op"] =
      static_cast<double>(std::clock() - cpu) * (1e9 / CLOCKS_PER_SEC) / static_cast<double>(runs);
  state.counters["runs_per_second"] = static_cast<double>(runs) / seconds;
  state.counters["floor_ns"] = 50'000;
  state.counters["ratio"] = seconds * 1e9 / static_cast<double>(runs) / 50'000;
}

// One run of the exhaustive strategy, again and again: a program of plain collectives is done after one.
void explore_exhaustively(benchmark::State& state) {
  double seconds = 0;
  int64_t runs = 0;
  for (auto _ : state) {
    const int64_t begin = monotonic_ns();
    for (int i = 0; i < 500; ++i) {
      const ExploreReport report = explore({.world = {.world_size = 4, .engine = EngineKind::kFibers},
                                            .strategies = {Strategy::exhaustive()},
                                            .checks = {.twice = false}},
                                           reduce_ten_times);
      if (!report.verified) state.SkipWithError("not verified");
      runs += report.runs;
    }
    seconds += static_cast<double>(monotonic_ns() - begin) * 1e-9;
  }
  state.counters["ns_per_op"] = seconds * 1e9 / static_cast<double>(runs);
  state.counters["runs_per_second"] = static_cast<double>(runs) / seconds;
}

double cpu_seconds(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// Three ranks have 12! / 4!^3 = 34,650 orders of their appends.
void append_to_one_key(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x = {1.0F};
  for (int i = 0; i < 5; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
  for (int i = 0; i < 4; ++i) rank.store().append("log", std::to_string(rank.rank()));
}

void explore_by_processes(benchmark::State& state, const Strategy& strategy, int processes) {
  const bool all = strategy.kind == Strategy::Kind::kExhaustive;
  const ExploreOptions options{.world = {.world_size = all ? 3 : 4, .engine = EngineKind::kFibers},
                               .strategies = {strategy},
                               .max_runs = 100'000,
                               .processes = processes};
  double seconds = 0;
  int64_t runs = 0;
  const double own = cpu_seconds(RUSAGE_SELF);
  const double others = cpu_seconds(RUSAGE_CHILDREN);
  for (auto _ : state) {
    const ExploreReport report = all ? explore(options, append_to_one_key) : explore(options, reduce_ten_times);
    if (!report.ok()) state.SkipWithError("a schedule fails");
    if (all && !report.verified) state.SkipWithError("not verified");
    seconds += absl::ToDoubleSeconds(report.elapsed);
    runs += report.runs;
  }
  const double leading = cpu_seconds(RUSAGE_SELF) - own;
  const double searching = processes > 1 ? cpu_seconds(RUSAGE_CHILDREN) - others : leading;
  state.counters["runs"] = static_cast<double>(runs);
  state.counters["runs_per_second"] = static_cast<double>(runs) / seconds;
  state.counters["cpu_us_per_run"] = searching * 1e6 / static_cast<double>(runs);
  if (processes > 1) state.counters["dealing"] = leading / searching;
}

int64_t schedules(const KnownBug& bug, bool reduce, int64_t most) {
  ScheduleTree tree(reduce);
  int64_t runs = 0;
  with_fiber_thread([&] {
    for (; tree.more() && runs < most; ++runs) {
      WorldOptions options = bug.world();
      options.schedule = Schedule::steered(0, {});
      WorldState::make(std::move(options), tree.hooks())->run(bug.fix);
      tree.advance();
    }
  });
  return runs;
}

void reduction(benchmark::State& state, const KnownBug& bug) {
  int64_t reduced = 0;
  for (auto _ : state) reduced = schedules(bug, /*reduce=*/true, kPlainMost);
  const int64_t plain = schedules(bug, /*reduce=*/false, kPlainMost);
  state.counters["reduced"] = static_cast<double>(reduced);
  state.counters["plain"] = static_cast<double>(plain);
  state.counters["saved"] = static_cast<double>(plain) / static_cast<double>(reduced);
}

const bool registered = [] {
  for (const Strategy& strategy :
       {Strategy::random(), Strategy::pct(), Strategy::starve(), Strategy::late_completion()}) {
    benchmark::RegisterBenchmark(("explore/" + strategy.name()).c_str(),
                                 [strategy](benchmark::State& state) { explore_runs(state, strategy); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
  benchmark::RegisterBenchmark("explore/exhaustive", explore_exhaustively)
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
  for (const Strategy& strategy : {Strategy::random(), Strategy::exhaustive()}) {
    for (const int processes : {1, 2}) {
      benchmark::RegisterBenchmark(
          ("explore/processes/" + strategy.name() + "/" + std::to_string(processes)).c_str(),
          [strategy, processes](benchmark::State& state) { explore_by_processes(state, strategy, processes); })
          ->Unit(benchmark::kMillisecond)
          ->Iterations(1);
    }
  }
  for (const KnownBug& bug : known_bugs()) {
    benchmark::RegisterBenchmark((std::string("explore/reduction/") + bug.name).c_str(),
                                 [&bug](benchmark::State& state) { reduction(state, bug); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
  return true;
}();

}  // namespace
}  // namespace rankloom
