#include "world/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "rankloom/world.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;

// How many of 100 calls the last rank's recorder still holds.
size_t kept_of_100(int world_size, std::optional<int> recorded_calls) {
  size_t kept = 0;
  run_world({.world_size = world_size, .engine = EngineKind::kFibers, .recorded_calls = recorded_calls},
            [&](RankContext& rank) {
              if (rank.rank() != world_size - 1) return;
              for (int i = 0; i < 100; ++i) state_of(rank).recorder().open({}, [](FlightFacts&) {});
              kept = state_of(rank).recorder().entries().size();
            })
      .throw_if_failed();
  return kept;
}

TEST(FlightRecorderTest, LargeWorldsOfFibersKeepFewerCallsARankUnlessTold) {
  EXPECT_EQ(kept_of_100(1, {}), 64u);
  EXPECT_EQ(kept_of_100(4096, {}), 64u);
  EXPECT_EQ(kept_of_100(8192, {}), 32u);
  EXPECT_EQ(kept_of_100(40'000, {}), 8u);
  EXPECT_EQ(kept_of_100(8192, 70), 70u);
  EXPECT_EQ(kept_of_100(2, 0), 0u);
}

TEST(FlightRecorderTest, TheOldestCallGoesFirst) {
  RankRecorder recorder(nullptr, 3);
  for (int64_t seq = 1; seq <= 5; ++seq) {
    const int64_t id = recorder.open({.seq = seq}, [](FlightFacts& facts) { facts.op = "all_reduce"; });
    recorder.close(id, seq * 10, seq != 4);
  }
  recorder.close(0, 99, true);  // gone: nothing happens
  std::vector<int64_t> seqs;
  std::vector<int64_t> ended;
  for (const FlightEntry& entry : recorder.entries()) {
    seqs.push_back(entry.seq);
    ended.push_back(entry.completed_ns);
  }
  EXPECT_THAT(seqs, ElementsAre(3, 4, 5));
  EXPECT_THAT(ended, ElementsAre(30, 40, 50));
  EXPECT_EQ(recorder.entries()[1].state, FlightEntry::State::kFailed);
}

TEST(FlightRecorderTest, HowACallEndedFirstStays) {
  RankRecorder recorder(nullptr, 3);
  const int64_t id = recorder.open({}, [](FlightFacts&) {});
  recorder.close(id, 20, true, 10);
  recorder.close(id, 30, false);
  const FlightEntries entries = recorder.entries();
  EXPECT_EQ(entries[0].state, FlightEntry::State::kCompleted);
  EXPECT_EQ(entries[0].completed_ns, 20);
  EXPECT_EQ(entries[0].started_ns, 10);
}

// More kinds of calls than entries, kinds that come back, and facts that are known but have become others'.
TEST(FlightRecorderTest, EachEntryHasItsOwnFactsHoweverManyKindsThereAre) {
  RankRecorder recorder(nullptr, 3);
  RankRecorder::Known first;
  constexpr const char* kFile = "train.cc";
  const auto open = [&](int64_t seq, int line, RankRecorder::Known* known = nullptr) {
    const auto fill = [line](FlightFacts& facts) {
      EXPECT_EQ(facts.shapes.size(), 0u);
      facts.code = {kFile, line};
      facts.peer = 2 * line;
      const std::vector<int64_t> sizes(static_cast<size_t>(line) % 9, line);
      facts.shapes.add(sizes.data(), sizes.size());
    };
    return recorder.open({.seq = seq}, fill, known);
  };
  EXPECT_EQ(open(0, 0, &first), 0);
  EXPECT_EQ(recorder.open_again(first, {kFile, 5}, {.seq = 9}), -1);
  EXPECT_EQ(recorder.open_again(first, {kFile, 0}, {.seq = 1}), 1);
  for (int64_t seq = 2; seq < 60; ++seq) {
    const int line = static_cast<int>(seq % 13);
    EXPECT_EQ(open(seq, line), seq);
    recorder.set_peer(seq - 1, 100);
    const FlightEntries entries = recorder.entries();
    ASSERT_EQ(entries.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const FlightEntry& entry = entries[i];
      EXPECT_EQ(entry.record_id, seq - 2 + static_cast<int64_t>(i));
      EXPECT_EQ(entry.seq, entry.record_id);
      const int own = entry.seq < 2 ? 0 : static_cast<int>(entry.seq % 13);
      EXPECT_EQ(entry.code.line, own);
      EXPECT_EQ(entry.peer, i == 2 ? 2 * own : entry.seq == 0 ? 0 : 100);
      EXPECT_EQ(entry.shapes[0], own % 9);
    }
  }
  EXPECT_EQ(recorder.open_again(first, {kFile, 0}, {.seq = 60}), -1);
}

}  // namespace
}  // namespace rankloom
