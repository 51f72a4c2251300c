#pragma once

// Tests of all kinds of streams: what a stream that waits for a work must do. The tests are in blocked_stream_cases.cc,
// and are instantiated where a kind is:
//   INSTANTIATE_TEST_SUITE_P(Sim, BlockedStreamTest, BlockedStreamTest::every_world_of<SimStreams>(),
//                            StreamWorldName());

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/work/work_state.h"
#include "rankloom/stream.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

// A work of the user's own that its future answers for.
class FutureWork final : public WorkState {
 public:
  explicit FutureWork(RankContext& rank) : promise_(&rank.world().scheduler(), rank.rank()) {}
  Future get_future(const Work& /*self*/) override { return promise_.future(); }
  void resolve() { promise_.set_value(); }
  void fail(const absl::Status& status) { promise_.set_error(status); }

 private:
  Promise promise_;
};

// A kind of streams, for the length of a test.
class StreamKind {
 public:
  StreamKind() = default;
  virtual ~StreamKind() = default;
  StreamKind(const StreamKind&) = delete;
  StreamKind& operator=(const StreamKind&) = delete;

  // Why there can be none here; empty: they can.
  virtual std::string missing() const { return ""; }
  // Adds the options that their worlds need.
  virtual WorldOptions options(WorldOptions world) const { return world; }
  // On each rank, first.
  virtual void enter(RankContext& /*rank*/) {}
  virtual std::unique_ptr<Stream> make(RankContext& rank, std::string_view name) = 0;
  // The tensor that calls are given.
  virtual TensorView view(std::vector<float>& values) const { return values; }
};

// Of kinds whose streams take functions to run.
class LaunchingStreamKind : public StreamKind {
 public:
  virtual void launch(Stream& stream, std::function<void()> function) = 0;
};

// A test of a kind of streams in one of the ways in which a world runs.
template <typename Kind>
class StreamKindTest
    : public testing::TestWithParam<std::tuple<std::unique_ptr<Kind> (*)(const WorldMode&), WorldMode>> {
 public:
  // For streams of one kind, an object of which is made of a WorldMode.
  template <typename OneKind>
  static auto every_world_of() {
    const auto make = [](const WorldMode& mode) -> std::unique_ptr<Kind> { return std::make_unique<OneKind>(mode); };
    return testing::Combine(testing::Values(+make), every_world());
  }

 protected:
  void SetUp() override {
    const auto& [make_kind, mode] = this->GetParam();
    kind_ = make_kind(mode);
    if (const std::string missing = kind_->missing(); !missing.empty()) GTEST_SKIP() << missing;
  }

  Kind& kind() { return *kind_; }
  WorldOptions options(int world_size) const { return std::get<1>(this->GetParam()).options(world_size); }
  RunReport run(int world_size, absl::FunctionRef<void(RankContext&)> program) {
    RunReport report = run_in(options(world_size), program);
    EXPECT_TRUE(report.ok()) << report.text();
    return report;
  }
  RunReport run_to_failure(WorldOptions world, absl::FunctionRef<void(RankContext&)> program) {
    RunReport report = run_in(std::move(world), program);
    EXPECT_FALSE(report.ok());
    return report;
  }

 private:
  RunReport run_in(WorldOptions world, absl::FunctionRef<void(RankContext&)> program) {
    return run_world(kind_->options(std::move(world)), [&](RankContext& rank) {
      kind_->enter(rank);
      program(rank);
    });
  }

  std::unique_ptr<Kind> kind_;
};

class BlockedStreamTest : public StreamKindTest<StreamKind> {
 protected:
  std::unique_ptr<Stream> make_stream(RankContext& rank, std::string_view name) { return kind().make(rank, name); }
  // Streams go as far as they can: those that are blocked as well as one that is not.
  void let_streams_run(RankContext& rank) {
    rank.sleep_for(absl::Milliseconds(1));
    make_stream(rank, "other")->synchronize();
  }
};
class LaunchingStreamTest : public StreamKindTest<LaunchingStreamKind> {};
// Calls that are put on streams.
class CallOnStreamTest : public StreamKindTest<StreamKind> {};
// Streams whose rank leaves while they have calls.
class LeftStreamTest : public StreamKindTest<StreamKind> {};

struct StreamWorldName {
  template <typename Info>
  std::string operator()(const Info& info) const {
    return std::get<1>(info.param).name;
  }
};

}  // namespace rankloom
