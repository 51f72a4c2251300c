// What becomes of works that nobody waits in when the world is aborted, and of handles that outlive their world.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fake_store/prefix_store.h"
#include "rankloom/rankloom.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class AbortTest : public testing::TestWithParam<Schedule::Kind> {
 protected:
  static Schedule schedule() { return GetParam() == Schedule::Kind::kFree ? Schedule::free() : Schedule::seeded(3); }
};
INSTANTIATE_TEST_SUITE_P(Gears, AbortTest, testing::Values(Schedule::Kind::kFree, Schedule::Kind::kSeeded),
                         [](const auto& info) { return info.param == Schedule::Kind::kFree ? "free" : "seeded"; });

TEST_P(AbortTest, CompletesTheWorkThatOnlyACallbackWaitsFor) {
  absl::Status told;
  const RunReport report = run_world({.world_size = 2, .schedule = schedule()}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      throw std::runtime_error("rank 1 gives up");
    }
    auto x = std::make_shared<std::vector<float>>(4, 1.0F);
    Work work = pg->all_reduce(*x, ReduceOp::kSum, {.keep_alive = x});
    work.then([&told](const absl::Status& status) { told = status; });
    rank.store().set("issued", "1");
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 1 failed: rank 1 gives up"));
}

TEST(Whereabouts, AreAppendedToADeadlock) {
  WorldOptions options{.world_size = 2};
  options.whereabouts = [] { return std::string("stack of rank 0: here"); };
  const RunReport report = run_world(std::move(options), [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) pg->barrier().wait();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in barrier seq 1"));
  EXPECT_THAT(report.text(), HasSubstr("stack of rank 0: here"));
}

// --- handles that outlive their world

class OutlivesTest : public EveryWorldTest {
 protected:
  static constexpr const char* kEnded = "Aborted: the world has ended";

  // The report of a world that is gone when this returns. Calls may own their tensors: what is dropped unfinished is no error.
  RunReport run_and_end(int ranks, Program program) {
    World world(options(ranks));
    return world.run(program);
  }
  static CallOptions kept(const std::shared_ptr<std::vector<float>>& tensor) { return {.keep_alive = tensor}; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, OutlivesTest, every_world(), world_name);

TEST_P(OutlivesTest, AFinishedWorkKeepsItsStatusAndResult) {
  std::vector<std::vector<float>> x = {{1}, {2}};
  std::vector<Work> works(2);
  std::vector<std::optional<Future>> futures(2);
  run_and_end(2, [&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank());
    works[r] = init_process_group(rank)->all_reduce(x[r]);
    futures[r] = works[r].get_future();
    works[r].wait();
  }).throw_if_failed();
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(works[r].is_completed());
    EXPECT_TRUE(works[r].is_success());
    works[r].wait();
    works[r].wait(absl::Seconds(1));
    ASSERT_EQ(works[r].result().size(), 1U);
    EXPECT_EQ(works[r].result()[0].data(), x[r].data());
    EXPECT_TRUE(futures[r]->done());
    EXPECT_EQ(futures[r]->value().size(), 1U);
    absl::Status told = absl::UnknownError("not told");
    works[r].then([&told](const absl::Status& status) { told = status; });
    EXPECT_TRUE(told.ok()) << told;
    EXPECT_EQ(works[r].exception(), nullptr);
    const Work copy = works[r];
  }
  EXPECT_EQ(wait_any(works), 0U);
  wait_all(works);
  EXPECT_THAT(x[0], ElementsAre(3));
}

TEST_P(OutlivesTest, AFailedWorkKeepsItsError) {
  std::vector<float> x = {1};
  Work work;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.store().wait({"issued"});
      throw std::runtime_error("rank 1 gives up");
    }
    work = init_process_group(rank)->recv(x, 1);
    rank.store().set("issued", "");
    work.wait();
  });
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(error_of([&] { work.wait(); }), HasSubstr("rank 1 failed: rank 1 gives up"));
}

