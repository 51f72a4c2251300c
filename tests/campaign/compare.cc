#include "tests/campaign/compare.h"

#include <array>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int kDepths = 6;

// Numbers that have nothing to do with each other: how the jobs were drawn, which schedule and which gears they have.
enum class Choice : uint64_t { kSchedule = 1, kDepth, kGear };
int chosen(const Job& job, Choice choice, int n) {
  Prng prng(static_cast<uint64_t>(job.seed) ^ static_cast<uint64_t>(choice) << 40);
  return static_cast<int>(prng.below(static_cast<uint64_t>(n)));
}

}  // namespace

Schedule exploring(const Job& job) {
  const auto seed = static_cast<uint64_t>(job.seed);
  switch (chosen(job, Choice::kSchedule, 6)) {
    case 0:
      return Schedule::pct(seed, 1 + chosen(job, Choice::kDepth, kDepths));
    case 1:
      return Schedule::starve(seed);
    case 2:
      return Schedule::late_completion(seed);
    case 3:
      return Schedule::round_robin();
    default:
      return Schedule::seeded(seed);
  }
}

std::vector<Schedule> all_exploring(uint64_t seed) {
  std::vector<Schedule> all = {Schedule::seeded(seed), Schedule::starve(seed), Schedule::late_completion(seed),
                               Schedule::round_robin()};
  for (int depth = 1; depth <= kDepths; ++depth) all.push_back(Schedule::pct(seed, depth));
  return all;
}

namespace {

std::string without(std::string text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word)) text.erase(at, word.size());
  return text;
}

// Without the engine's name, in which two runs of one seed may differ; without the line of the schedule, in which a
// replay differs.
std::string comparable(const RunReport& report, bool replay) {
  std::string text = report.text();
  if (const size_t at = replay ? text.find("\nschedule ") : std::string::npos; at != std::string::npos)
    text.erase(at, text.find('\n', at + 1) - at);
  for (const std::string_view name :
       {"RANKLOOM_ENGINE=threads", "RANKLOOM_ENGINE=fibers", "engine threads", "engine fibers"}) {
    text = without(std::move(text), name);
  }
  return text;
}

std::optional<std::string> first_difference_of(const JobRun& a, const JobRun& b, bool replay = false) {
  const std::string traces = first_difference(a.report.trace, b.report.trace);
  if (traces != "equal") return absl::StrCat("one seed, two traces: ", traces);
  if (a.report.steps != b.report.steps) {
    return absl::StrCat("one seed, ", a.report.steps, " and ", b.report.steps, " steps");
  }
  const std::string texts[] = {comparable(a.report, replay), comparable(b.report, replay)};
  if (texts[0] != texts[1]) return absl::StrCat("one seed, two reports:\n", texts[0], "\n-- and --\n", texts[1]);
  for (size_t rank = 0; rank < a.log.size(); ++rank) {
    if (a.log[rank].seen != b.log[rank].seen) return absl::StrCat("one seed, and rank ", rank, " saw other things");
    if (a.drawn[rank] != b.drawn[rank]) return absl::StrCat("one seed, and rank ", rank, " drew other numbers");
  }
  return std::nullopt;
}

class Comparer {
 public:
  Comparer(const Job& job, Effort effort) : job_(job), plan_(job), expected_(oracle(plan_)), effort_(effort) {}

  Comparison compare(const Schedule& schedule) {
    const bool full = effort_ == Effort::kFull;
    const int turn = chosen(job_, Choice::kGear, 8);
    const JobRun fibers = run({EngineKind::kFibers, schedule});
    if (full || turn == 0) {
      const Gear baton = {EngineKind::kThreads, schedule};
      const JobRun threads = run(baton);
      note(baton.text() + ", beside fibers", first_difference_of(fibers, threads));
    }
    if (fibers.report.trace.empty() && job_.world_size > 1 && schedule.explores())
      note("fibers", "a run without a trace");
    if (full || turn == 1) {
      const Gear replay = {EngineKind::kFibers, Schedule::replay(fibers.report.trace)};
      note("a replay", first_difference_of(fibers, run(replay), /*replay=*/true));
    }
    if (full || turn == 2 || turn == 3) run({EngineKind::kFibers, Schedule::fifo()});
    if (full || turn == 4) run({EngineKind::kThreads, Schedule::free()});
    if (job_.two_worlds != 0) beside_each_other(schedule, fibers);
    return std::move(result_);
  }

 private:
  // True: this is the first.
  bool note(const std::string& where, const std::optional<std::string>& wrong) {
    const bool first = wrong.has_value() && !result_.wrong.has_value();
    if (first) result_.wrong = absl::StrCat(where, ": ", *wrong);
    return first;
  }

  JobRun run(const Gear& gear) {
    JobRun run = run_job(plan_, gear);
    ++result_.runs;
    const std::optional<std::string> wrong = wrong_with(plan_, expected_, run);
    if (note(gear.text(), wrong)) result_.gear = gear;
    const std::string name = gear.schedule.kind() == Schedule::Kind::kReplay ? "its replay" : gear.text();
    absl::StrAppend(&result_.others, result_.others.empty() ? "" : ", ", name, wrong.has_value() ? " wrong" : " right");
    return run;
  }

  // Two worlds of two threads at the same time know nothing of each other.
  void beside_each_other(const Schedule& schedule, const JobRun& alone) {
    std::array<JobRun, 2> runs;
    std::thread other([&] { runs[1] = run_job(plan_, {EngineKind::kFibers, schedule}); });
    runs[0] = run_job(plan_, {EngineKind::kThreads, schedule});
    other.join();
    for (const JobRun& run : runs) {
      ++result_.runs;
      note("one of two worlds", wrong_with(plan_, expected_, run));
      note("one of two worlds", first_difference_of(alone, run));
    }
  }

  const Job& job_;
  const Plan plan_;
  const JobLog expected_;
  const Effort effort_;
  Comparison result_;
};

}  // namespace

Comparison compare_gears(const Job& job, Effort effort, const Schedule& exploring) {
  return Comparer(job, effort).compare(exploring);
}
Comparison compare_gears(const Job& job, Effort effort) { return compare_gears(job, effort, exploring(job)); }

}  // namespace rankloom
