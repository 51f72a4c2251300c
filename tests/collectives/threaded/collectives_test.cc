// Every collective through the front, in every kind of world, against a sequential oracle with unequal data per rank.

#include <cstdint>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class CollectivesTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, CollectivesTest, every_world(), world_name);

// The value of rank r at i: different for every pair, small enough that sums are exact.
int64_t value(int rank, int64_t i) { return 100 * (rank + 1) + i % 97; }

std::vector<int64_t> values(int rank, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = value(rank, i);
  return all;
}

int64_t sum_of_ranks(int ranks, int64_t i) {
  int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, i);
  return sum;
}

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr int64_t kCounts[] = {0, 1, 3, 1000};

TEST_P(CollectivesTest, AllReduceAddsUpEveryRank) {
  for (const int n : kSizes) {
    for (const int64_t count : kCounts) {
      run(n, [=](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<int64_t> x = values(rank.rank(), count);
        pg->all_reduce(x).wait();
        for (int64_t i = 0; i < count; ++i) EXPECT_EQ(x[static_cast<size_t>(i)], sum_of_ranks(n, i));
      });
    }
  }
}

TEST_P(CollectivesTest, AllReduceKnowsEveryOperation) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const auto reduced = [&](ReduceOp op) {
      std::vector<double> x = {double(rank.rank() + 2)};
      pg->all_reduce(x, op).wait();
      return x[0];
    };
    EXPECT_EQ(reduced(ReduceOp::kSum), 9);
    EXPECT_EQ(reduced(ReduceOp::kAvg), 3);
    EXPECT_EQ(reduced(ReduceOp::kProduct), 24);
    EXPECT_EQ(reduced(ReduceOp::kMin), 2);
    EXPECT_EQ(reduced(ReduceOp::kMax), 4);
    EXPECT_EQ(reduced(ReduceOp::premul_sum(0.5)), 4.5);
    std::vector<int32_t> bits = {1 << rank.rank() | 8};
    pg->all_reduce(bits, ReduceOp::kBor).wait();
    EXPECT_EQ(bits[0], 15);
    bits = {1 << rank.rank() | 8};
    pg->all_reduce(bits, ReduceOp::kBand).wait();
    EXPECT_EQ(bits[0], 8);
    bits = {1 << rank.rank() | 8};
    pg->all_reduce(bits, ReduceOp::kBxor).wait();
    EXPECT_EQ(bits[0], 15);
  });
}

TEST_P(CollectivesTest, IntegerSumsWrap) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int8_t> x = {100};
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], static_cast<int8_t>(200));
  });
}

TEST_P(CollectivesTest, BroadcastTakesTheRootsData) {
  for (const int n : kSizes) {
    for (int root = 0; root < n; ++root) {
      run(n, [=](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<int64_t> x = values(rank.rank(), 10);
        pg->broadcast(x, root).wait();
        EXPECT_EQ(x, values(root, 10));
      });
    }
  }
}

TEST_P(CollectivesTest, ReduceWritesOnlyTheRoot) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x = values(rank.rank(), 5);
    pg->reduce(x, /*root=*/2).wait();
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(x[static_cast<size_t>(i)], rank.rank() == 2 ? sum_of_ranks(4, i) : value(rank.rank(), i));
    }
  });
}

TEST_P(CollectivesTest, AllGatherTakesUnevenInputs) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<int64_t> mine = values(rank.rank(), rank.rank());  // 0, 1 and 2 elements
    std::vector<int64_t> a(0), b(1), c(2);
    pg->all_gather({a, b, c}, mine).wait();
    EXPECT_EQ(b, values(1, 1));
    EXPECT_EQ(c, values(2, 2));
  });
}

TEST_P(CollectivesTest, AllGatherIntoTensorConcatenatesInRankOrder) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<int32_t> mine = {10 * rank.rank(), 10 * rank.rank() + 1};
    std::vector<int32_t> all(6);
    pg->all_gather_into_tensor(all, mine).wait();
    EXPECT_THAT(all, ElementsAre(0, 1, 10, 11, 20, 21));
  });
}