TEST_P(OutlivesTest, WhatIsUnfinishedEndsWithTheWorldAndIsInTheReport) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  auto y = std::make_shared<std::vector<float>>(1, 2.0F);
  auto z = std::make_shared<std::vector<float>>(1, 4.0F);
  std::vector<Work> works(3);
  absl::Status told;
  const RunReport report = run_and_end(4, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) works[0] = pg->all_reduce(*x, ReduceOp::kSum, kept(x));
    if (rank.rank() == 3) works[1] = pg->all_reduce(*y, ReduceOp::kSum, kept(y));
    if (rank.rank() != 2) return;
    works[2] = pg->recv(*z, 1, 7, kept(z));
    works[2].then([&told](const absl::Status& status) { told = status; });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  ASSERT_EQ(report.notes.size(), 2U) << report.text();
  EXPECT_THAT(report.notes[0],
              StartsWith("ranks 0, 3, group 0, all_reduce seq 1: ranks 1-2 never came [abort_test.cc:"));
  EXPECT_THAT(report.notes[1], StartsWith("rank 2, group 0, recv from rank 1, tag 7: was never sent"));
  for (Work& work : works) {
    EXPECT_TRUE(work.is_completed());
    EXPECT_FALSE(work.is_success());
    EXPECT_EQ(error_of([&] { work.wait(); }, ErrorKind::kAborted), kEnded);
    EXPECT_EQ(error_of([&] { (void)work.result(); }, ErrorKind::kAborted), kEnded);
    EXPECT_EQ(work.source(), -1);
  }
  EXPECT_EQ(told, world_ended());
  EXPECT_THAT(*x, ElementsAre(1));  // not poisoned any more
  EXPECT_THAT(*z, ElementsAre(4));
}

TEST_P(OutlivesTest, ACallbackThatThrowsWhenItIsToldOfTheEnd) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  std::string error;
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    pg->recv(*x, 1, 0, kept(x)).then([&error, pg](const absl::Status&) {
      error = error_of([&] { (void)pg->barrier(); }, ErrorKind::kAborted);
      pg->barrier().wait();
    });
  });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(error, "Aborted: rank 0, group 0, barrier: the world has ended");
}

TEST_P(OutlivesTest, UnmatchedCallsThatAreAlikeShareANote) {
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  const RunReport report = run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) return;
    for (int i = 0; i < 3; ++i) (void)pg->all_reduce(*x, ReduceOp::kSum, kept(x));
    (void)pg->barrier({.keep_alive = x});
  });
  ASSERT_EQ(report.notes.size(), 2U) << report.text();
  EXPECT_THAT(
      report.notes[0],
      StartsWith("rank 1, group 0, all_reduce seq 1: rank 0 never came, nor to the 2 after it [abort_test.cc:"));
  EXPECT_THAT(report.notes[1], StartsWith("rank 1, group 0, barrier seq 4: rank 0 never came [abort_test.cc:"));
}

