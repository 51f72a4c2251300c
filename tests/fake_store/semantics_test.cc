// The behaviour of a store, the same on every store and under every way to run ranks.

#include <map>
#include <optional>

#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
using testing::UnorderedElementsAre;

// Long enough to be reached only by a wait that must end so. File stores wait in real time.
constexpr absl::Duration kShort = absl::Milliseconds(20);

std::string with_nul(const char* text, size_t n) { return std::string(text, n); }

class SemanticsTest : public StoreTest {};
INSTANTIATE_TEST_SUITE_P(Stores, SemanticsTest, every_store_and_gear(), store_test_name);

TEST_P(SemanticsTest, GetGivesWhatWasSetLast) {
  run_ranks(1, [](int, Store& store) {
    store.set("a", "1");
    store.set("b", "2");
    EXPECT_EQ(store.get("a"), "1");
    store.set("a", "three");
    EXPECT_EQ(store.get("a"), "three");
    EXPECT_EQ(store.get("b"), "2");
  });
}

TEST_P(SemanticsTest, GetWaitsForTheKey) {
  run_ranks(3, [](int rank, Store& store) {
    if (rank == 2) {
      store.set("key", "value");
    } else {
      EXPECT_EQ(store.get("key"), "value");
    }
  });
}

TEST_P(SemanticsTest, GetTimesOutAfterTheStoresTimeoutAndNamesTheKey) {
  run_ranks(1, [this](int, Store& store) {
    store.set_timeout(absl::ZeroDuration());
    const DistError error = error_of([&] { store.get("absent"); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(),
                HasSubstr(kind_text() + " get: timed out after 0: missing key \"" + key_text("absent") + "\""));
    EXPECT_EQ(error.op(), "store get");
    EXPECT_EQ(error.rank(), gear() == Gear::kThreads ? -1 : 0);
  });
}

TEST_P(SemanticsTest, AddCountsFromNothingAndKeepsText) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_EQ(store.add("n", 5), 5);
    EXPECT_EQ(store.add("n", -7), -2);
    EXPECT_EQ(store.get("n"), "-2");
    EXPECT_EQ(store.add("n", 0), -2);
    store.set("n", "40");
    EXPECT_EQ(store.add("n", 2), 42);
    store.set("n", "");
    EXPECT_EQ(store.add("n", 3), 3);
    EXPECT_EQ(store.add("min", std::numeric_limits<int64_t>::min()), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(store.get("min"), "-9223372036854775808");
  });
}

TEST_P(SemanticsTest, AddsOfAllRanksAreAllCounted) {
  constexpr int kRanks = 4;
  constexpr int kEach = 50;
  run_ranks(kRanks, [](int rank, Store& store) {
    for (int i = 0; i < kEach; ++i) store.add("n", rank + 1);
    if (store.add("done", 1) == kRanks) {
      EXPECT_EQ(store.add("n", 0), kEach * (1 + 2 + 3 + 4));
    }
  });
}

TEST_P(SemanticsTest, AddToWhatIsNoNumberFailsAndChangesNothing) {
  run_ranks(1, [this](int, Store& store) {
    for (const char* text : {"abc", "12abc", " 12", "+1", "0x10", "9223372036854775808", "1.5"}) {
      store.set("n", text);
      const DistError error = error_of([&] { store.add("n", 1); });
      EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
      EXPECT_THAT(error.what(), HasSubstr(kind_text() + " add key \"" + key_text("n") + "\": have \"" + text +
                                          "\", want a decimal int64"));
      EXPECT_EQ(store.get("n"), text);
    }
  });
}

TEST_P(SemanticsTest, AddBeyondInt64FailsAndChangesNothing) {
  run_ranks(1, [](int, Store& store) {
    store.add("n", std::numeric_limits<int64_t>::max());
    const DistError error = error_of([&] { store.add("n", 2); });
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
    EXPECT_THAT(error.what(), HasSubstr("have 9223372036854775807 and 2, want a sum that is an int64"));
    EXPECT_EQ(store.get("n"), "9223372036854775807");
  });
}

