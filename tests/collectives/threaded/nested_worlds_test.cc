// Worlds within worlds, and two beside each other: a rank uses handles of its own world.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"
#include "sim/scheduler/scheduler.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NestedWorldsTest : public EveryWorldTest {
 protected:
  // `inner` is called by rank 1 of a world within rank 0 of a world of two, in each gear, with a context of the outer
  // one.
  void inside(const std::function<void(RankContext& outer, RankContext& inner)>& inner) {
    for (const WorldMode& mode : {WorldMode{"free", EngineKind::kThreads, Schedule::free()},
                                  WorldMode{"baton", EngineKind::kThreads, Schedule::seeded(5)},
                                  WorldMode{"fibers", EngineKind::kFibers, Schedule::seeded(6)}}) {
      SCOPED_TRACE(mode.name);
      run(2, [&](RankContext& outer) {
        if (outer.rank() == 1) return;
        run_world(mode.options(2), [&](RankContext& rank) {
          if (rank.rank() == 1) inner(outer, rank);
        }).throw_if_failed();
        EXPECT_EQ(RankContext::current(), &outer);
      });
    }
  }
  static std::string refusal(const std::function<void()>& call) { return error_of(call, ErrorKind::kInvalidArgument); }
  static std::string refused(const std::string& what, CodeSite code = CodeSite::here()) {
    return "InvalidArgument: rank 1 of an inner world used the outer world's " + what + ": want one of its own world" +
           here(code);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, NestedWorldsTest, every_world(), world_name);

TEST_P(NestedWorldsTest, AnInnerWorldRunsWithinARank) {
  inside([](RankContext&, RankContext& rank) {
    auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    pg->barrier().wait();
  });
}

TEST_P(NestedWorldsTest, TheOuterGroupIsRefused) {
  std::shared_ptr<ProcessGroup> pg;
  run(1, [&](RankContext& outer) {
    pg = init_process_group(outer);
    run_world(options(2), [&](RankContext& rank) {
      if (rank.rank() == 0) return;
      std::vector<float> x = {1};
      EXPECT_EQ(refusal([&] { (void)pg->all_reduce(x); }), refused("group 0 in all_reduce"));
      EXPECT_EQ(refusal([&] { (void)pg->recv(x, 0); }), refused("group 0 in recv"));
      EXPECT_EQ(refusal([&] { (void)pg->barrier(); }), refused("group 0 in barrier"));
      EXPECT_EQ(refusal([&] { pg->monitored_barrier(); }), refused("group 0 in monitored_barrier"));
      EXPECT_EQ(refusal([&] { (void)pg->new_group(); }), refused("group 0 in new_group"));
      EXPECT_EQ(refusal([&] { (void)pg->split_group(0); }), refused("group 0 in split_group"));
      EXPECT_EQ(refusal([&] { (void)init_device_mesh(pg, {1}); }), refused("group 0 in init_device_mesh"));
      EXPECT_EQ(refusal([&] { pg->shutdown(); }), refused("group 0 in shutdown"));
      EXPECT_EQ(refusal([&] { destroy_process_group(pg); }), refused("group 0 in destroy_process_group"));
      EXPECT_EQ(refusal([&] { init_process_group(outer)->barrier().wait(); }), refused("group 1 in barrier"));
    }).throw_if_failed();
    // Nothing of all that counted.
    std::vector<float> x = {2};
    pg->all_reduce(x).wait();
    EXPECT_EQ(pg->sequence_number(), 1);
  });
}

TEST_P(NestedWorldsTest, AnOuterWorkMayBeReadWhenItIsDone) {
  run(2, [&](RankContext& outer) {
    auto pg = init_process_group(outer);
    std::vector<float> x = {1};
    Work done = pg->all_reduce(x);
    done.wait();
    if (outer.rank() == 1) {
      outer.store().wait({"looked"});
      pg->send(x, 0).wait();
      return;
    }
    Work pending = pg->recv(x, 1);
    Promise promise(&outer.world().scheduler(), outer.rank());
    run_world(options(2), [&](RankContext& rank) {
      if (rank.rank() == 0) return;
      EXPECT_TRUE(done.is_completed());
      done.wait();
      EXPECT_EQ(done.result().size(), 1U);
      absl::Status told = absl::UnknownError("not told");
      done.then([&told](const absl::Status& status) { told = status; });
      EXPECT_TRUE(told.ok());
      const std::string work = "work (group 0, recv seq 1)";
      EXPECT_EQ(refusal([&] { pending.wait(); }), refused(work + " in wait"));
      EXPECT_EQ(refusal([&] { pending.wait(absl::Seconds(1)); }), refused(work + " in wait"));
      EXPECT_EQ(refusal([&] { (void)pending.is_completed(); }), refused(work + " in is_completed"));
      EXPECT_EQ(refusal([&] { (void)pending.result(); }), refused(work + " in wait"));
      EXPECT_EQ(refusal([&] { pending.then([](const absl::Status&) {}); }), refused(work + " in then"));
      SimStream stream(rank);
      EXPECT_EQ(refusal([&] { pending.block_current_stream(stream); }), refused(work + " in block_current_stream"));
      EXPECT_EQ(refusal([&] { promise.work().wait(); }), refused("work (promise) in wait"));
    }).throw_if_failed();
    outer.store().set("looked", "");
    pending.wait();
    promise.set_value();
    promise.work().wait();
  });
}