TEST_P(CollectivesTest, AllGatherIntoTensorWorksInPlace) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int32_t> all(3, -1);
    all[static_cast<size_t>(rank.rank())] = 7 + rank.rank();
    const TensorView whole(all);
    pg->all_gather_into_tensor(whole, whole.slice(rank.rank(), 1)).wait();
    EXPECT_THAT(all, ElementsAre(7, 8, 9));
  });
}

TEST_P(CollectivesTest, GatherFillsTheRootAndLeavesTheOthers) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const std::vector<int64_t> mine = values(rank.rank(), 2);
    std::vector<int64_t> a(2), b(2), c(2);
    pg->gather(rank.rank() == 1 ? std::vector<TensorView>{a, b, c} : std::vector<TensorView>{}, mine, /*root=*/1)
        .wait();
    if (rank.rank() == 1) {
      EXPECT_EQ(a, values(0, 2));
      EXPECT_EQ(b, values(1, 2));
      EXPECT_EQ(c, values(2, 2));
    } else {
      EXPECT_THAT(a, Each(0));
    }
  });
}

TEST_P(CollectivesTest, ScatterDealsOutTheRootsList) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> a = values(5, 2), b = values(6, 2), c = values(7, 2), mine(2);
    pg->scatter(mine, rank.rank() == 2 ? std::vector<TensorView>{a, b, c} : std::vector<TensorView>{}, /*root=*/2)
        .wait();
    EXPECT_EQ(mine, values(5 + rank.rank(), 2));
  });
}

TEST_P(CollectivesTest, ReduceScatterSumsEachPart) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    // Part r has r + 1 elements.
    std::vector<int64_t> a = values(rank.rank(), 1), b = values(rank.rank(), 2), c = values(rank.rank(), 3);
    std::vector<int64_t> mine(static_cast<size_t>(rank.rank() + 1));
    pg->reduce_scatter(mine, {a, b, c}).wait();
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(mine[i], sum_of_ranks(3, static_cast<int64_t>(i)));
  });
}

TEST_P(CollectivesTest, ReduceScatterTensorSumsEachPart) {
  for (const int n : kSizes) {
    run(n, [=](RankContext& rank) {
      auto pg = init_process_group(rank);
      const std::vector<int64_t> all = values(rank.rank(), 2 * n);
      std::vector<int64_t> mine(2);
      pg->reduce_scatter_tensor(mine, all).wait();
      EXPECT_THAT(mine, ElementsAre(sum_of_ranks(n, 2 * rank.rank()), sum_of_ranks(n, 2 * rank.rank() + 1)));
    });
  }
}

TEST_P(CollectivesTest, AllToAllTransposes) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<int64_t>> in(3), out(3, std::vector<int64_t>(1));
    for (int to = 0; to < 3; ++to) in[static_cast<size_t>(to)] = {10 * rank.rank() + to};
    pg->all_to_all({out[0], out[1], out[2]}, {in[0], in[1], in[2]}).wait();
    for (int from = 0; from < 3; ++from) EXPECT_EQ(out[static_cast<size_t>(from)][0], 10 * from + rank.rank());
  });
}

TEST_P(CollectivesTest, AllToAllSingleFollowsTheSplits) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    // Rank 0 sends 1 row to 0 and 2 to 1; rank 1 sends 3 to 0 and 1 to 1.
    const std::vector<int64_t> sends = rank.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 1};
    const std::vector<int64_t> expects = rank.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 1};
    const std::vector<int64_t> in = values(rank.rank(), sends[0] + sends[1]);
    std::vector<int64_t> out(static_cast<size_t>(expects[0] + expects[1]));
    pg->all_to_all_single(out, in, expects, sends).wait();
    if (rank.rank() == 0) {
      EXPECT_THAT(out, ElementsAre(value(0, 0), value(1, 0), value(1, 1), value(1, 2)));
    } else {
      EXPECT_THAT(out, ElementsAre(value(0, 1), value(0, 2), value(1, 3)));
    }
  });
}

