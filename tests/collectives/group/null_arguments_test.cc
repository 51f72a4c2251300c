// Callbacks and pointers that are null are refused where they come in, in every world, and the rank goes on.

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/rankloom.h"
#include "rankloom/records.h"
#include "rankloom/testing.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::MatchesRegex;

// A group of the user's own, which gives its base no group.
struct OwnGroup final : ProcessGroup {
  OwnGroup() : ProcessGroup(std::shared_ptr<const Group>(), 0) {}
  explicit OwnGroup(RankContext& rank) : ProcessGroup(rank, nullptr) {}
  absl::StatusOr<Work> execute(CollectiveCall&&) override { return Work(); }
};

struct Null {
  const char* text;  // "HERE": this file and a line
  void (*use)(RankContext& rank, ProcessGroup& pg);
};

const Null kNulls[] = {
    {"then: callback is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup& pg) {
       Work work = pg.barrier();
       try {
         work.then(nullptr);
       } catch (...) {
         work.wait();
         throw;
       }
     }},
    {"then: callback is null, want one \\[HERE\\]", [](RankContext&, ProcessGroup&) { Work().then(nullptr); }},
    {"then: callback is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { Future(Work()).then(std::function<void(const absl::Status&)>()); }},
    {"HashStore watch_key: callback is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { rank.store().watch_key("a", nullptr); }},
    {"rank 1, stream comm: stream launch: kernel is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { SimStream(rank, "comm").launch(nullptr); }},
    {"World::spawn_helper: body is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { rank.world().spawn_helper(nullptr); }},
    {"World::rank_failed: failure is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { rank.world().rank_failed(1, nullptr); }},
    {"World::at_end: hook is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { rank.world().at_end(nullptr); }},
    {"World::on_abort: listener is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { rank.world().on_abort(nullptr); }},
    {"rank 1, condition wait \"changed\": mutex is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
       CondVar changed("changed");
       changed.wait(nullptr);
     }},
    {"rank 1, condition wait \"changed\": mutex is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
       CondVar changed("changed");
       changed.wait_for(nullptr, absl::Seconds(1), [] { return false; });
     }},
    {"rank 1, condition wait \"changed\": mutex is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
       CondVar changed("changed");
       changed.wait(nullptr, [] { return true; });
     }},
    {"rank 1, mutex lock: mutex is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) ABSL_NO_THREAD_SAFETY_ANALYSIS { const MutexLock lock(nullptr); }},
    {"World::OutsideWaker: scheduler is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { const World::OutsideWaker waker(nullptr); }},
    {"Store: the wrapped store is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { const PrefixStore store("a", nullptr); }},
    {"ProcessGroup: group is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) { const OwnGroup group(rank); }},
    {"ProcessGroup: group is null, want one \\[HERE\\]", [](RankContext&, ProcessGroup&) { const OwnGroup group; }},
    {"batch_isend_irecv: operation 0, send: group is null \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { (void)batch_isend_irecv({P2POp()}); }},
    {"rank -1, mesh \\[2\\]: its group is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { (void)init_device_mesh(std::shared_ptr<ProcessGroup>(), {2}); }},
    {"perfetto_json: record 0 is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { (void)traces::perfetto_json({nullptr}); }},
    {"write_perfetto: record 1 is null, want one \\[HERE\\]",
     [](RankContext& rank, ProcessGroup&) {
       traces::write_perfetto({CallRecord::of_rank(rank), nullptr}, "never_written");
     }},
    {"RankOutput: world is null, want one \\[HERE\\]",
     [](RankContext&, ProcessGroup&) { const RankOutput output(nullptr); }},
};

class NullArgumentsTest : public EveryWorldTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, NullArgumentsTest, every_world(), world_name);

TEST_P(NullArgumentsTest, AreRefusedWhereTheyComeIn) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (const Null& null : kNulls) {
      if (rank.rank() == 0) {
        if (&null == &kNulls[0]) pg->barrier().wait();
        continue;
      }
      std::string text = null.text;
      if (const size_t at = text.find("HERE"); at != std::string::npos)
        text.replace(at, 4, "null_arguments_test.cc:[0-9]+");
      EXPECT_THAT([&] { null.use(rank, *pg); },
                  ThrowsDistError(ErrorKind::kInvalidArgument, MatchesRegex("InvalidArgument: " + text)));
    }
    pg->barrier().wait();
  });
}

TEST_P(NullArgumentsTest, StoreCallsThatMakeNoSenseAreRefused) {
  run(1, [](RankContext& rank) {
    const std::string_view key = "a";
    StoreCall watch{.op = StoreCall::Op::kWatchKey, .keys = {&key, 1}};
    EXPECT_EQ(rank.store().execute(watch).status().message(),
              "HashStore watch_key: StoreCall::watch is null, want a callback");
    StoreCall unknown{.op = static_cast<StoreCall::Op>(99)};
    EXPECT_STREQ(unknown.name(), "store ?");
    EXPECT_EQ(rank.store().execute(unknown).status().message(), "HashStore: StoreCall::op has the unknown value 99");
    FakeStore fake;
    EXPECT_EQ(fake.execute(unknown).status().message(), "FakeStore: StoreCall::op has the unknown value 99");
  });
}

TEST(NullArguments, WithoutAWorldAreRefusedToo) {
  EXPECT_THAT(
      []() ABSL_NO_THREAD_SAFETY_ANALYSIS { const MutexLock lock(nullptr); },
      ThrowsDistError(ErrorKind::kInvalidArgument, MatchesRegex("InvalidArgument: mutex lock: mutex is null, want one "
                                                                "\\[null_arguments_test.cc:[0-9]+\\]")));
  EXPECT_EQ(apply_environment(nullptr).message(), "apply_environment: options are null, want some");
}

TEST(TensorSlice, OutsideTheViewIsRefused) {
  std::vector<float> x(6);
  const std::pair<int64_t, int64_t> wrong[] = {{-1, 2}, {2, 9}, {2, -1}, {7, 0}, {INT64_MAX, INT64_MAX}};
  for (const std::pair<int64_t, int64_t>& part : wrong) {
    const std::string text = absl::StrCat("TensorView::slice: begin is ", part.first, " and count ", part.second,
                                          ", want elements 0 to 6 of a contiguous view");
    EXPECT_THAT([&] { (void)TensorView(x).slice(part.first, part.second); },
                ThrowsDistError(ErrorKind::kInvalidArgument, testing::HasSubstr(text)));
  }
  TensorView strided(x.data(), DType::kFloat32, {2, 3}, {1, 2});
  EXPECT_THAT([&] { (void)strided.slice(0, 2); },
              ThrowsDistError(ErrorKind::kInvalidArgument,
                              testing::HasSubstr("this one is float32[2, 3] with strides [1, 2]")));
  EXPECT_EQ(TensorView(x).slice(6, 0).numel(), 0);
}

}  // namespace
}  // namespace rankloom
