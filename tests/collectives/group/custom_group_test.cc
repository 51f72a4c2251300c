// A user's own ProcessGroup and Work: what PyTorch users write in Python, in C++.

#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/work/work_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "tests/collectives/told.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A group of one that answers every call itself.
class LonelyRank final : public ProcessGroup {
 public:
  explicit LonelyRank(bool own_work) : ProcessGroup(0, 1), own_work_(own_work) {}

  std::string backend_name() const override { return "lonely"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override {
    ++calls;
    if (call.op == OpType::kAllGatherIntoTensor) {
      std::memcpy(call.outputs[0].data(), call.inputs[0].data(), call.inputs[0].bytes());
    }
    std::vector<TensorView> written(call.outputs.begin(), call.outputs.end());
    if (own_work_) {  // a work that counts who asks it
      Promise done(nullptr, -1,
                   {.wait =
                        [this](absl::Duration) {
                          ++waits;
                          return absl::OkStatus();
                        },
                    .get_future =
                        [this](const Work& self) {
                          ++futures;
                          return Future(self);
                        }});
      done.set_value(std::move(written));
      return done.work();
    }
    Promise done;  // a work made from a future
    done.set_value(std::move(written));
    return done.future().work();
  }

  int calls = 0;
  int waits = 0;
  int futures = 0;

 private:
  const bool own_work_;
};

TEST(CustomGroupTest, AnswersEveryCallWithItsOwnWork) {
  LonelyRank group(/*own_work=*/true);
  std::vector<float> x = {3, 4}, y(2);
  group.all_reduce(x).wait();
  group.broadcast(x, 0).wait();
  group.all_gather_into_tensor(y, x).wait();
  EXPECT_THAT(y, ElementsAre(3, 4));
  EXPECT_EQ(group.calls, 3);
  EXPECT_EQ(group.waits, 3);
  EXPECT_EQ(group.all_reduce(x).get_future().value()[0].data(), x.data());
  EXPECT_EQ(group.futures, 1);
  EXPECT_EQ(group.waits, 4);  // value() waits
}

TEST(CustomGroupTest, AnswersWithAWorkMadeFromAFuture) {
  LonelyRank group(/*own_work=*/false);
  std::vector<float> x = {3, 4};
  Work work = group.all_reduce(x);
  EXPECT_TRUE(work.is_completed());
  EXPECT_TRUE(work.is_success());
  work.wait();
  EXPECT_EQ(work.result()[0].data(), x.data());
  EXPECT_EQ(group.waits, 0);
}

TEST(CustomGroupTest, IsCheckedByTheSameRulesAsEveryGroup) {
  LonelyRank group(true);
  std::vector<float> x = {3, 4}, y(5);
  try {
    group.all_gather_into_tensor(y, x).wait();
    FAIL() << "no error";
  } catch (const DistError& error) {
    EXPECT_THAT(error.what(), HasSubstr("output has 5 elements, want size * input = 1 * 2 = 2"));
  }
  EXPECT_EQ(group.calls, 0);
}

// Whose execute() fails for an all_reduce, and whose works for a barrier do.
class DownLink final : public ProcessGroup {
 public:
  DownLink(RankContext& rank, std::shared_ptr<const Group> group) : ProcessGroup(rank, std::move(group)) {}
  std::string backend_name() const override { return "down"; }
  absl::StatusOr<Work> execute(CollectiveCall&& call) override {
    if (call.op == OpType::kAllReduce) return absl::UnavailableError("link down");
    Promise lost;
    lost.set_error(absl::UnavailableError("link lost"));
    return lost.work();
  }
};

class CustomGroupFailureTest : public EveryWorldTest {
 protected:
  static std::shared_ptr<ProcessGroup> join(RankContext& rank) {
    return init_process_group(rank, {.make = [](RankContext& self, const std::shared_ptr<const Group>& group) {
                                return std::make_shared<DownLink>(self, group);
                              }});
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CustomGroupFailureTest, every_world(), world_name);

// The calls of this group are promises that nobody keeps.
class SilentLink final : public ProcessGroup {
 public:
  SilentLink(RankContext& rank, std::shared_ptr<const Group> group) : ProcessGroup(rank, std::move(group)) {}
  std::string backend_name() const override { return "silent"; }
  absl::StatusOr<Work> execute(CollectiveCall&& /*call*/) override {
    promises.emplace_back();
    return promises.back().work();
  }
  std::vector<Promise> promises;
};

TEST_P(CustomGroupFailureTest, AWaitInVainWithAFaultBehindItLeavesTheCallOpen) {
  WorldOptions world = options(1);
  world.faults = {{.kind = Fault::Kind::kCorrupt, .rank = 0, .when = Fault::When::kAfter}};
  bool completed = true;
  const RunReport report = run_world(std::move(world), [&](RankContext& rank) {
    auto pg = init_process_group(rank, {.make = [](RankContext& self, const std::shared_ptr<const Group>& group) {
                                   return std::make_shared<SilentLink>(self, group);
                                 }});
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    EXPECT_THAT(error_of([&] { work.wait(absl::Milliseconds(5)); }), HasSubstr("timed out"));
    completed = work.is_completed();
  });
  EXPECT_FALSE(completed);
}

TEST_P(CustomGroupFailureTest, OfExecuteHasTheCall) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = join(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) pg->all_reduce(x, ReduceOp::kSum, {}, CodeSite{"some/train.cc", 12}).wait();
  });
  EXPECT_EQ(report.outcomes[1].text,
            "CollectiveError: link down, after all_reduce seq 1 (failed) [group 0, train.cc:12]");
}

