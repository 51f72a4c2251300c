#pragma once

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rankloom {

// Of the first program of a day's run: the day, with room for a million programs behind it.
inline uint64_t todays_seed() {
  const absl::CivilDay day = absl::ToCivilDay(absl::Now(), absl::UTCTimeZone());
  return (static_cast<uint64_t>(day.year()) * 10'000 + static_cast<uint64_t>(day.month() * 100 + day.day())) *
         1'000'000;
}

}  // namespace rankloom