TEST_P(SemanticsTest, CompareSetOfAnAbsentKeyNeedsAnEmptyExpectation) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_EQ(store.compare_set("key", "something", "new"), "something");
    EXPECT_FALSE(store.check({"key"}));
    EXPECT_EQ(store.compare_set("key", "", "new"), "new");
    EXPECT_EQ(store.get("key"), "new");
  });
}

TEST_P(SemanticsTest, CompareSetReplacesOnlyWhatIsExpected) {
  run_ranks(1, [](int, Store& store) {
    store.set("key", "one");
    EXPECT_EQ(store.compare_set("key", "two", "three"), "one");
    EXPECT_EQ(store.compare_set("key", "", "three"), "one");
    EXPECT_EQ(store.get("key"), "one");
    EXPECT_EQ(store.compare_set("key", "one", "three"), "three");
    EXPECT_EQ(store.get("key"), "three");
    store.set("key", "");
    EXPECT_EQ(store.compare_set("key", "", "from empty"), "from empty");
    EXPECT_EQ(store.compare_set("key", "from empty", ""), "");
    EXPECT_TRUE(store.check({"key"}));
  });
}

TEST_P(SemanticsTest, OneRankWinsACompareSet) {
  constexpr int kRanks = 4;
  run_ranks(kRanks, [](int rank, Store& store) {
    const std::string mine = "rank " + std::to_string(rank);
    const std::string leader = store.compare_set("leader", "", mine);
    EXPECT_EQ(store.get("leader"), leader);
    if (leader == mine) {
      EXPECT_EQ(store.add("leaders", 1), 1);
    }
  });
}

TEST_P(SemanticsTest, WaitReturnsWhenAllKeysAreThere) {
  run_ranks(4, [](int rank, Store& store) {
    if (rank == 0) {
      store.wait({"from 1", "from 2", "from 3"});
      EXPECT_TRUE(store.check({"from 1", "from 2", "from 3"}));
    } else {
      store.set("from " + std::to_string(rank), "");
    }
  });
}

TEST_P(SemanticsTest, WaitForNothingReturnsAtOnce) {
  run_ranks(1, [](int, Store& store) {
    store.wait(std::vector<std::string>{});
    store.wait(std::vector<std::string>{}, absl::ZeroDuration());
    EXPECT_TRUE(store.check(std::vector<std::string>{}));
    EXPECT_THAT(store.multi_get(std::vector<std::string>{}), IsEmpty());
  });
}

TEST_P(SemanticsTest, WaitThatTimesOutNamesTheMissingKeysOnly) {
  run_ranks(1, [this](int, Store& store) {
    store.set("here", "");
    const DistError error = error_of([&] { store.wait({"absent", "here", with_nul("n\0l", 3)}, kShort); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr(kind_text() + " wait: timed out after 20ms: missing keys \"" +
                                        key_text("absent") + "\", \"" + key_text("n") + "\\x00l\""));
    EXPECT_THAT(error.what(), Not(HasSubstr("here")));
  });
}

TEST_P(SemanticsTest, WaitThatTimesOutNamesFewOfManyKeys) {
  run_ranks(1, [](int, Store& store) {
    std::vector<std::string> keys;
    for (int i = 0; i < 100; ++i) keys.push_back("k" + std::to_string(i));
    const DistError error = error_of([&] { store.wait(keys, absl::ZeroDuration()); });
    EXPECT_THAT(error.what(), HasSubstr(" and 92 more"));
    keys.resize(9);
    EXPECT_THAT(error_of([&] { store.wait(keys, absl::ZeroDuration()); }).what(), HasSubstr(" and 1 more"));
    keys.resize(8);
    EXPECT_THAT(error_of([&] { store.wait(keys, absl::ZeroDuration()); }).what(),
                AllOf(HasSubstr("k7\""), Not(HasSubstr(" more"))));
  });
}

TEST_P(SemanticsTest, AKeyOfMoreThan80BytesIsCutInTexts) {
  run_ranks(1, [this](int, Store& store) {
    const std::string whole(80 - key_text("").size(), 'k');
    EXPECT_THAT(error_of([&] { store.wait({whole}, absl::ZeroDuration()); }).what(),
                AllOf(HasSubstr("\"" + key_text(whole) + "\""), Not(HasSubstr("..."))));
    EXPECT_THAT(error_of([&] { store.wait({whole + "k"}, absl::ZeroDuration()); }).what(),
                HasSubstr("...\" (81 bytes)"));
  });
}

TEST_P(SemanticsTest, CheckDoesNotWait) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_FALSE(store.check({"a"}));
    store.set("a", "");
    EXPECT_TRUE(store.check({"a"}));
    EXPECT_FALSE(store.check({"a", "b"}));
    store.set("b", "");
    EXPECT_TRUE(store.check({"a", "b", "a"}));
  });
}