TEST_P(CustomGroupFailureTest, OfAWorkHasTheCall) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = join(rank);
    if (rank.rank() == 1) pg->barrier({}, "", CodeSite{"some/train.cc", 12}).wait();
  });
  EXPECT_EQ(report.outcomes[1].text, "CollectiveError: link lost, after barrier seq 1 (failed) [group 0, train.cc:12]");
}

class DummyAttributes final : public ProcessGroup {
 public:
  DummyAttributes() : ProcessGroup(0, 1) {}
  int rank() const override { return 123; }
  int size() const override { return 456; }
  std::string backend_name() const override { return "dummy-attr"; }
  std::string group_name() const override { return name_; }
  void set_group_name(std::string_view name) override { name_ = absl::StrCat("py:", std::string(name)); }
  std::string description() const override { return description_; }
  void set_description(std::string_view text) override { description_ = absl::StrCat("py:", std::string(text)); }
  absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }

 private:
  std::string name_;
  std::string description_;
};

TEST(CustomGroupTest, OverridesItsAttributesAndTheirSetters) {
  DummyAttributes group;
  ProcessGroup& base = group;
  EXPECT_EQ(base.rank(), 123);
  EXPECT_EQ(base.size(), 456);
  EXPECT_EQ(base.backend_name(), "dummy-attr");
  base.set_group_name("x");
  EXPECT_EQ(base.group_name(), "py:x");
  base.set_description("d");
  EXPECT_EQ(base.description(), "py:d");
  std::ostringstream printed;
  printed << base;
  EXPECT_EQ(printed.str(), "dummy-attr group py:x: rank 123 of 456");
}

TEST(CustomGroupTest, RefusesGroupsOfOtherRanks) {
  class Stranger final : public ProcessGroup {
   public:
    Stranger(RankContext& rank, const std::shared_ptr<const Group>& group)
        : ProcessGroup(rank, group, {"dir/job.cc", 41}) {}
    Stranger(const std::shared_ptr<const Group>& group, int rank) : ProcessGroup(group, rank, {"dir/job.cc", 42}) {}
    absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
  };
  const auto one = std::make_shared<const Group>(7, "x", 1);
  const RunReport report = run_world({.world_size = 2}, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      init_process_group(
          rank, {.make = [&](RankContext& context, const auto&) { return std::make_shared<Stranger>(context, one); }});
    } else {
      Stranger stranger(rank, one);
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("InvalidArgument: ProcessGroup: rank 1 is no member of group x, want one of its "
                                       "ranks [job.cc:41]"));
  for (const int rank : {-1, 1}) {
    EXPECT_THAT(error_of([&] { Stranger stranger(one, rank); }),
                HasSubstr(absl::StrCat("a group of size 1 with rank ", rank,
                                       ", want size >= 1 and 0 <= rank < size [job.cc:42]")));
  }
}

TEST(CustomGroupTest, AbortAndShutdownDoNothingByDefault) {
  DummyAttributes group;
  group.abort();
  group.shutdown();
}

TEST(CustomGroupTest, RefusesARankOutsideItsSize) {
  class Wrong final : public ProcessGroup {
   public:
    Wrong() : ProcessGroup(2, 2, {"dir/job.cc", 31}) {}
    absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
  };
  try {
    Wrong wrong;
    FAIL() << "no error";
  } catch (const DistError& error) {
    EXPECT_STREQ(error.what(),
                 "InvalidArgument: a group of size 2 with rank 2, want size >= 1 and 0 <= rank < size [job.cc:31]");
  }
}

class WorkTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, WorkTest, every_world(), world_name);

