#include "rankloom/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rankloom/error.h"

namespace rankloom {
namespace {

using testing::HasSubstr;

TEST(ScheduleTest, TextAndParseAreInverse) {
  const uint64_t largest = std::numeric_limits<uint64_t>::max();
  for (const Schedule& schedule : {Schedule::free(), Schedule::fifo(), Schedule::round_robin(), Schedule::seeded(0),
                                   Schedule::seeded(largest), Schedule::pct(7, 1), Schedule::pct(largest, 12),
                                   Schedule::starve(3), Schedule::late_completion(4), Schedule::steered(5, {})}) {
    const absl::StatusOr<Schedule> parsed = Schedule::parse(schedule.text());
    ASSERT_TRUE(parsed.ok()) << schedule.text();
    EXPECT_EQ(parsed->kind(), schedule.kind());
    EXPECT_EQ(parsed->seed(), schedule.seed());
    EXPECT_EQ(parsed->depth(), schedule.depth());
    EXPECT_EQ(parsed->text(), schedule.text());
  }
}

TEST(ScheduleTest, ASteeredScheduleIsItsSwitches) {
  const std::vector<Schedule::Switch> switches = {
      {.at = Schedule::Switch::kStart, .nth = 0, .to = 2},
      {.at = 0, .nth = 5, .to = 1},
      {.kind = Schedule::Switch::Kind::kCompletion, .at = 2, .nth = 1, .to = 0},
      {.kind = Schedule::Switch::Kind::kValue, .at = 1, .nth = 0, .to = 3}};
  const Schedule schedule = Schedule::steered(7, switches);
  EXPECT_EQ(schedule.text(), "steered:7:s@0>2,0@5>1,2@1>c0,1#0=3");
  const absl::StatusOr<Schedule> parsed = Schedule::parse(schedule.text());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->switches(), switches);
  EXPECT_EQ(parsed->seed(), 7u);
  for (const std::string text :
       {"steered", "steered:1:", "steered:1:0@1", "steered:1:0>1", "steered:1:0@x>1", "steered:1:0@1>1,",
        "steered:1:-2@1>1", "steered:1:0#1>1", "steered:1:0#1=c1", "steered:1:0@-1>1", "steered:1:0@1>-1",
        "steered:1:0#0=-1", "starve", "starve:1:2", "late:x", "late:1:2"}) {
    EXPECT_FALSE(Schedule::parse(text).ok()) << text;
  }
}

TEST(ScheduleTest, TextsAreWhatUsersType) {
  EXPECT_EQ(Schedule().text(), "unset");
  EXPECT_EQ(Schedule::free().text(), "free");
  EXPECT_EQ(Schedule::fifo().text(), "fifo");
  EXPECT_EQ(Schedule::round_robin().text(), "round_robin");
  EXPECT_EQ(Schedule::seeded(7).text(), "seeded:7");
  EXPECT_EQ(Schedule::pct(7, 3).text(), "pct:7:3");
  EXPECT_EQ(Schedule::replay(Trace()).text(), "replay");
}

TEST(ScheduleTest, PctHasADepthOfThreeUnlessTold) { EXPECT_EQ(Schedule::parse("pct:9")->text(), "pct:9:3"); }

TEST(ScheduleTest, AnUnknownTextIsRefusedWithTheListOfKnownOnes) {
  for (const std::string text : {"", "random", "free:1", "fifo:", "seeded", "seeded:", "seeded:x", "seeded:-1",
                                 "seeded:7:8", "seeded:18446744073709551616", "pct", "pct:", "pct:1:0", "pct:1:-2",
                                 "pct:1:x", "pct:1:2:3", "replay", "Fifo"}) {
    const absl::StatusOr<Schedule> parsed = Schedule::parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(error_kind(parsed.status()), ErrorKind::kInvalidArgument);
    EXPECT_EQ(parsed.status().message(), "schedule \"" + text +
                                             "\" is none of free, fifo, round_robin, seeded:SEED, pct:SEED[:DEPTH], "
                                             "starve:SEED, late:SEED, steered:SEED[:SWITCH,...]");
  }
}

TEST(ScheduleTest, OnlyFreeAndUnsetAreNotDeterministic) {
  EXPECT_FALSE(Schedule().deterministic());
  EXPECT_FALSE(Schedule::free().deterministic());
  for (const Schedule& schedule : {Schedule::fifo(), Schedule::round_robin(), Schedule::seeded(1), Schedule::pct(1, 2),
                                   Schedule::replay(Trace())}) {
    EXPECT_TRUE(schedule.deterministic()) << schedule.text();
  }
}

TEST(ScheduleTest, AReplayKnowsTheScheduleThatWasRecorded) {
  Trace trace;
  trace.set_schedule("pct:9:4");
  EXPECT_EQ(Schedule::replay(trace).recorded().text(), "pct:9:4");
  trace.set_schedule("from another time");
  EXPECT_EQ(Schedule::replay(trace).recorded().text(), "replay");
  EXPECT_EQ(Schedule::seeded(3).recorded().text(), "seeded:3");
}

TEST(ScheduleTest, AReplayHoldsItsTrace) {
  Trace trace;
  trace.set_schedule("seeded:7");
  trace.add({.what = trace.intern("yield"), .rank = 1, .size = 2, .value = 0});
  const Schedule schedule = Schedule::replay(trace);
  const Schedule copy = schedule;
  ASSERT_NE(copy.trace(), nullptr);
  EXPECT_EQ(*copy.trace(), trace);
  EXPECT_EQ(Schedule::fifo().trace(), nullptr);
}

TEST(ScheduleTest, OneThatWasMovedFromIsAsBefore) {
  Trace trace;
  trace.set_schedule("seeded:7");
  trace.add({.what = trace.intern("yield"), .rank = 1, .size = 2, .value = 0});
  Schedule replay = Schedule::replay(trace);
  const Schedule taken = std::move(replay);
  EXPECT_EQ(*taken.trace(), trace);
  ASSERT_NE(replay.trace(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(replay.recorded().text(), "seeded:7");
  EXPECT_TRUE(replay.explores());
}

}  // namespace
}  // namespace rankloom
