// Stores in a world: who is woken, what a stuck job says, whose time passes.

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "rankloom/store.h"
#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(WorldStoreTest, OneSetWakesThoseWhoWaitForItsKeyAndNobodyElse) {
  constexpr int kWaiting = 64;
  RunReport report = run_world({.world_size = 2 * kWaiting + 1, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    if (rank.rank() < kWaiting) {
      EXPECT_EQ(rank.store().get("key"), "last");  // a point and a park
    } else if (rank.rank() < 2 * kWaiting) {
      rank.store().wait({"other"});  // the same
    } else {
      rank.store().set("key", "value");  // a point
      rank.store().set("unrelated", "");
      rank.store().set("key", "last");
      rank.store().set("other", "");
    }
  });
  report.throw_if_failed();
  // A rank that is woken for nothing parks once more.
  EXPECT_EQ(report.steps, 2u * 2 * kWaiting + 4);
}

TEST(WorldStoreTest, APushWakesOneOfThosePopping) {
  constexpr int kWaiting = 32;
  RunReport report = run_world({.world_size = kWaiting + 1, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    if (rank.rank() < kWaiting) {
      EXPECT_EQ(rank.store().queue_pop("q"), std::to_string(rank.rank()));  // the first to come is served first
    } else {
      for (int i = 0; i < kWaiting; ++i) rank.store().queue_push("q", std::to_string(i));
    }
  });
  report.throw_if_failed();
  EXPECT_EQ(report.steps, 2u * kWaiting + kWaiting);
}

// The world is aborted in the instant of the deadline, and before the wait comes to see that.
TEST(WorldStoreTest, AWaitThatAnAbortEndsAtItsDeadlineHasTheCauseOfTheAbort) {
  for (const bool barrier : {false, true}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      WorldOptions options{.world_size = 2, .engine = EngineKind::kFibers};
      options.schedule = Schedule::seeded(seed);
      const RunReport report = run_world(options, [barrier](RankContext& rank) {
        if (rank.rank() == 1) {
          rank.sleep_for(absl::Milliseconds(1));
          rank.world().abort("enough");
        } else if (barrier) {
          store_barrier(rank.store(), "gate", rank.rank(), 2, absl::Milliseconds(1));
        } else {
          rank.store().wait({"a"}, absl::Milliseconds(1));
        }
      });
      EXPECT_THAT(report.outcomes[0].text,
                  testing::AnyOf(HasSubstr("enough"), HasSubstr("timed out after 1ms: missing")))
          << "seed " << seed;
    }
  }
}

class WorldStoreGearTest : public testing::TestWithParam<Gear> {
 protected:
  WorldOptions options(int ranks) {
    WorldOptions options{.world_size = ranks};
    options.engine = GetParam() == Gear::kWorldFibers ? EngineKind::kFibers : EngineKind::kThreads;
    options.schedule = GetParam() == Gear::kWorldFree ? Schedule::free() : Schedule::seeded(3);
    return options;
  }
  bool deterministic() const { return GetParam() != Gear::kWorldFree; }
};
INSTANTIATE_TEST_SUITE_P(Gears, WorldStoreGearTest,
                         testing::Values(Gear::kWorldFree, Gear::kWorldBaton, Gear::kWorldFibers),
                         [](const auto& gear) { return name_of(gear.param); });

TEST_P(WorldStoreGearTest, AKeyThatNobodySetsIsADeadlockThatNamesItAndTheLine) {
  const int line = __LINE__ + 2;
  const RunReport report = run_world(options(2), [](RankContext& rank) {
    if (rank.rank() == 1) rank.store().get("never set");
  });
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock);
  EXPECT_THAT(
      report.text(),
      HasSubstr("rank 1 waits in store get key \"never set\" [world_store_test.cc:" + std::to_string(line) + "]"));
}

TEST_P(WorldStoreGearTest, ABarrierThatARankMissesIsADeadlock) {
  const RunReport report = run_world(options(3), [](RankContext& rank) {
    if (rank.rank() != 1) store_barrier(rank.store(), "epoch", rank.rank(), 3, {}, CodeSite{"some/train.cc", 12});
  });
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock);
  EXPECT_THAT(report.text(), testing::StartsWith(
                                 "Deadlock: no rank can move\n"
                                 "  ranks 0, 2 wait in store_barrier \"epoch\" for rank 1 (returned) [train.cc:12]\n"));
}