// Works that are made of another are done before it: who waited for the whole may read the parts.
TEST(WorkStateTest, WhenDoneRunsJustBeforeTheWorkIsDone) {
  const auto state = std::make_shared<WorkState>();
  std::vector<bool> done;
  const auto look = [&] { done.push_back(state->is_completed()); };
  state->when_done(told([&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    look();
    // Added meanwhile: it runs before the end as well, and a second end counts for nothing.
    state->when_done(told([&](const absl::Status&) { look(); }));
    state->complete(absl::InternalError("late"));
  }));
  state->then([&](const absl::Status&) { look(); });
  state->complete(absl::OkStatus());
  state->when_done(told([&](const absl::Status&) { look(); }));
  EXPECT_THAT(done, ElementsAre(false, false, true, true));
  EXPECT_TRUE(state->status().ok());
}

TEST_P(WorkTest, APromiseIsCompletedByItsOwnerLater) {
  std::shared_ptr<Promise> promise;
  run(2, [&](RankContext& rank) {
    std::vector<float> x = {1, 2};
    if (rank.rank() == 0) {
      promise = std::make_shared<Promise>(&rank.world().scheduler(), 0);
      rank.store().set("made", "1");
      EXPECT_EQ(promise->work().result()[0].numel(), 2);
    } else {
      rank.store().wait({"made"});
      promise->set_value({TensorView(x)});
      promise->set_error(make_error(ErrorKind::kAborted, "too late"));  // only the first counts
    }
  });
}

TEST_P(WorkTest, APromiseOfARankThatIsNoneIsRefused) {
  run(2, [](RankContext& rank) {
    for (const int owner : {-2, 2, 7}) {
      EXPECT_EQ(
          error_of([&] { Promise promise(&rank.world().scheduler(), owner); }, ErrorKind::kInvalidArgument),
          absl::StrCat("InvalidArgument: Promise: rank ", owner, " of a world of 2, want 0 to 1, or -1 for none"));
    }
  });
  EXPECT_EQ(error_of([] { Promise promise(nullptr, -2); }, ErrorKind::kInvalidArgument),
            "InvalidArgument: Promise: rank -2, want 0 or more, or -1 for none");
}

// For all, whichever fail; the first error in the list is thrown then.
TEST_P(WorkTest, WaitAllWaitsForWhatComesBehindAFailure) {
  run(2, [&](RankContext& rank) {
    static std::vector<Promise>* promises = nullptr;
    std::vector<Promise> made;
    if (rank.rank() == 0) {
      for (int i = 0; i < 3; ++i) made.emplace_back(&rank.world().scheduler(), 0);
      promises = &made;
      made[0].set_error(make_error(ErrorKind::kCollectiveError, "first"));
      made[2].set_error(make_error(ErrorKind::kCollectiveError, "last"));
      rank.store().set("made", "");
      std::vector<Work> works;
      for (const Promise& promise : made) works.push_back(promise.work());
      const absl::Duration began = rank.now();
      EXPECT_EQ(error_of([&] { wait_all(works); }, ErrorKind::kCollectiveError), "CollectiveError: first");
      EXPECT_TRUE(works[1].is_completed());
      if (deterministic()) {
        EXPECT_EQ(rank.now() - began, absl::Milliseconds(5));
      }
      rank.store().wait({"set"});
    } else {
      rank.store().wait({"made"});
      rank.sleep_for(absl::Milliseconds(5));
      (*promises)[1].set_value();
      rank.store().set("set", "");
    }
  });
}

TEST_P(WorkTest, APromiseThatFailsThrowsItsError) {
  run(1, [](RankContext& rank) {
    Promise promise(&rank.world().scheduler(), 0);
    promise.set_error(make_error(ErrorKind::kCollectiveError, "lost"));
    EXPECT_FALSE(promise.work().is_success());
    EXPECT_NE(promise.work().exception(), nullptr);
    try {
      promise.work().wait();
      FAIL() << "no error";
    } catch (const DistError& error) {
      EXPECT_STREQ(error.what(), "CollectiveError: lost");
    }
  });
}

TEST_P(WorkTest, CallbacksRunAsTheRankThatOwnsTheWork) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = pg->all_reduce(x);
    const int me = rank.rank();
    work.then([me, &rank](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      ASSERT_NE(RankContext::current(), nullptr);
      EXPECT_EQ(RankContext::current()->rank(), me);
      rank.store().add("called", 1);
    });
    work.wait();
    while (rank.store().add("called", 0) != 3) rank.yield();
  });
}

TEST_P(WorkTest, WaitAnyReturnsOneThatIsDone) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    Promise never(&rank.world().scheduler(), rank.rank());
    std::vector<float> x = {1};
    std::vector<Work> works = {never.work(), pg->all_reduce(x)};
    EXPECT_EQ(wait_any(works), 1U);
    never.set_value();
    wait_all(works);
  });
}