TEST_P(CollectivesTest, CoalescedFormsDoEachPair) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> a = values(rank.rank(), 2), b = values(rank.rank(), 3);
    pg->all_reduce_coalesced({a, b}).wait();
    EXPECT_EQ(a[1], sum_of_ranks(2, 1));
    EXPECT_EQ(b[2], sum_of_ranks(2, 2));
    std::vector<int64_t> one = {rank.rank()}, two = {10 + rank.rank()}, ones(2), twos(2);
    pg->all_gather_into_tensor_coalesced({ones, twos}, {one, two}).wait();
    EXPECT_THAT(ones, ElementsAre(0, 1));
    EXPECT_THAT(twos, ElementsAre(10, 11));
    std::vector<int64_t> part(1);
    pg->reduce_scatter_tensor_coalesced({part}, {ones}).wait();
    EXPECT_EQ(part[0], 2 * rank.rank());
  });
}

TEST_P(CollectivesTest, BarrierWaitsForAll) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    rank.store().add("before", 1);
    pg->barrier({}, "halfway").wait();
    EXPECT_EQ(rank.store().get("before"), "4");
  });
}

TEST_P(CollectivesTest, ManyCallsAreInFlightAtOnce) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<std::vector<int64_t>> x(20);
    std::vector<Work> works;
    for (int64_t i = 0; i < 20; ++i) {
      x[static_cast<size_t>(i)] = {value(rank.rank(), i)};
      works.push_back(pg->all_reduce(x[static_cast<size_t>(i)]));
    }
    while (!works.empty()) {  // last first: the order of waits is free
      works.back().wait();
      works.pop_back();
    }
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(x[static_cast<size_t>(i)][0], sum_of_ranks(3, i));
    EXPECT_EQ(pg->sequence_number(), 20);
  });
}

TEST_P(CollectivesTest, AMemberMayBeHundredsOfCallsAhead) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    constexpr int kCalls = 300;
    std::vector<int32_t> x(kCalls);
    std::iota(x.begin(), x.end(), 1000 * rank.rank());
    if (rank.rank() == 1) rank.store().wait({"all called"});
    std::vector<Work> works;
    for (int32_t& each : x) {
      works.push_back(pg->all_reduce(TensorView::scalar(each)));
      if (rank.rank() == 1 && works.size() % 3 == 0) works[works.size() / 3].wait();
    }
    if (rank.rank() == 0) rank.store().set("all called", "1");
    wait_all(works);
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(x[static_cast<size_t>(i)], 1000 + 2 * i);
  });
}

// Where memory is fetched ahead, and after the flight records have come round.
TEST(LargeWorldTest, ManyFibersCallAgainAndAgain) {
  constexpr int kRanks = 600;
  run_world({.world_size = kRanks, .engine = EngineKind::kFibers}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<int64_t> x(1);
    std::vector<int64_t> all(kRanks);
    for (int round = 0; round < 70; ++round) {
      x[0] = rank.rank() * round;
      pg->all_reduce(x).wait();
      EXPECT_EQ(x[0], int64_t{kRanks} * (kRanks - 1) / 2 * round);
    }
    x[0] = rank.rank();
    pg->all_gather_into_tensor(all, x).wait();
    EXPECT_EQ(all[static_cast<size_t>((rank.rank() + 1) % kRanks)], (rank.rank() + 1) % kRanks);
  }).throw_if_failed();
}