TEST_P(SemanticsTest, DeleteKeyTellsWhetherThereWasOne) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_FALSE(store.delete_key("a"));
    store.set("a", "1");
    EXPECT_TRUE(store.delete_key("a"));
    EXPECT_FALSE(store.delete_key("a"));
    EXPECT_FALSE(store.check({"a"}));
    EXPECT_EQ(store.add("a", 1), 1);
  });
}

TEST_P(SemanticsTest, ADeletedKeyIsWaitedForAgain) {
  run_ranks(2, [](int rank, Store& store) {
    if (rank == 0) {
      store.set("a", "old");
      store.delete_key("a");
      store.set("deleted", "");
      EXPECT_EQ(store.get("a"), "new");
    } else {
      store.wait({"deleted"});
      store.set("a", "new");
    }
  });
}

TEST_P(SemanticsTest, NumKeysCountsValues) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_EQ(store.num_keys(), 0);
    store.set("a", "");
    store.add("b", 1);
    store.append("c", "x");
    store.set("a", "again");
    EXPECT_EQ(store.num_keys(), 3);
    store.delete_key("a");
    EXPECT_EQ(store.num_keys(), 2);
  });
}

TEST_P(SemanticsTest, AppendAddsBehind) {
  run_ranks(1, [](int, Store& store) {
    store.append("a", "one");
    store.append("a", "");
    store.append("a", " two");
    EXPECT_EQ(store.get("a"), "one two");
  });
}

TEST_P(SemanticsTest, AppendsOfAllRanksStayWhole) {
  run_ranks(3, [](int rank, Store& store) {
    for (int i = 0; i < 20; ++i) store.append("log", std::string(3, static_cast<char>('a' + rank)));
    if (store.add("done", 1) < 3) return;
    const std::string log = store.get("log");
    ASSERT_EQ(log.size(), 3u * 20 * 3);
    std::map<std::string, int> counts;
    for (size_t i = 0; i < log.size(); i += 3) ++counts[log.substr(i, 3)];
    EXPECT_EQ(counts, (std::map<std::string, int>{{"aaa", 20}, {"bbb", 20}, {"ccc", 20}}));
  });
}

TEST_P(SemanticsTest, MultiSetAndMultiGetKeepTheirOrder) {
  run_ranks(1, [](int, Store& store) {
    store.multi_set({"a", "b", "c"}, {"1", "", "3"});
    EXPECT_THAT(store.multi_get({"c", "a", "b", "a"}), ElementsAre("3", "1", "", "1"));
    store.multi_set({"a", "a"}, {"first", "last"});
    EXPECT_EQ(store.get("a"), "last");
  });
}

TEST_P(SemanticsTest, MultiGetWaitsForEveryKey) {
  run_ranks(3, [](int rank, Store& store) {
    if (rank == 0) {
      EXPECT_THAT(store.multi_get({"from 1", "from 2"}), ElementsAre("one", "two"));
    } else {
      store.set("from " + std::to_string(rank), rank == 1 ? "one" : "two");
    }
  });
}

TEST_P(SemanticsTest, MultiSetIsSeenWholeOrNotAtAll) {
  run_ranks(3, [](int rank, Store& store) {
    if (rank == 0) {
      for (int i = 1; i <= 30; ++i) {
        const std::string value = std::to_string(i);
        store.multi_set({"x", "y", "z"}, {value, value, value});
      }
      return;
    }
    for (int last = 0; last < 30;) {
      const std::vector<std::string> values = store.multi_get({"x", "y", "z"});
      ASSERT_EQ(values[0], values[1]);
      ASSERT_EQ(values[0], values[2]);
      last = std::stoi(values[0]);
    }
  });
}

