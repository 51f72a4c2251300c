// Collectives on device memory, N ranks on one GPU, against the kernels of the CPU: same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/collectives/kernels/kernel_cases.h"
#include "tests/cuda/cuda_world.h"
#include "tests/error_of.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

// One call on tensors of the device and on copies of the host, of which all must be equal afterwards.
class Twin {
 public:
  Twin(RankContext& rank, ProcessGroup& pg) : rank_(rank), pg_(pg) {}

  // A tensor of this many elements, `salt` telling apart those of a test.
  size_t tensor(DType dtype, int64_t numel, uint64_t salt) {
    Prng prng(salt * 1000 + static_cast<uint64_t>(pg_.rank()));
    hosts_.push_back(std::make_unique<Buffer>(dtype, numel));
    hosts_.back()->fill(prng);
    devices_.push_back(std::make_unique<CudaTensor>(rank_, Dims{numel}, dtype));
    devices_.back()->set_bytes(hosts_.back()->data());
    return hosts_.size() - 1;
  }
  std::vector<size_t> tensors(DType dtype, int64_t numel, uint64_t salt) {
    std::vector<size_t> all;
    for (int i = 0; i < pg_.size(); ++i) all.push_back(tensor(dtype, numel, salt + static_cast<uint64_t>(i)));
    return all;
  }

  // call(view, views) for each kind of memory; then compares.
  void expect_same(const std::string& what, const std::function<Work(const Twin&, bool on_device)>& call) {
    call(*this, true).wait();
    call(*this, false).wait();
    for (size_t i = 0; i < hosts_.size(); ++i) {
      Bytes got(hosts_[i]->size());
      devices_[i]->get_bytes(got.data());
      EXPECT_TRUE(got == hosts_[i]->copy()) << what << ": tensor " << i << " of rank " << pg_.rank();
    }
  }
  TensorView view(size_t i, bool on_device) const { return on_device ? devices_[i]->view() : hosts_[i]->view(); }
  std::vector<TensorView> views(const std::vector<size_t>& which, bool on_device) const {
    std::vector<TensorView> all;
    for (const size_t i : which) all.push_back(view(i, on_device));
    return all;
  }

 private:
  RankContext& rank_;
  ProcessGroup& pg_;
  std::vector<std::unique_ptr<Buffer>> hosts_;
  std::vector<std::unique_ptr<CudaTensor>> devices_;
};

class CudaCollectivesTest : public CudaTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, CudaCollectivesTest, every_world(), world_name);

TEST_P(CudaCollectivesTest, ReductionsHaveTheBitsOfTheCpu) {
  run(5, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (const DType dtype : kDTypesWithArithmetic) {
      for (const ReduceOp& op : kAllReduceOps) {
        if (!reduction_supported(op, dtype)) continue;
        for (const ReduceOp::Order& order : kAllOrders) {
          for (const int64_t numel : {int64_t{1}, int64_t{1001}}) {
            Twin twin(rank, *pg);
            const size_t x = twin.tensor(dtype, numel, 1);
            twin.expect_same(std::string(dtype_name(dtype)) + " " + op.name(), [&](const Twin& t, bool on_device) {
              return pg->all_reduce(t.view(x, on_device), op, {.order = order});
            });
          }
        }
      }
    }
  });
}

TEST_P(CudaCollectivesTest, LargeTensorsHaveTheBitsOfTheCpu) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kComplex128}) {
      Twin twin(rank, *pg);
      const size_t x = twin.tensor(dtype, 1'000'003, 2);
      const size_t part = twin.tensor(dtype, 250'000, 3);
      const size_t all = twin.tensor(dtype, 1'000'000, 4);
      twin.expect_same("all_reduce", [&](const Twin& t, bool d) { return pg->all_reduce(t.view(x, d)); });
      twin.expect_same("reduce_scatter_tensor", [&](const Twin& t, bool d) {
        return pg->reduce_scatter_tensor(t.view(part, d), t.view(all, d));
      });
      twin.expect_same("all_gather_into_tensor", [&](const Twin& t, bool d) {
        return pg->all_gather_into_tensor(t.view(all, d), t.view(part, d));
      });
    }
  });
}