TEST_P(NestedWorldsTest, TheOuterStoreStreamEventAndContextAreRefused) {
  run(1, [&](RankContext& outer) {
    SimStream stream(outer, "comm");
    Promise promise(&outer.world().scheduler(), outer.rank());
    stream.wait_for(promise.work());
    const Stream::Event event = stream.record();
    HashStore nobodys;
    run_world(options(2), [&](RankContext& rank) {
      if (rank.rank() == 0) return;
      EXPECT_EQ(refusal([&] { outer.store().set("k", "1"); }), refused("HashStore in store set"));
      EXPECT_EQ(refusal([&] { (void)outer.store().get("k"); }), refused("HashStore in store get"));
      EXPECT_EQ(refusal([&] { (void)outer.store().num_keys(); }), refused("HashStore in store num_keys"));
      nobodys.set("k", "1");
      EXPECT_EQ(nobodys.get("k"), "1");
      EXPECT_EQ(refusal([&] { stream.launch([] {}); }), refused("stream comm in stream launch"));
      EXPECT_EQ(refusal([&] { stream.synchronize(); }), refused("stream comm in synchronize"));
      EXPECT_EQ(refusal([&] { (void)stream.query(); }), refused("stream comm in query"));
      EXPECT_EQ(refusal([&] { event.synchronize(); }), refused("event in synchronize"));
      EXPECT_EQ(refusal([&] { (void)event.query(); }), refused("event in query"));
      EXPECT_EQ(refusal([&] { outer.yield(); }), refused("context in yield"));
      EXPECT_EQ(refusal([&] { outer.sleep_for(absl::Seconds(1)); }), refused("context in sleep_for"));
      EXPECT_THAT(refusal([&] { outer.world().spawn_helper([] {}); }),
                  HasSubstr("spawn_helper: called on a thread that belongs to no rank of this world"));
    }).throw_if_failed();
    promise.set_value();
    stream.synchronize();
  });
}

// A handle of an inner world that is kept answers for itself, in the outer world as anywhere.
TEST_P(NestedWorldsTest, AnInnerWorldThatHasEndedSaysSoOutside) {
  run(1, [&](RankContext&) {
    std::shared_ptr<ProcessGroup> pg;
    std::vector<float> x = {1};
    run_world(options(1), [&](RankContext& rank) {
      pg = init_process_group(rank);
      pg->barrier().wait();
    }).throw_if_failed();
    EXPECT_EQ(error_of([&] { (void)pg->all_reduce(x); }, ErrorKind::kAborted),
              "Aborted: rank 0, group 0, all_reduce: the world has ended" + here());
  });
}

// Another world that is not around this one.
TEST_P(NestedWorldsTest, AGroupOfAWorldBesideThisOneIsRefused) {
  World other({.world_size = 1});
  other.attach(0);
  auto pg = init_process_group(other.context(0));
  SimStream stream(other.context(0), "s");
  other.detach();
  EXPECT_TRUE(pg != nullptr);
  World third({.world_size = 2});  // whose rank 1 never comes, so it has not ended
  third.attach(0);
  auto theirs = init_process_group(third.context(0));
  third.detach();
  run(1, [&](RankContext&) {
    EXPECT_EQ(
        refusal([&] { (void)theirs->barrier(); }),
        "InvalidArgument: rank 0 used the group 0 of another world in barrier: want one of its own world" + here());
  });
}

// Backstop: a scheduling point of another world's scheduler, reached without any handle.
TEST_P(NestedWorldsTest, APointOfAnotherWorldIsRefused) {
  run(1, [&](RankContext& outer) {
    run_world(options(1), [&](RankContext&) {
      EXPECT_EQ(refusal([&] { outer.world().scheduler().point(Site{.what = "step", .seq = 3}); }),
                "InvalidArgument: rank 0 of another world came to step seq 3, want a handle of its own world");
    }).throw_if_failed();
  });
}

}  // namespace
}  // namespace rankloom