TEST_P(SemanticsTest, MultiSetOfUnequalListsFails) {
  run_ranks(1, [](int, Store& store) {
    const DistError error = error_of([&] { store.multi_set({"a", "b"}, {"1"}); });
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
    EXPECT_THAT(error.what(), HasSubstr("multi_set: have 1 values, want one for each of 2 keys"));
    EXPECT_EQ(store.num_keys(), 0);
  });
}

TEST_P(SemanticsTest, AQueueIsFirstInFirstOut) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_EQ(store.queue_len("q"), 0);
    for (const char* value : {"one", "", "three"}) store.queue_push("q", value);
    EXPECT_EQ(store.queue_len("q"), 3);
    EXPECT_EQ(store.queue_pop("q"), "one");
    EXPECT_EQ(store.queue_pop("q", /*block=*/false), "");
    store.queue_push("q", "four");
    EXPECT_EQ(store.queue_pop("q"), "three");
    EXPECT_EQ(store.queue_pop("q"), "four");
    EXPECT_EQ(store.queue_len("q"), 0);
  });
}

TEST_P(SemanticsTest, QueuesAndValuesAreApart) {
  run_ranks(1, [](int, Store& store) {
    store.queue_push("key", "queued");
    EXPECT_EQ(store.num_keys(), 0);
    EXPECT_THAT(store.list_keys(), IsEmpty());
    EXPECT_FALSE(store.delete_key("key"));
    store.set("key", "value");
    EXPECT_EQ(store.get("key"), "value");
    EXPECT_TRUE(store.delete_key("key"));
    EXPECT_EQ(store.queue_pop("key"), "queued");
  });
}

TEST_P(SemanticsTest, CheckAndWaitSeeAQueueThatIsNotEmpty) {
  run_ranks(2, [](int rank, Store& store) {
    if (rank == 1) {
      store.queue_push("q", "x");
      return;
    }
    store.wait({"q"});
    EXPECT_TRUE(store.check({"q"}));
    EXPECT_EQ(store.queue_pop("q"), "x");
    EXPECT_FALSE(store.check({"q"}));
  });
}

TEST_P(SemanticsTest, PopOfAnEmptyQueueFailsIfItMayNotBlock) {
  run_ranks(1, [this](int, Store& store) {
    const DistError error = error_of([&] { store.queue_pop("q", /*block=*/false); });
    EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
    EXPECT_THAT(error.what(), HasSubstr("queue_pop key \"" + key_text("q") + "\": the queue is empty: have 0 values"));
    store.queue_push("q", "x");
    store.queue_pop("q");
    EXPECT_EQ(error_of([&] { store.queue_pop("q", false); }).kind(), ErrorKind::kStoreError);
  });
}

TEST_P(SemanticsTest, PopOfAnEmptyQueueTimesOut) {
  run_ranks(1, [this](int, Store& store) {
    store.set_timeout(absl::ZeroDuration());
    const DistError error = error_of([&] { store.queue_pop("q"); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("queue_pop: timed out after 0: missing key \"" + key_text("q") + "\""));
  });
}

TEST_P(SemanticsTest, EachPushedValueIsPoppedByOneRank) {
  constexpr int kRanks = 4;
  constexpr int kValues = 30;  // a multiple of the three that pop
  run_ranks(kRanks, [](int rank, Store& store) {
    if (rank == 0) {
      for (int i = 0; i < kValues; ++i) store.queue_push("work", std::to_string(i));
      store.wait({"done 1", "done 2", "done 3"});
      EXPECT_EQ(store.queue_len("work"), 0);
      EXPECT_EQ(store.get("sum"), std::to_string(kValues * (kValues - 1) / 2));
      return;
    }
    for (int i = 0; i < kValues / 3; ++i) store.add("sum", std::stoi(store.queue_pop("work")));
    store.set("done " + std::to_string(rank), "");
  });
}

TEST_P(SemanticsTest, ListKeysIsSorted) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_THAT(store.list_keys(), IsEmpty());
    for (const char* key : {"b", "a", "c/d", "", "aa"}) store.set(key, "");
    EXPECT_THAT(store.list_keys(), ElementsAre("", "a", "aa", "b", "c/d"));
  });
}

