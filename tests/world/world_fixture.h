#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "sim/dist_error.h"
#include "world/world.h"

namespace rankloom {

// One way to run a world.
struct WorldGear {
  const char* name;
  EngineKind engine;
  Schedule schedule;

  WorldOptions options(int world_size) const {
    return {.world_size = world_size, .engine = engine, .schedule = schedule};
  }
  friend void PrintTo(const WorldGear& gear, std::ostream* out) { *out << gear.name; }
};

inline auto thread_gears() {
  return testing::Values(WorldGear{"threads_free", EngineKind::kThreads, Schedule::free()},
                         WorldGear{"threads_seeded", EngineKind::kThreads, Schedule::seeded(11)});
}
inline auto every_world_gear() {
  return testing::Values(WorldGear{"threads_free", EngineKind::kThreads, Schedule::free()},
                         WorldGear{"threads_seeded", EngineKind::kThreads, Schedule::seeded(11)},
                         WorldGear{"fibers_fifo", EngineKind::kFibers, Schedule::fifo()},
                         WorldGear{"fibers_seeded", EngineKind::kFibers, Schedule::seeded(12)});
}
inline std::string world_gear_name(const testing::TestParamInfo<WorldGear>& info) { return info.param.name; }

// What the DistError that `call` throws says; its kind is checked.
template <typename Call>
std::string error_of(Call call, ErrorKind kind) {
  try {
    call();
  } catch (const DistError& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace rankloom