TEST_P(WorldStoreGearTest, ABarrierInASecondRoundUnderAPrefixNamesWhoIsMissing) {
  const RunReport report = run_world(options(3), [](RankContext& rank) {
    PrefixStore store("job", std::shared_ptr<Store>(&rank.store(), [](Store*) {}));
    store_barrier(store, "epoch/go/1", rank.rank(), 3, {}, CodeSite{"some/train.cc", 12});
    if (rank.rank() == 2) store_barrier(store, "epoch/go/1", rank.rank(), 3, {}, CodeSite{"some/train.cc", 14});
  });
  EXPECT_THAT(report.text(), testing::StartsWith("Deadlock: no rank can move\n"
                                                 "  rank 2 waits in store_barrier \"epoch/go/1\" for ranks 0-1 "
                                                 "(returned) [train.cc:14]\n"));
}

// The second of two that come as one rank may have been counted as the last before the first left its number.
TEST(WorldStoreTest, ABarrierToWhichTwoRanksComeAsOneLetsNobodyPassInAnySchedule) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const WorldOptions options{.world_size = 3, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(seed)};
    const RunReport report = run_world(options, [](RankContext& rank) {
      store_barrier(rank.store(), "epoch", std::min(rank.rank(), 1), 3, {}, CodeSite{"some/train.cc", 12});
    });
    for (const RunReport::Outcome& outcome : report.outcomes) {
      ASSERT_NE(outcome.state, RunReport::Outcome::State::kReturned) << "seed " << seed << "\n" << report.text();
    }
    ASSERT_THAT(report.text(), HasSubstr("rank 1 of 3 has come already")) << "seed " << seed;
  }
}

// Both give rank 1, and rank 2 nobody does: without the check all would pass.
TEST_P(WorldStoreGearTest, ABarrierToWhichTwoRanksComeAsOneIsRefused) {
  const RunReport report = run_world(options(3), [](RankContext& rank) {
    store_barrier(rank.store(), "epoch", std::min(rank.rank(), 1), 3, {}, CodeSite{"some/train.cc", 12});
  });
  EXPECT_EQ(report.outcomes[0].state, RunReport::Outcome::State::kStopped);
  EXPECT_THAT(
      report.text(),
      testing::MatchesRegex("rank [12] failed: InvalidArgument: [^\n]*HashStore store_barrier \"epoch\": rank 1 of 3 "
                            "has come already, want each rank once: two callers give the same rank, or one calls "
                            "again after a timeout \\[train.cc:12\\]\nranks 0(-1|, 2) stopped for it(\n.*)?"));
}

// A wait for several keys sleeps until the first of them comes.
TEST_P(WorldStoreGearTest, AWaitForKeysNamesThoseThatAreMissingWhenItEnds) {
  const auto comes_later = [](RankContext& rank) {
    rank.store().wait({"begun"});
    rank.sleep_for(absl::Milliseconds(1));
    rank.store().set("b", "1");
  };
  run_world(options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) return comes_later(rank);
    rank.store().set("begun", "");
    const DistError error = error_of([&] { rank.store().wait({"a", "b"}, absl::Seconds(2)); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr(": timed out after 2s: missing key \"a\" ["));
  }).throw_if_failed();
  const RunReport stuck = run_world(options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) return comes_later(rank);
    rank.store().set("begun", "");
    rank.store().multi_get({"a", "b", "c"});
  });
  EXPECT_THAT(stuck.text(), HasSubstr("rank 0 waits in store multi_get keys \"a\", \"b\", \"c\", still missing: "
                                      "keys \"a\", \"c\" ["));
}

TEST(WorldStoreTest, ABarrierWhoseLastRankComesAtTheDeadlineNamesItOrIsPassed) {
  std::set<std::string> ends;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    run_world({.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::seeded(seed)},
              [&](RankContext& rank) {
                if (rank.rank() == 1) rank.sleep_for(absl::Milliseconds(2));
                try {
                  store_barrier(rank.store(), "b", rank.rank(), 2, absl::Milliseconds(2));
                  ends.insert(absl::StrCat(rank.rank(), " passed"));
                } catch (const DistError& error) {
                  const std::string text = error.what();
                  ends.insert(text.substr(0, text.find(" [")));
                }
              })
        .throw_if_failed();
  }
  EXPECT_THAT(ends, testing::UnorderedElementsAre("0 passed", "1 passed",
                                                  "Timeout: rank 0, HashStore store_barrier \"b\": timed out after "
                                                  "2ms: missing rank 1 of 2"));
}