TEST_P(CudaCollectivesTest, EveryCollectiveMovesEveryDType) {
  run(3, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int n = pg->size();
    const auto only = [&](int root, std::vector<TensorView> views) {
      return pg->rank() == root ? views : std::vector<TensorView>();
    };
    for (const DType dtype : kAllDTypes) {
      for (const int64_t numel : {int64_t{1}, int64_t{33}, int64_t{4099}}) {
        Twin twin(rank, *pg);
        const size_t x = twin.tensor(dtype, numel, 1);
        const size_t y = twin.tensor(dtype, numel, 2);
        const size_t whole = twin.tensor(dtype, n * numel, 3);
        const size_t other = twin.tensor(dtype, n * numel, 4);
        const std::vector<size_t> in = twin.tensors(dtype, numel, 10);
        const std::vector<size_t> out = twin.tensors(dtype, numel, 20);
        twin.expect_same("broadcast", [&](const Twin& t, bool d) { return pg->broadcast(t.view(x, d), 1); });
        twin.expect_same("all_gather",
                         [&](const Twin& t, bool d) { return pg->all_gather(t.views(out, d), t.view(y, d)); });
        twin.expect_same("all_gather_into_tensor", [&](const Twin& t, bool d) {
          return pg->all_gather_into_tensor(t.view(whole, d), t.view(y, d));
        });
        twin.expect_same("gather",
                         [&](const Twin& t, bool d) { return pg->gather(only(2, t.views(out, d)), t.view(x, d), 2); });
        twin.expect_same("scatter",
                         [&](const Twin& t, bool d) { return pg->scatter(t.view(y, d), only(0, t.views(in, d)), 0); });
        twin.expect_same("all_to_all",
                         [&](const Twin& t, bool d) { return pg->all_to_all(t.views(out, d), t.views(in, d)); });
        twin.expect_same("all_to_all_single", [&](const Twin& t, bool d) {
          return pg->all_to_all_single(t.view(other, d), t.view(whole, d), {}, {});
        });
        twin.expect_same("send, recv", [&](const Twin& t, bool d) {
          pg->start_coalescing();
          (void)pg->send(t.view(x, d), (pg->rank() + 1) % n);
          (void)pg->recv(t.view(y, d), (pg->rank() + n - 1) % n);
          return pg->end_coalescing();
        });
        if (!reduction_supported(ReduceOp::kSum, dtype)) continue;
        twin.expect_same("reduce", [&](const Twin& t, bool d) { return pg->reduce(t.view(x, d), 1); });
        twin.expect_same("reduce_scatter",
                         [&](const Twin& t, bool d) { return pg->reduce_scatter(t.view(y, d), t.views(in, d)); });
        twin.expect_same("all_reduce_coalesced", [&](const Twin& t, bool d) {
          return pg->all_reduce_coalesced(t.views({x, y}, d));
        });
      }
    }
  });
}

TEST_P(CudaCollectivesTest, SixtyFourRanksShareOneGpu) {
  run(64, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    Twin twin(rank, *pg);
    const size_t x = twin.tensor(DType::kFloat32, 100, 1);
    const size_t part = twin.tensor(DType::kFloat32, 3, 2);
    const size_t whole = twin.tensor(DType::kFloat32, 192, 3);
    twin.expect_same("all_reduce", [&](const Twin& t, bool d) { return pg->all_reduce(t.view(x, d)); });
    // More copies than a launch's parameters hold.
    twin.expect_same("all_gather_into_tensor", [&](const Twin& t, bool d) {
      return pg->all_gather_into_tensor(t.view(whole, d), t.view(part, d));
    });
  });
}

TEST_P(CudaCollectivesTest, MemoryOfTheHostAndOfTheDeviceDoNotMix) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> here = {1};
    const CudaTensor there(rank, here);
    EXPECT_THAT(error_of([&] { pg->all_reduce(rank.rank() == 0 ? TensorView(here) : there.view()).wait(); }),
                HasSubstr("Mismatch: group 0, seq 1"));
  });
}

}  // namespace
}  // namespace rankloom
