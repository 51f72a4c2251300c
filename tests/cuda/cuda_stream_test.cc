// CUDA streams that block on works.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/collectives/streams/stream_kinds.h"
#include "tests/cuda/cuda_world.h"
#include "tests/cuda/test_kernels.h"
#include "tests/error_of.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CudaStreams final : public StreamKind {
 public:
  explicit CudaStreams(const WorldMode& /*mode*/) {}
  std::string missing() const override { return no_gpu(); }
  WorldOptions options(WorldOptions world) const override { return with_cuda_stacks(std::move(world)); }
  std::unique_ptr<Stream> make(RankContext& rank, std::string_view name) override {
    return std::make_unique<CudaStream>(rank, name);
  }
};
INSTANTIATE_TEST_SUITE_P(Cuda, BlockedStreamTest, BlockedStreamTest::every_world_of<CudaStreams>(), StreamWorldName());

// Mapped host memory that a kernel reads.
class Gate {
 public:
  Gate() {
    void* memory = nullptr;
    EXPECT_EQ(cudaHostAlloc(&memory, sizeof(int), cudaHostAllocMapped), cudaSuccess);
    value_ = static_cast<volatile int*>(memory);
    *value_ = 0;
  }
  ~Gate() { EXPECT_EQ(cudaFreeHost(const_cast<int*>(value_)), cudaSuccess); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  const volatile int* seen() const { return value_; }  // one address space
  void open() { *value_ = 1; }

 private:
  volatile int* value_ = nullptr;
};

class CudaStreamTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(load_test_kernels(), cudaSuccess);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CudaStreamTest, every_world(), world_name);

TEST_P(CudaStreamTest, AKernelBehindABlockedWorkRunsAfterIt) {
  run(2, [](RankContext& rank) {
    const CudaTensor x(rank, std::vector<int32_t>{1});
    CudaStream stream(rank);
    const auto work = std::make_shared<FutureWork>(rank);
    WorkState::handle(work).block_current_stream(stream);
    ASSERT_EQ(launch_fill(x.view().data_as<int32_t>(), 5, 1, stream.native()), cudaSuccess);
    rank.sleep_for(absl::Milliseconds(1));
    CudaStream(rank, "other").synchronize();  // as far as `stream` can go
    EXPECT_THAT(x.to_host<int32_t>(), ElementsAre(1));
    work->resolve();
    stream.synchronize();
    EXPECT_THAT(x.to_host<int32_t>(), ElementsAre(5));
  });
}

TEST_P(CudaStreamTest, AViewWaitsOnAStreamOfTheCallers) {
  run(1, [](RankContext& rank) {
    use_cuda(rank);
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
    {
      CudaStreamView view(rank, own, "mine");
      EXPECT_EQ(view.native(), own);
      const auto work = std::make_shared<FutureWork>(rank);
      WorkState::handle(work).block_current_stream(view);
      EXPECT_EQ(cudaStreamQuery(own), cudaErrorNotReady);
      EXPECT_FALSE(view.query());
      work->resolve();
      view.synchronize();
    }
    EXPECT_EQ(cudaStreamDestroy(own), cudaSuccess);
  });
}

TEST_P(CudaStreamTest, AnAbortReleasesTheStream) {
  std::shared_ptr<FutureWork> never;
  const RunReport report = run_to_failure(2, [&](RankContext& rank) {
    CudaStream stream(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"blocked"});
      throw std::runtime_error("rank 1 gives up");
    }
    never = std::make_shared<FutureWork>(rank);
    WorkState::handle(never).block_current_stream(stream);
    const Stream::Event behind = stream.record();
    rank.store().set("blocked", "1");
    EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("RankFailed: rank 1 failed: rank 1 gives up"));
    while (!behind.query()) sched_yield();
    EXPECT_EQ(error_kind(stream.status()), ErrorKind::kRankFailed);
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 1 failed: rank 1 gives up"));
  never.reset();
}

TEST_P(CudaStreamTest, ADeadlockNamesWhomTheStreamWaitsFor) {
  const RunReport report = run_to_failure(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) return;
    const CudaTensor x(rank, std::vector<float>{1});
    CudaStream stream(rank, "comm");
    (void)pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    stream.synchronize();
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 0 waits in stream synchronize comm for rank 1 (returned)"));
}

TEST_P(CudaStreamTest, ACallReadsWhatIsQueuedBeforeItAndIsReadByWhatComesAfter) {
  Gate gate;
  run(3, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    const CudaTensor x(rank, std::vector<int32_t>{-1, -1});
    const CudaTensor seen(rank, std::vector<int32_t>{0, 0});
    CudaStream stream(rank, "comm");
    ASSERT_EQ(launch_gate(gate.seen(), stream.native()), cudaSuccess);
    ASSERT_EQ(launch_fill(x.view().data_as<int32_t>(), rank.rank() + 1, 2, stream.native()), cudaSuccess);
    Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
    ASSERT_EQ(launch_copy(seen.view().data_as<int32_t>(), x.view().data_as<int32_t>(), 2, stream.native()),
              cudaSuccess);
    work.wait();  // orders the stream only
    EXPECT_FALSE(work.is_completed());
    pg->barrier().wait();
    gate.open();
    stream.synchronize();
    EXPECT_TRUE(work.is_success());
    EXPECT_THAT(seen.to_host<int32_t>(), ElementsAre(6, 6));
  });
}

// More ranks than a device has queues by default, and each of them many calls ahead.
TEST_P(CudaStreamTest, RanksRunAheadOfTheDeviceByManyCalls) {
  run(12, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const CudaTensor x(rank, std::vector<int32_t>{rank.rank()});
    CudaStream stream(rank, "comm");
    const CallOptions options = {.timeout = absl::Seconds(20), .stream = &stream};
    for (int round = 0; round < 2; ++round) {
      pg->barrier().wait();
      for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(launch_fill(x.view().data_as<int32_t>(), rank.rank(), 1, stream.native()), cudaSuccess);
        (void)pg->all_reduce(x, ReduceOp::kMax, options);
      }
      stream.synchronize();
      EXPECT_THAT(x.to_host<int32_t>(), ElementsAre(11));
    }
  });
}

}  // namespace
}  // namespace rankloom