TEST_P(SemanticsTest, KeysAndValuesMayBeEmptyAndBinary) {
  run_ranks(1, [](int, Store& store) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
    store.set("", "empty key");
    store.set(all, all);
    store.set(with_nul("a\0b", 3), "one");
    store.set(with_nul("a\0c", 3), "two");
    store.set("a", "");
    EXPECT_EQ(store.get(""), "empty key");
    EXPECT_EQ(store.get(all), all);
    EXPECT_EQ(store.get(with_nul("a\0b", 3)), "one");
    EXPECT_EQ(store.get(with_nul("a\0c", 3)), "two");
    EXPECT_EQ(store.get("a"), "");
    EXPECT_EQ(store.num_keys(), 5);
    store.queue_push(all, all);
    EXPECT_EQ(store.queue_pop(all), all);
    EXPECT_THAT(store.multi_get({all, ""}), ElementsAre(all, "empty key"));
    EXPECT_EQ(store.compare_set(all, all, with_nul("\0", 1)), with_nul("\0", 1));
    store.append(all, with_nul("\0", 1));
    EXPECT_EQ(store.get(all), with_nul("\0\0", 2));
  });
}

TEST_P(SemanticsTest, ALongKeyIsCutInTexts) {
  run_ranks(1, [](int, Store& store) {
    const std::string key(1'000'000, 'k');
    store.set(key, "value");
    EXPECT_EQ(store.get(key), "value");
    const DistError error = error_of([&] { store.wait({key + "x"}, absl::ZeroDuration()); });
    EXPECT_THAT(error.what(), HasSubstr("kkk...\" (10000"));
    EXPECT_THAT(std::string(error.what()), SizeIs(testing::Lt(300)));
  });
}

TEST_P(SemanticsTest, NegativeTimeoutsAreRefused) {
  run_ranks(1, [](int, Store& store) {
    store.set("a", "");
    for (const DistError& error : {error_of([&] { store.wait({"a"}, -absl::Seconds(1)); }),
                                   error_of([&] { store.set_timeout(-absl::Seconds(1)); }),
                                   error_of([&] { store_barrier(store, "b", 0, 1, -absl::Seconds(1)); })}) {
      EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
      EXPECT_THAT(error.what(), HasSubstr("negative timeout: have -1s, want 0 or more"));
    }
  });
}

TEST_P(SemanticsTest, TheTimeoutIsTheStores) {
  run_ranks(1, [](int, Store& store) {
    EXPECT_EQ(store.timeout(), absl::Seconds(300));
    store.set_timeout(absl::InfiniteDuration());
    EXPECT_EQ(store.timeout(), absl::InfiniteDuration());
    store.set_timeout(300 * 366 * absl::Hours(24));  // more nanoseconds than 2^63
    EXPECT_NE(store.timeout(), absl::InfiniteDuration());
    store.set_timeout(kShort);
    EXPECT_EQ(store.timeout(), kShort);
  });
}

TEST_P(SemanticsTest, AWatchSeesEveryChangeInOrder) {
  run_ranks(1, [](int, Store& store) {
    std::vector<std::string> seen;
    store.watch_key("a", [&](std::optional<std::string_view> before, std::optional<std::string_view> after) {
      seen.push_back(std::string(before.value_or("-")) + ">" + std::string(after.value_or("-")));
    });
    store.set("a", "1");
    store.set("other", "x");
    store.add("a", 1);
    store.append("a", "0");
    store.compare_set("a", "20", "30");
    store.compare_set("a", "wrong", "40");
    store.multi_set({"b", "a"}, {"x", "50"});
    store.delete_key("a");
    store.delete_key("a");
    EXPECT_THAT(seen, ElementsAre("->1", "1>2", "2>20", "20>30", "30>50", "50>-"));
  });
}

TEST_P(SemanticsTest, AWatchMayUseTheStore) {
  run_ranks(1, [](int, Store& store) {
    std::vector<std::string> seen;
    store.watch_key("a", [&](std::optional<std::string_view>, std::optional<std::string_view> after) {
      seen.emplace_back(*after);
      if (store.add("echoes", 1) < 3) store.append("a", "!");
    });
    store.set("a", "x");
    EXPECT_THAT(seen, ElementsAre("x", "x!", "x!!"));
    EXPECT_EQ(store.get("a"), "x!!");
  });
}

