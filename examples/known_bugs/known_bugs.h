#pragma once

#include <span>

#include "rankloom/explore.h"
#include "rankloom/world.h"

namespace rankloom {

// A bug that distributed programs are known for, as a program that has it and one that does not.
struct KnownBug {
  const char* name;
  int ranks;
  void (*bug)(RankContext& rank);
  void (*fix)(RankContext& rank);
  // The length of a schedule written by hand that shows the bug: switches from the default order and choices of other
  // kinds.
  int minimum;
  const char* symptom;  // part of the failure's text

  WorldOptions world() const { return {.world_size = ranks, .engine = EngineKind::kFibers, .seed = 1}; }
};

std::span<const KnownBug> known_bugs();

}  // namespace rankloom
