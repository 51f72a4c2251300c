#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_replace.h"
#include "rankloom/error.h"
#include "sim/scheduler/scheduler.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom {

using namespace internal;

// One way to run tasks.
struct Gear {
  EngineKind engine = EngineKind::kThreads;
  Schedule schedule = Schedule::free();

  std::string name() const {
    return absl::StrReplaceAll(std::string(engine_kind_name(engine)) + "_" + schedule.text(), {{":", "_"}});
  }
  friend void PrintTo(const Gear& gear, std::ostream* out) { *out << gear.name(); }
};

inline Gear free_gear() { return {EngineKind::kThreads, Schedule::free()}; }
inline Gear baton(Schedule schedule = Schedule::seeded(7)) { return {EngineKind::kThreads, std::move(schedule)}; }
inline Gear fibers(Schedule schedule = Schedule::seeded(7)) { return {EngineKind::kFibers, std::move(schedule)}; }

inline std::vector<Gear> deterministic_gears() {
  std::vector<Gear> gears;
  for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
    for (const Schedule& schedule :
         {Schedule::fifo(), Schedule::round_robin(), Schedule::seeded(7), Schedule::pct(7, 3)}) {
      gears.push_back({engine, schedule});
    }
  }
  return gears;
}
inline std::vector<Gear> every_gear() {
  std::vector<Gear> gears = deterministic_gears();
  gears.push_back(free_gear());
  return gears;
}
inline std::string gear_name(const testing::TestParamInfo<Gear>& info) { return info.param.name(); }

inline std::unique_ptr<Scheduler> make_scheduler(const Gear& gear, int ranks,
                                                 const std::function<void(WorldOptions&)>& tweak = {},
                                                 const RunHooks& hooks = {}) {
  WorldOptions options;
  options.engine = gear.engine;
  options.schedule = gear.schedule;
  options.world_size = ranks;
  if (tweak) tweak(options);
  absl::StatusOr<std::unique_ptr<Scheduler>> made = Scheduler::make(std::move(options), hooks);
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    return nullptr;
  }
  return *std::move(made);
}

// A gate for tests: opens once, and whoever waits names what for.
class Gate {
 public:
  explicit Gate(Scheduler* scheduler) : mu_(scheduler, internal::LockLevel::kSync) {}
  void open() {
    RankMutexLock lock(&mu_);
    open_ = true;
    changed_.notify_all();
  }
  absl::Status wait(const char* what = "gate", Deadline deadline = Deadline::never()) {
    RankMutexLock lock(&mu_);
    return changed_.await(
        &mu_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_; }, Site{.what = what, .code = CodeSite::here()},
        deadline);
  }

 private:
  RankMutex mu_;
  RankCondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace rankloom