TEST_P(CollectivesTest, FloatResultsDoNotDependOnWhoCameFirst) {
  std::vector<float> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    WorldOptions world = options(5);
    if (seeded()) world.schedule = Schedule::seeded(seed);
    run(world, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {0.1F * static_cast<float>(rank.rank() * rank.rank() + 1),
                              1e8F / static_cast<float>(rank.rank() + 1)};
      pg->all_reduce(x).wait();
      if (rank.rank() != 0) return;
      if (seen.empty()) seen = x;
      EXPECT_EQ(seen, x);
    });
  }
}

// --- what goes wrong

TEST_P(CollectivesTest, NamesTheRankThatNeverCame) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    if (rank.rank() == 1) return;
    auto pg = init_process_group(rank);
    std::vector<float> mine = {1}, all(2);
    pg->all_gather_into_tensor(all, mine).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in all_gather_into_tensor seq 1 for rank 1 (returned)"));
  EXPECT_EQ(error_kind(report.cause), ErrorKind::kDeadlock);
}

TEST_P(CollectivesTest, FailureOfOneRankEndsTheOthers) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) throw std::runtime_error("boom");
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), testing::AllOf(testing::StartsWith("rank 1 failed: boom (std::runtime_error)"),
                                            HasSubstr("\nranks 0, 2 stopped for it")));
  EXPECT_EQ(report.first_failed, 1);
}

TEST_P(CollectivesTest, DifferentCallsAreAMismatchForAllAndMoveNothing) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {float(rank.rank())};
    try {
      if (rank.rank() == 1) {
        pg->broadcast(x, 0).wait();
      } else {
        pg->all_reduce(x).wait();
      }
      FAIL() << "rank " << rank.rank() << " saw no error";
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_EQ(x[0], float(rank.rank()));
      throw;
    }
  });
  EXPECT_THAT(report.text(),
              testing::StartsWith("ranks 0-2 failed: Mismatch: group 0, seq 1: members issued different calls"));
}

TEST_P(CollectivesTest, MismatchAndMissingRankAreBothReported) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(static_cast<size_t>(3 + rank.rank()));
    if (rank.rank() == 2) return;
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("members issued different calls"));
  EXPECT_THAT(report.text(), HasSubstr("rank 2 (returned)"));
}

TEST_P(CollectivesTest, DroppedWorkIsNamed) {
  if (!deterministic()) GTEST_SKIP() << "in the free gear the call may be done before its work is dropped";
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 0) {
      { const Work dropped = pg->all_reduce(x); }
      rank.store().set("dropped", "1");
    } else {
      rank.store().get("dropped");
      pg->all_reduce(x).wait();
    }
  });
  EXPECT_THAT(
      report.text(),
      HasSubstr(
          "rank 0 failed: group 0, all_reduce seq 1: the work was dropped unfinished, want wait() or keep_alive"));
}

TEST_P(CollectivesTest, TimeoutWithdrawsTheCallAndNamesTheMissingRank) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {float(rank.rank())};
    if (rank.rank() == 1) {
      rank.store().wait({"timed out"}, absl::Seconds(60));
      pg->all_reduce(x).wait();
      return;
    }
    try {
      pg->all_reduce(x).wait(absl::Milliseconds(20));
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_THAT(error.what(), HasSubstr("all_reduce seq 1: timed out after 20ms waiting for rank 1"));
      EXPECT_EQ(x[0], 0);
      rank.store().set("timed out", "1");
    }
  });
  EXPECT_THAT(report.text(),
              AllOf(HasSubstr("rank 0 failed: Timeout: rank 0, group 0, all_reduce seq 1: timed out after 20ms waiting "
                              "for rank 1 [group 0, collectives_test.cc:"),
                    HasSubstr("\nrank 1 stopped for it")));
}