TEST_P(SemanticsTest, AnExceptionOfAWatchReachesWhoChangedTheKey) {
  run_ranks(1, [](int, Store& store) {
    bool first = true;
    int calls = 0;
    store.watch_key("a", [&](std::optional<std::string_view>, std::optional<std::string_view>) {
      ++calls;
      if (std::exchange(first, false)) throw std::runtime_error("from the watch");
    });
    EXPECT_THROW(store.set("a", "1"), std::runtime_error);
    EXPECT_EQ(store.get("a"), "1");
    store.set("a", "2");
    EXPECT_EQ(calls, 2);
  });
}

TEST_P(SemanticsTest, NobodyLeavesABarrierBeforeAllCame) {
  constexpr int kRanks = 4;
  run_ranks(kRanks, [](int rank, Store& store) {
    for (int round = 1; round <= 5; ++round) {
      store.add("before", 1);
      store_barrier(store, "b", rank, kRanks);
      EXPECT_EQ(store.add("before", 0), round * kRanks);
      store_barrier(store, "b", rank, kRanks);
    }
  });
}

TEST_P(SemanticsTest, ABarrierLeavesNoTrailOfKeys) {
  run_ranks(2, [](int rank, Store& store) {
    for (int round = 0; round < 20; ++round) store_barrier(store, "b", rank, 2);
    if (rank == 0) {
      EXPECT_LE(store.num_keys(), 3);
    }
  });
}

TEST_P(SemanticsTest, ABarrierThatTimesOutNamesTheMissingRanks) {
  run_ranks(1, [this](int, Store& store) {
    store.append("b/arrived/0", "3 ");
    store.add("b/count", 1);
    const DistError error = error_of([&] { store_barrier(store, "b", 1, 4, kShort); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    // In a world the rank is the caller's.
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("Timeout: rank 0, "), HasSubstr("Timeout: rank 1, ")));
    EXPECT_THAT(error.what(), testing::ContainsRegex("store_barrier \"b\"( as rank 1)?: timed out after 20ms: missing "
                                                     "ranks 0, 2 of 4"));
    EXPECT_THAT(error.what(), HasSubstr(prefixed() ? "PrefixStore" : kind_text()));
  });
}

TEST_P(SemanticsTest, ABarrierToWhichARankComesTwiceNamesIt) {
  run_ranks(1, [this](int, Store& store) {
    EXPECT_EQ(error_of([&] { store_barrier(store, "b", 2, 4, kShort); }).kind(), ErrorKind::kTimeout);
    store.append("c/arrived/0", "12 ");
    EXPECT_EQ(error_of([&] { store_barrier(store, "c", 2, 13, kShort); }).kind(), ErrorKind::kTimeout);  // 12 is not 2
    const DistError error = error_of([&] { store_barrier(store, "b", 2, 4, kShort); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(),
                HasSubstr("store_barrier \"b\": rank 2 of 4 has come already, want each rank once: two callers "
                          "give the same rank, or one calls again after a timeout ["));
    EXPECT_THAT(error.what(), HasSubstr("semantics_test.cc:"));
    EXPECT_THAT(error.what(), HasSubstr(prefixed() ? "PrefixStore" : kind_text()));
  });
}

TEST_P(SemanticsTest, ABarrierOfARankOutsideItFails) {
  run_ranks(1, [](int, Store& store) {
    for (auto [rank, size] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0)}) {
      const DistError error = error_of([&, rank = rank, size = size] { store_barrier(store, "b", rank, size); });
      EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
      EXPECT_THAT(error.what(), HasSubstr("have rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                          ", want 0 <= rank < size"));
    }
    EXPECT_EQ(store.num_keys(), 0);
  });
}

TEST_P(SemanticsTest, ErrorsNameTheRankOfAWorld) {
  run_ranks(3, [this](int rank, Store& store) {
    if (rank != 2) return;
    store.set("n", "x");
    const DistError error = error_of([&] { store.add("n", 1); });
    const bool world = gear() != Gear::kThreads;
    EXPECT_THAT(error.what(), StartsWith(world ? "StoreError: rank 2, " + kind_text() : "StoreError: " + kind_text()));
    EXPECT_EQ(error.rank(), world ? 2 : -1);
    EXPECT_EQ(error.op(), "store add");
  });
}

}  // namespace
}  // namespace rankloom