TEST_P(WorldStoreGearTest, ABarrierOfSomeRanksSaysWhichOfThemAreMissing) {
  const RunReport report = run_world(options(3), [](RankContext& rank) {
    if (rank.rank() == 2) store_barrier(rank.store(), "tail", 1, 2, {}, CodeSite{"some/train.cc", 12});
  });
  EXPECT_THAT(report.text(), testing::StartsWith("Deadlock: no rank can move\n"
                                                 "  rank 2 waits in store_barrier \"tail\", missing: rank 0 of 2 "
                                                 "[train.cc:12]\n"));
}

TEST_P(WorldStoreGearTest, ABarrierThatTimesOutHasItsLineAndWhoWaits) {
  std::string text;
  run_world(options(3), [&](RankContext& rank) {
    if (rank.rank() != 0) return;
    text = error_of([&] {
             store_barrier(rank.store(), "epoch", 0, 3, absl::Milliseconds(20), CodeSite{"some/train.cc", 12});
           }).what();
  }).throw_if_failed();
  EXPECT_THAT(text, testing::StartsWith("Timeout: rank 0, HashStore store_barrier \"epoch\": timed out after 20ms: "
                                        "missing ranks 1-2 of 3 [train.cc:12]\n"
                                        "  rank 0 waits in store_barrier \"epoch\" for "));
}

TEST_P(WorldStoreGearTest, ATimeoutOfTheCallPassesInTheWorldsTime) {
  const absl::Duration timeout = deterministic() ? absl::Hours(24) : absl::Milliseconds(20);
  run_world(options(2), [&](RankContext& rank) {
    if (rank.rank() == 1) return;
    const DistError error = error_of([&] { rank.store().wait({"absent"}, timeout); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("rank 0, HashStore wait: timed out after " + absl::FormatDuration(timeout) +
                                        ": missing key \"absent\""));
    EXPECT_GE(rank.now(), timeout);
  }).throw_if_failed();
}

TEST_P(WorldStoreGearTest, AFailedRankEndsTheWaitsOfOthersWithItsCause) {
  const RunReport report = run_world(options(3), [](RankContext& rank) {
    if (rank.rank() == 2) throw std::runtime_error("lost my data");
    const DistError error = error_of([&] { rank.store().get("from 2"); });
    EXPECT_THAT(error.what(), HasSubstr("lost my data"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("rank " + std::to_string(rank.rank()) + ", RankFailed")));
    EXPECT_THAT(error_of([&] { rank.store().set("later", ""); }).what(), HasSubstr("lost my data"));
    throw error;
  });
  EXPECT_EQ(report.first_failed, 2);
}

TEST_P(WorldStoreGearTest, AStoreOfNoWorldWorksInsideOne) {
  HashStore store;
  run_world(options(3), [&](RankContext& rank) {
    if (rank.rank() == 0) {
      EXPECT_EQ(store.get("key"), "value");
    } else if (rank.rank() == 1) {
      rank.yield();
      store.set("key", "value");
    }
    store_barrier(store, "b", rank.rank(), 3);
  }).throw_if_failed();
  EXPECT_EQ(store.get("key"), "value");
}

TEST_P(WorldStoreGearTest, AWatchIsCalledInTheOrderOfChangesByAllRanks) {
  constexpr int kRanks = 4;
  constexpr int kEach = 25;
  std::vector<std::string> seen;  // callbacks come one at a time
  run_world(options(kRanks), [&](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.store().watch_key("n", [&](std::optional<std::string_view> before, std::optional<std::string_view> after) {
        EXPECT_EQ(before.value_or("0"), seen.empty() ? "0" : seen.back());
        seen.emplace_back(*after);
      });
    }
    store_barrier(rank.store(), "watching", rank.rank(), kRanks);
    for (int i = 0; i < kEach; ++i) rank.store().add("n", 1);
    store_barrier(rank.store(), "done", rank.rank(), kRanks);
  }).throw_if_failed();
  ASSERT_EQ(seen.size(), static_cast<size_t>(kRanks * kEach));
  EXPECT_EQ(seen.back(), std::to_string(kRanks * kEach));
}

TEST_P(WorldStoreGearTest, WhatAWatchThrowsIsTheFailureOfTheRankThatLeftIt) {
  int delivered = 0;
  const RunReport report = run_world(options(3), [&](RankContext& rank) {
    if (rank.rank() == 2) return;
    if (rank.rank() == 1) {
      rank.store().watch_key("n", [](auto, auto) { throw std::runtime_error("from the watch of 1"); });
      // Those after it are called all the same.
      rank.store().watch_key("n", [&](auto, auto) { ++delivered; });
      rank.store().set("watching", "");
      rank.store().wait({"never"});
    } else {
      rank.store().wait({"watching"});
      EXPECT_NO_THROW(rank.store().set("n", "1"));
      EXPECT_EQ(delivered, 1);
      EXPECT_THAT(error_of([&] { rank.store().wait({"never"}); }).what(),
                  HasSubstr("rank 1 failed: from the watch of 1"));
    }
  });
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_EQ(report.outcomes[0].state, RunReport::Outcome::State::kReturned);
  EXPECT_THAT(report.text(), testing::StartsWith("rank 1 failed: from the watch of 1"));
}