TEST_P(CollectivesTest, AnInputThatBreaksARuleNamesWhoWhatHaveWant) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(2), y(5);
    const auto text_of = [](auto call) -> std::string {
      try {
        call();
      } catch (const DistError& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        return error.what();
      }
      return "no error";
    };
    EXPECT_THAT(text_of([&] { pg->all_gather_into_tensor(y, x).wait(); }),
                testing::StartsWith("InvalidArgument: rank 0, group 0, all_gather_into_tensor seq 1: output has 5 "
                                    "elements, want size * input = 1 * 2 = 2 [collectives_test.cc:"));
    EXPECT_THAT(text_of([&] { pg->broadcast(x, 1).wait(); }), HasSubstr("rank 0, group 0, broadcast seq 1: root"));
    EXPECT_THAT(text_of([&] { pg->all_reduce(TensorView(static_cast<float*>(nullptr), {3})).wait(); }),
                HasSubstr("all_reduce seq 1:"));
    EXPECT_THAT(text_of([&] { pg->all_reduce(x, ReduceOp::kBand).wait(); }), HasSubstr("all_reduce seq 1:"));
    EXPECT_THAT(text_of([&] { pg->all_reduce(TensorView::meta({3}, DType::kFloat32)).wait(); }),
                HasSubstr("tensors without data need a fake group"));
    EXPECT_THAT(text_of([&] { pg->set_timeout(absl::Seconds(-1)); }),
                HasSubstr("group 0, set_timeout: timeout is -1s, want 0 or more"));
  });
}

TEST_P(CollectivesTest, AHandleOfAnotherRankIsRefused) {
  std::shared_ptr<ProcessGroup> other;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) other = pg;
    pg->barrier().wait();
    std::vector<float> x = {1};
    if (rank.rank() == 1) other->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("the handle of rank 0 was used by rank 1, want the rank's own handle"));
}

TEST_P(CollectivesTest, ACallAfterShutdownIsRefused) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->shutdown();
    std::vector<float> x = {1};
    try {
      pg->all_reduce(x, ReduceOp::kSum, {}, CodeSite{"some/train.cc", 12}).wait();
      FAIL() << "no error";
    } catch (const DistError& error) {
      EXPECT_STREQ(error.what(),
                   "Aborted: rank 0, group 0, all_reduce seq 1: the group was shut down, want no call after shutdown() "
                   "[train.cc:12]");
    }
  });
}

TEST_P(CollectivesTest, AbortWakesAllWaits) {
  const RunReport report = run_to_failure(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 2) {
      pg->abort("enough");
      return;
    }
    pg->all_reduce(x).wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 2 aborted group 0: enough"));
}

// --- late completion and poison

TEST_P(CollectivesTest, ReadingAResultBeforeItsWaitShowsInEverySeededRun) {
  if (!seeded()) GTEST_SKIP() << "poison is for seeded runs";
  // The planted bug: rank 0 reads without waiting. It must show under every seed.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    WorldOptions world = options(2);
    world.schedule = Schedule::seeded(seed);
    bool read_early_looked_right = false;
    run(world, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      std::vector<float> x = {1.0F + float(rank.rank())};
      Work work = pg->all_reduce(x);
      if (rank.rank() == 0 && !work.is_completed()) read_early_looked_right = x[0] == 3.0F || x[0] == 1.0F;
      work.wait();
      EXPECT_EQ(x[0], 3.0F);
    });
    EXPECT_FALSE(read_early_looked_right) << "seed " << seed;
  }
}

TEST_P(CollectivesTest, AnInputChangedBeforeItsWaitIsNamed) {
  if (!seeded()) GTEST_SKIP() << "checksums are for seeded runs";
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> mine = {float(rank.rank())}, all(2);
    Work work = pg->all_gather_into_tensor(all, mine);
    if (rank.rank() == 0 && !work.is_completed()) mine[0] = 5;
    rank.store().add("both called", 1);
    work.wait();
  });
  EXPECT_THAT(
      report.text(),
      HasSubstr("rank 0, group 0, all_gather_into_tensor seq 1: an input was changed or freed between the call "));
}

}  // namespace
}  // namespace rankloom