// A group that wraps another: one override.
class CountingGroup final : public ProcessGroup {
 public:
  CountingGroup(RankContext& rank, std::shared_ptr<const Group> group, std::shared_ptr<ProcessGroup> inner)
      : ProcessGroup(rank, std::move(group)), inner_(std::move(inner)) {}
  absl::StatusOr<Work> execute(CollectiveCall&& call) override {
    ++calls;
    return inner_->execute(std::move(call));
  }
  int calls = 0;

 private:
  const std::shared_ptr<ProcessGroup> inner_;
};

TEST_P(WorkTest, AGroupWrapsAnotherByOneOverride) {
  run(2, [](RankContext& rank) {
    CountingGroup* counting = nullptr;
    auto pg = init_process_group(rank, {.make = [&](RankContext& context, const std::shared_ptr<const Group>& group) {
                                   auto made =
                                       std::make_shared<CountingGroup>(context, group, init_process_group(context));
                                   counting = made.get();
                                   return made;
                                 }});
    std::vector<float> x = {float(rank.rank() + 1)};
    pg->all_reduce(x).wait();
    EXPECT_EQ(x[0], 3);
    EXPECT_EQ(counting->calls, 1);
  });
}

TEST(FakeProcessGroupTest, ChecksShapesAndAnswersAtOnce) {
  auto pg = make_fake_process_group({.rank = 5, .world_size = 1000000});
  EXPECT_EQ(pg->rank(), 5);
  EXPECT_EQ(pg->size(), 1000000);
  Work work = pg->all_reduce(TensorView::meta({1024, 1024}, DType::kBFloat16));
  EXPECT_TRUE(work.is_success());
  std::vector<float> x(2), y(5);
  EXPECT_THROW(pg->all_gather_into_tensor(y, x).wait(), DistError);
}

TEST(FakeProcessGroupTest, RefusesEveryCallOnRequest) {
  auto pg = make_fake_process_group({.rank = 1, .world_size = 2, .options = {.error_on_collective = true}});
  std::vector<float> x(2);
  try {
    pg->all_reduce(x).wait();
    FAIL() << "no error";
  } catch (const DistError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCollectiveError);
    EXPECT_THAT(error.what(), HasSubstr("FakeProcessGroup collective operation error: all_reduce, rank 1"));
    EXPECT_THAT(error.what(), HasSubstr("inputs [float32[2]], outputs [float32[2]]"));
  }
  EXPECT_THROW(pg->barrier().wait(), DistError);
}

// Of statuses that were made elsewhere.
TEST(ErrorKindTest, IsThatOfTheStatusCode) {
  EXPECT_EQ(error_kind(absl::DeadlineExceededError("")), ErrorKind::kTimeout);
  EXPECT_EQ(error_kind(absl::CancelledError("")), ErrorKind::kAborted);
  EXPECT_EQ(error_kind(absl::AbortedError("")), ErrorKind::kAborted);
  EXPECT_EQ(error_kind(absl::InvalidArgumentError("")), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_kind(absl::OutOfRangeError("")), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_kind(absl::UnavailableError("")), ErrorKind::kCollectiveError);
}

// Says of every call that it is done.
class DoneGroup final : public ProcessGroup {
 public:
  DoneGroup() : ProcessGroup(0, 2) {}
  absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
  std::string backend_name() const override { return "done"; }
};

TEST(CustomGroupTest, AGroupThatAnswersWithoutMakingTheGroupsAskedForIsNamed) {
  const auto base = std::make_shared<DoneGroup>();
  const std::string text =
      ": backend done completed the call and made no group, want execute() to pass calls that make "
      "groups on, or to refuse them [custom_group_test.cc:";
  EXPECT_THAT([&] { (void)init_device_mesh(base, {2}, {"a"}); },
              ThrowsDistError(ErrorKind::kCollectiveError, HasSubstr("init_device_mesh" + text)));
  EXPECT_THAT(
      [&] {
        (void)base->new_group({0, 1});
      },
      ThrowsDistError(ErrorKind::kCollectiveError, HasSubstr("new_group" + text)));
  EXPECT_THAT([&] { (void)base->split_group(3); },
              ThrowsDistError(ErrorKind::kCollectiveError, HasSubstr("split_group" + text)));
  EXPECT_EQ(base->new_group({1}), nullptr);
  EXPECT_EQ(base->split_group(ProcessGroup::kNoColor), nullptr);
}

}  // namespace
}  // namespace rankloom