TEST_P(WorldStoreGearTest, WhatARanksOwnWatchThrowsComesOutOfItsCall) {
  run_world(options(2), [&](RankContext& rank) {
    if (rank.rank() == 0) {
      int calls = 0;
      rank.store().watch_key("n", [&](auto, auto) {
        ++calls;
        throw std::runtime_error("mine");
      });
      rank.store().watch_key("n", [&](auto, auto) { ++calls; });
      EXPECT_THAT([&] { rank.store().set("n", "1"); },
                  testing::ThrowsMessage<std::runtime_error>(testing::StrEq("mine")));
      EXPECT_EQ(calls, 2);
      EXPECT_EQ(rank.store().get("n"), "1");
    }
    store_barrier(rank.store(), "done", rank.rank(), 2);
  }).throw_if_failed();
}

TEST(WorldStoreTest, OneSeedGivesOneOrderOnBothEngines) {
  const auto order = [](EngineKind engine, uint64_t seed) {
    std::string log;
    run_world({.world_size = 4, .engine = engine, .schedule = Schedule::seeded(seed)}, [&](RankContext& rank) {
      for (int i = 0; i < 5; ++i) rank.store().append("log", std::to_string(rank.rank()));
      store_barrier(rank.store(), "b", rank.rank(), 4);
      if (rank.rank() == 0) log = rank.store().get("log");
    }).throw_if_failed();
    return log;
  };
  std::vector<std::string> logs;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    logs.push_back(order(EngineKind::kFibers, seed));
    EXPECT_EQ(logs.back(), order(EngineKind::kThreads, seed)) << "seed " << seed;
    EXPECT_EQ(logs.back(), order(EngineKind::kFibers, seed)) << "seed " << seed;
  }
  std::sort(logs.begin(), logs.end());
  EXPECT_GT(std::unique(logs.begin(), logs.end()) - logs.begin(), 5);
}

TEST(FakeStoreTest, AnswersEverythingAtOnceAndHoldsNothing) {
  FakeStore store;
  store.set("a", "1");
  EXPECT_EQ(store.get("a"), "");
  EXPECT_EQ(store.add("n", 5), 5);
  EXPECT_EQ(store.add("n", 5), 5);
  EXPECT_EQ(store.compare_set("a", "x", "y"), "y");
  store.wait({"never"});
  EXPECT_TRUE(store.check({"never"}));
  EXPECT_FALSE(store.delete_key("a"));
  EXPECT_EQ(store.num_keys(), 0);
  store.append("a", "1");
  EXPECT_THAT(store.multi_get({"a", "b"}), ElementsAre("", ""));
  store.multi_set({"a"}, {"b"});
  store.queue_push("q", "x");
  EXPECT_EQ(store.queue_pop("q"), "");
  EXPECT_EQ(store.queue_len("q"), 0);
  EXPECT_THAT(store.list_keys(), IsEmpty());
  store.watch_key("a", [](auto, auto) { FAIL(); });
  store.set("a", "2");
  store_barrier(store, "b", 3, 8);
  EXPECT_EQ(error_of([&] { store.set_timeout(-absl::Seconds(1)); }).kind(), ErrorKind::kStoreError);
}

TEST(LargeValueTest, HundredMegabytesComeBackWhole) {
  std::string large(100'000'000, 'x');
  for (size_t i = 0; i < large.size(); i += 4093) large[i] = static_cast<char>(i);
  TempDir dir;
  HashStore hash;
  const std::shared_ptr<FileStore> file = FileStore::open(dir.file("store"));
  const std::shared_ptr<FileStore> other = FileStore::open(dir.file("store"));
  for (Store* store : {static_cast<Store*>(&hash), static_cast<Store*>(file.get())}) {
    store->set("large", large);
    EXPECT_TRUE(store->get("large") == large);
    store->set("small", "still works");
    EXPECT_EQ(store->get("small"), "still works");
  }
  EXPECT_TRUE(other->get("large") == large);
  EXPECT_TRUE(other->delete_key("large"));
  EXPECT_FALSE(file->check({"large"}));
}

}  // namespace
}  // namespace rankloom