TEST_P(OutlivesTest, CallsOnAGroupAnswerThatTheWorldHasEnded) {
  std::shared_ptr<ProcessGroup> pg;
  std::shared_ptr<ProcessGroup> fake;
  run_and_end(2, [&](RankContext& rank) {
    auto mine = init_process_group(rank);
    auto other = init_process_group(rank, {.backend = BackendKind::kFake});
    mine->barrier().wait();
    if (rank.rank() != 1) return;
    pg = mine;
    fake = other;
  }).throw_if_failed();
  EXPECT_EQ(pg->text(), "threaded group 0: rank 1 of 2");
  EXPECT_EQ(pg->global_rank(0), 0);
  std::vector<float> x = {1};
  EXPECT_EQ(error_of([&] { (void)pg->all_reduce(x); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, all_reduce: the world has ended");
  EXPECT_EQ(error_of([&] { (void)pg->send(x, 0); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, send: the world has ended");
  EXPECT_EQ(error_of([&] { pg->monitored_barrier(absl::Seconds(1), true); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, monitored_barrier: the world has ended");
  EXPECT_EQ(error_of([&] { (void)pg->new_group(); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, new_group: the world has ended");
  EXPECT_EQ(error_of([&] { (void)pg->split_group(0); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, split_group: the world has ended");
  EXPECT_EQ(error_of([&] { (void)init_device_mesh(pg, {2}); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, init_device_mesh: the world has ended");
  EXPECT_EQ(error_of([&] { pg->shutdown(); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, shutdown: the world has ended");
  EXPECT_EQ(error_of([&] { destroy_process_group(pg); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, destroy_process_group: the world has ended");
  EXPECT_EQ(error_of([&] { (void)fake->all_reduce(x); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 1, all_reduce: the world has ended");
  pg->abort("nobody is left");
  pg->start_coalescing();
  EXPECT_EQ(error_of([&] { (void)pg->all_reduce(x); }, ErrorKind::kAborted),
            "Aborted: rank 1, group 0, all_reduce: the world has ended");
  EXPECT_TRUE(pg->end_coalescing().is_completed());
}

TEST_P(OutlivesTest, BeforeTheWorldsMemoryGoesTheAnswerIsTheSame) {
  std::shared_ptr<ProcessGroup> pg;
  Work work;
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  World world(options(2));
  const RunReport report = world.run([&](RankContext& rank) {
    auto mine = init_process_group(rank);
    if (rank.rank() == 1) return;
    pg = mine;
    work = mine->recv(*x, 1, 0, kept(x));
  });
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(error_of([&] { work.wait(); }, ErrorKind::kAborted), kEnded);
  EXPECT_EQ(error_of([&] { (void)pg->barrier(); }, ErrorKind::kAborted),
            "Aborted: rank 0, group 0, barrier: the world has ended");
  world.store().set("the store", "stays");
  EXPECT_EQ(world.store().get("the store"), "stays");
}

TEST_P(OutlivesTest, APromiseThatNobodyKept) {
  std::optional<Promise> promise;
  std::optional<Promise> late;
  std::vector<Work> works(2);
  run_and_end(1, [&](RankContext& rank) {
    promise.emplace(&rank.world().scheduler(), rank.rank());
    late.emplace(&rank.world().scheduler(), rank.rank());
    works = {promise->work(), late->work()};
  }).throw_if_failed();
  absl::Status told = absl::UnknownError("not told");
  late->set_value();
  late->future().then([&told](const absl::Status& status) { told = status; });
  EXPECT_TRUE(told.ok()) << told;
  EXPECT_EQ(wait_any(works), 0U);
  EXPECT_EQ(error_of([&] { works[0].wait(); }, ErrorKind::kAborted), kEnded);
  works[1].wait();
  promise->set_value();  // too late
  EXPECT_EQ(error_of([&] { promise->work().wait(); }, ErrorKind::kAborted), kEnded);
}

TEST_P(OutlivesTest, StreamsAndEvents) {
  std::optional<SimStream> stream;
  Event event;
  Work work;
  std::vector<float> x = {3};
  run_and_end(1, [&](RankContext& rank) {
    stream.emplace(rank, "comm");
    work = init_process_group(rank)->all_reduce(x, ReduceOp::kSum, {.stream = &*stream});
    event = stream->record();
    stream->synchronize();
  }).throw_if_failed();
  EXPECT_EQ(stream->name(), "comm");
  EXPECT_TRUE(stream->status().ok());
  EXPECT_TRUE(event.query());
  event.synchronize();
  work.wait();
  EXPECT_EQ(error_of([&] { stream->launch([] {}); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, stream launch: the world has ended");
  EXPECT_EQ(error_of([&] { stream->synchronize(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, synchronize: the world has ended");
  EXPECT_EQ(error_of([&] { (void)stream->query(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, query: the world has ended");
  EXPECT_EQ(error_of([&] { (void)stream->record(); }, ErrorKind::kAborted),
            "Aborted: rank 0, stream comm, event record: the world has ended");
}

TEST_P(OutlivesTest, AStoreOfItsWorld) {
  std::shared_ptr<Store> store;
  std::unique_ptr<PrefixStore> prefixed;
  run_and_end(1, [&](RankContext& rank) {
    store = std::make_shared<HashStore>(&rank.world().scheduler());
    prefixed = std::make_unique<PrefixStore>("a", store);
    prefixed->set("k", "1");
  }).throw_if_failed();
  EXPECT_EQ(error_of([&] { (void)store->get("k"); }, ErrorKind::kAborted),
            "Aborted: HashStore, store get: the world has ended");
  EXPECT_EQ(error_of([&] { prefixed->set("k", "2"); }, ErrorKind::kAborted),
            "Aborted: PrefixStore, store set: the world has ended");
  const PrefixStore later("b", store);
}

// The next world's scheduler may lie where the last one's lay.
TEST_P(OutlivesTest, HandlesAreNotTakenForThoseOfALaterWorld) {
  std::shared_ptr<ProcessGroup> old;
  std::vector<float> x = {1};
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<ProcessGroup> next;
    run_and_end(1, [&](RankContext& rank) {
      if (old != nullptr) {
        EXPECT_EQ(error_of([&] { (void)old->all_reduce(x); }, ErrorKind::kAborted),
                  "Aborted: rank 0, group 0, all_reduce: the world has ended");
      }
      next = init_process_group(rank);
      next->barrier().wait();
    }).throw_if_failed();
    old = next;
  }
}

// Threads of no world keep promises, also where ranks are fibers: the first one counts.
TEST_P(OutlivesTest, PromisesThatSeveralThreadsKeep) {
  run(2, [](RankContext& rank) {
    for (int round = 0; round < 20; ++round) {
      Promise promise(&rank.world().scheduler(), rank.rank());
      std::vector<float> x = {1};
      std::vector<std::thread> threads;
      {
        const OutsideWaker waker = rank.world().outside_waker();
        for (int i = 0; i < 3; ++i) {
          threads.emplace_back([promise, &x]() mutable { promise.set_value({x}); });
        }
        threads.emplace_back([promise]() mutable { promise.set_error(absl::AbortedError("one of four")); });
        const std::string error = error_of([&] { EXPECT_EQ(promise.work().result().size(), 1U); });
        EXPECT_THAT(error, testing::AnyOf("no error", "Aborted: one of four"));
      }
      for (std::thread& thread : threads) thread.join();
    }
  });
}

// A rank that waits for threads of its own, in a way of its own, while they wait for the group.
class ThreadsOfARankTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadsOfARankTest, every_threads_world(), world_name);

TEST_P(ThreadsOfARankTest, WaitForOneWorkTogether) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (int round = 0; round < 10; ++round) {
      std::vector<float> x = {static_cast<float>(rank.rank() + round)};
      Work work = pg->all_reduce(x);
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([work]() mutable {
          for (int k = 0; k < 5; ++k) {
            Work copy = work;
            copy.wait();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_THAT(x, ElementsAre(static_cast<float>(2 * round + 1)));
    }
  });
}

class ThreadOutlivesTest : public OutlivesTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadOutlivesTest, every_threads_world(), world_name);

// A thread of the rank's own is in a wait that nobody can end when all ranks have returned.
TEST_P(ThreadOutlivesTest, AThreadInAWaitIsToldOfTheEnd) {
  std::thread thread;
  std::string error;
  auto x = std::make_shared<std::vector<float>>(1, 1.0F);
  run_and_end(2, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    thread = std::thread([pg, x, &error] { error = error_of([&] { pg->recv(*x, 1, 0, kept(x)).wait(); }); });
    rank.store().set("begun", "");
  });
  thread.join();
  // By how far it had come.
  EXPECT_THAT(error, testing::AnyOf(HasSubstr("the world has ended"), StartsWith("Deadlock: no rank can")));
}

}  // namespace
}  // namespace rankloom
