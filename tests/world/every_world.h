#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "rankloom/schedule.h"
#include "rankloom/world.h"

namespace rankloom {

// The ways in which a world runs: what a group does must be the same in all of them.
struct WorldMode {
  const char* name;
  EngineKind engine;
  Schedule schedule;

  WorldOptions options(int world_size) const {
    return {.world_size = world_size, .engine = engine, .schedule = schedule};
  }
};

inline void PrintTo(const WorldMode& mode, std::ostream* out) { *out << mode.name; }

// A fixture whose tests run in each mode:
//   class SendTest : public EveryWorldTest {};
//   INSTANTIATE_TEST_SUITE_P(Worlds, SendTest, every_world(), world_name);
class EveryWorldTest : public testing::TestWithParam<WorldMode> {
 protected:
  using Program = absl::FunctionRef<void(RankContext&)>;

  bool deterministic() const { return GetParam().schedule.deterministic(); }
  bool seeded() const { return GetParam().schedule.kind() == Schedule::Kind::kSeeded; }
  // Of groups, as texts name it.
  const char* backend() const { return "threaded"; }

  WorldOptions options(int world_size) const { return GetParam().options(world_size); }

  // A world in which all ranks must return.
  RunReport run(int world_size, Program program) { return run(options(world_size), program); }
  RunReport run(WorldOptions world, Program program) {
    RunReport report = run_world(std::move(world), program);
    EXPECT_TRUE(report.ok()) << report.text();
    return report;
  }
  // A world that must fail.
  RunReport run_to_failure(int world_size, Program program) { return run_to_failure(options(world_size), program); }
  RunReport run_to_failure(WorldOptions world, Program program) {
    RunReport report = run_world(std::move(world), program);
    EXPECT_FALSE(report.ok());
    return report;
  }
};

// Those in which a thread may attach.
inline auto every_threads_world() {
  return testing::Values(WorldMode{"threads_free", EngineKind::kThreads, Schedule::free()},
                         WorldMode{"threads_seeded", EngineKind::kThreads, Schedule::seeded(11)});
}
inline auto every_world() {
  return testing::Values(WorldMode{"threads_free", EngineKind::kThreads, Schedule::free()},
                         WorldMode{"threads_seeded", EngineKind::kThreads, Schedule::seeded(11)},
                         WorldMode{"fibers_fifo", EngineKind::kFibers, Schedule::fifo()},
                         WorldMode{"fibers_seeded", EngineKind::kFibers, Schedule::seeded(12)});
}

inline std::string world_name(const testing::TestParamInfo<WorldMode>& info) { return info.param.name; }

}  // namespace rankloom
