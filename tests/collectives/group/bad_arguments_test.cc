// Every argument of every operation out of range, through the front of real and of fake groups: the text says who, what, have
// and want, nothing is written, the call takes no number, and the group goes on.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/fake.h"
#include "rankloom/matchers.h"
#include "rankloom/process_group.h"
#include "rankloom/traces.h"
#include "tests/world/every_world.h"

namespace rankloom {
namespace {

using testing::Each;

constexpr int kSize = 3;
constexpr float kUntouched = -7;

// What a call may be given. `two` is rank() + 1 everywhere, outputs are kUntouched.
struct Tensors {
  explicit Tensors(int rank) : two(2, static_cast<float>(rank + 1)), six(6, static_cast<float>(rank + 1)) {}

  std::vector<TensorView> list(size_t n = kSize) { return {parts.begin(), parts.begin() + static_cast<int64_t>(n)}; }
  std::vector<TensorView> inputs(size_t n = kSize) { return {gives.begin(), gives.begin() + static_cast<int64_t>(n)}; }
  std::vector<TensorView> list_but(size_t i, TensorView other) {
    std::vector<TensorView> views = list();
    views[i] = std::move(other);
    return views;
  }
  std::vector<TensorView> inputs_but(size_t i, TensorView other) {
    std::vector<TensorView> views = inputs();
    views[i] = std::move(other);
    return views;
  }
  TensorView null() const { return TensorView(static_cast<float*>(nullptr), {2}); }
  TensorView strided() { return TensorView(out6.data(), DType::kFloat32, {2, 3}, {1, 2}); }

  std::vector<float> two, six;
  std::vector<float> out = std::vector<float>(2, kUntouched);
  std::vector<float> out5 = std::vector<float>(5, kUntouched);
  std::vector<float> out6 = std::vector<float>(6, kUntouched);
  std::vector<int32_t> ints = std::vector<int32_t>(2, 3);
  std::vector<double> doubles = std::vector<double>(2, 3);
  std::array<std::vector<float>, 4> parts = {out, out, out, out};
  std::array<std::vector<float>, 4> gives = {two, two, two, two};
};

struct Case {
  std::string name;
  std::string text;  // "OP: WHAT": the rest of what() after "rank 2, group 0, ", without the number of the call
  std::function<void(ProcessGroup& pg, Tensors& t)> call;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

ReduceOp unknown_op() { return {static_cast<ReduceOp::Kind>(99)}; }
CallOptions unknown_order() { return {.order = ReduceOrder{.kind = static_cast<ReduceOrder::Kind>(99)}}; }
CallOptions negative_timeout() { return {.timeout = absl::Seconds(-1)}; }
CallOptions negative_warning() { return {.warn_after = absl::Seconds(-1)}; }

#define CALL [](ProcessGroup & pg, [[maybe_unused]] Tensors & t)

std::vector<Case> cases() {
  const std::string null = " has a null pointer, want the address of 2 elements of float32";
  const std::string strided = " is not contiguous: shape [2, 3] has strides [1, 2], want [3, 1]";
  const std::string of_ints = "reduce op avg has no kernel for int32, want a floating or complex dtype";
  const std::string no_op = "reduce op has the unknown kind 99";
  const std::string no_order = "order of reduction has the unknown kind 99";
  const std::string no_time = "timeout is -1s, want 0 or more";
  const std::string no_warning = "warn_after is -1s, want 0 or more";
  std::vector<Case> all;
  const auto add = [&all](std::string name, std::string text, std::function<void(ProcessGroup&, Tensors&)> call) {
    all.push_back({std::move(name), std::move(text), std::move(call)});
  };
  const auto root_text = [](int root) { return absl::StrCat("root is ", root, ", want 0 <= root < size = 3"); };

  // broadcast
  add(
      "BroadcastBuffer", "broadcast: buffer" + null, CALL { (void)pg.broadcast(t.null(), 0); });
  add(
      "BroadcastStrided", "broadcast: buffer" + strided, CALL { (void)pg.broadcast(t.strided(), 0); });
  add(
      "BroadcastNegativeSize", "broadcast: buffer's shape [2, -3] has a negative size, -3", CALL {
        (void)pg.broadcast(TensorView(t.out.data(), {2, -3}), 0);
      });
  add(
      "BroadcastRootBelow", "broadcast: " + root_text(-1), CALL { (void)pg.broadcast(t.out, -1); });
  add(
      "BroadcastRootAbove", "broadcast: " + root_text(3), CALL { (void)pg.broadcast(t.out, 3); });
  add(
      "BroadcastDType", "broadcast: buffer's dtype is 99, want 0 <= dtype < 14, a value of DType",
      CALL { (void)pg.broadcast(TensorView(t.out.data(), static_cast<DType>(99), {2}), 0); });
  add(
      "BroadcastTimeout", "broadcast: " + no_time, CALL { (void)pg.broadcast(t.out, 0, negative_timeout()); });
  add(
      "BroadcastWarning", "broadcast: " + no_warning, CALL { (void)pg.broadcast(t.out, 0, negative_warning()); });

  // all_reduce
  add(
      "AllReduceBuffer", "all_reduce: buffer" + null, CALL { (void)pg.all_reduce(t.null()); });
  add(
      "AllReduceStrided", "all_reduce: buffer" + strided, CALL { (void)pg.all_reduce(t.strided()); });
  add(
      "AllReduceDType", "all_reduce: reduce op sum has no kernel for an unknown dtype, want any dtype but float8",
      CALL { (void)pg.all_reduce(TensorView(t.out.data(), static_cast<DType>(99), {2})); });
  add(
      "AllReduceOp", "all_reduce: " + no_op, CALL { (void)pg.all_reduce(t.out, unknown_op()); });
  add(
      "AllReduceOpOfInts", "all_reduce: " + of_ints, CALL { (void)pg.all_reduce(t.ints, ReduceOp::kAvg); });
  add(
      "AllReduceOrder", "all_reduce: " + no_order,
      CALL { (void)pg.all_reduce(t.out, ReduceOp::kSum, unknown_order()); });
  add(
      "AllReduceTimeout", "all_reduce: " + no_time,
      CALL { (void)pg.all_reduce(t.out, ReduceOp::kSum, negative_timeout()); });

  // all_reduce_coalesced
  add(
      "AllReduceCoalescedNone",
      "all_reduce_coalesced: buffers has 0 inputs and 0 outputs, want as many of both and at "
      "least 1",
      CALL { (void)pg.all_reduce_coalesced({}); });
  add(
      "AllReduceCoalescedBuffer", "all_reduce_coalesced: buffers[1]" + null,
      CALL { (void)pg.all_reduce_coalesced(t.list_but(1, t.null())); });
  add(
      "AllReduceCoalescedOverlap", "all_reduce_coalesced: buffers[2] overlaps buffers[0], want separate memory",
      CALL { (void)pg.all_reduce_coalesced(t.list_but(2, t.parts[0])); });
  add(
      "AllReduceCoalescedOp", "all_reduce_coalesced: " + no_op,
      CALL { (void)pg.all_reduce_coalesced(t.list(), unknown_op()); });
  add(
      "AllReduceCoalescedOrder", "all_reduce_coalesced: " + no_order,
      CALL { (void)pg.all_reduce_coalesced(t.list(), ReduceOp::kSum, unknown_order()); });

  // reduce
  add(
      "ReduceBuffer", "reduce: buffer" + null, CALL { (void)pg.reduce(t.null(), 0); });
  add(
      "ReduceRootBelow", "reduce: " + root_text(-2), CALL { (void)pg.reduce(t.out, -2); });
  add(
      "ReduceRootAbove", "reduce: " + root_text(7), CALL { (void)pg.reduce(t.out, 7); });
  add(
      "ReduceOp", "reduce: " + no_op, CALL { (void)pg.reduce(t.out, 0, unknown_op()); });
  add(
      "ReduceOrder", "reduce: " + no_order, CALL { (void)pg.reduce(t.out, 0, ReduceOp::kSum, unknown_order()); });
  add(
      "ReduceTimeout", "reduce: " + no_time, CALL { (void)pg.reduce(t.out, 0, ReduceOp::kSum, negative_timeout()); });

  // all_gather and its forms
  add(
      "AllGatherOutputs", "all_gather: outputs has 2 tensors, want size = 3",
      CALL { (void)pg.all_gather(t.list(2), t.two); });
  add(
      "AllGatherOwnOutput", "all_gather: outputs[RANK] has 5 elements, want input's 2",
      CALL { (void)pg.all_gather(t.list_but(static_cast<size_t>(pg.rank()), t.out5), t.two); });
  add(
      "AllGatherDType", "all_gather: outputs[0] has dtype int32, want input's float32",
      CALL { (void)pg.all_gather(t.list_but(0, t.ints), t.two); });
  add(
      "AllGatherInput", "all_gather: input" + null, CALL { (void)pg.all_gather(t.list(), t.null()); });
  add(
      "AllGatherOverlap", "all_gather: outputs[2] overlaps outputs[0], want separate memory",
      CALL { (void)pg.all_gather(t.list_but(2, t.parts[0]), t.two); });
  add(
      "AllGatherTimeout", "all_gather: " + no_time, CALL { (void)pg.all_gather(t.list(), t.two, negative_timeout()); });
  add(
      "AllGatherIntoTensorOutput", "all_gather_into_tensor: output has 5 elements, want size * input = 3 * 2 = 6",
      CALL { (void)pg.all_gather_into_tensor(t.out5, t.two); });
  add(
      "AllGatherIntoTensorInput", "all_gather_into_tensor: input" + null,
      CALL { (void)pg.all_gather_into_tensor(t.out6, t.null()); });
  add(
      "AllGatherIntoTensorDType", "all_gather_into_tensor: output has dtype float32, want input's float64",
      CALL { (void)pg.all_gather_into_tensor(t.out6, t.doubles); });
  add(
      "AllGatherIntoTensorTimeout", "all_gather_into_tensor: " + no_time,
      CALL { (void)pg.all_gather_into_tensor(t.out6, t.two, negative_timeout()); });
  add(
      "AllGatherIntoTensorCoalescedLists",
      "all_gather_into_tensor_coalesced: inputs has 1 tensor and outputs 2, want as many of both and at least 1", CALL {
        (void)pg.all_gather_into_tensor_coalesced({t.out6, t.out}, {t.two});
      });
  add(
      "AllGatherIntoTensorCoalescedNone",
      "all_gather_into_tensor_coalesced: inputs has 0 tensors and outputs 0, want as many of both and at least 1",
      CALL { (void)pg.all_gather_into_tensor_coalesced({}, {}); });
  add(
      "AllGatherIntoTensorCoalescedPair",
      "all_gather_into_tensor_coalesced: pair 1: output has 5 elements, want size * input = 3 * 2 = 6", CALL {
        (void)pg.all_gather_into_tensor_coalesced({t.out6, t.out5}, {t.two, t.gives[0]});
      });

  // gather and scatter
  add(
      "GatherRootBelow", "gather: " + root_text(-1), CALL { (void)pg.gather(t.list(), t.two, -1); });
  add(
      "GatherRootAbove", "gather: " + root_text(3), CALL { (void)pg.gather(t.list(), t.two, 3); });
  add(
      "GatherInput", "gather: input" + null, CALL { (void)pg.gather({}, t.null(), (pg.rank() + 1) % kSize); });
  add(
      "GatherOutputs", "gather: outputs has 1 tensor, want size = 3",
      CALL { (void)pg.gather(t.list(1), t.two, pg.rank()); });
  add(
      "GatherOutputsElsewhere", "gather: outputs has 3 tensors, want none: only the root, NEXT, gathers",
      CALL { (void)pg.gather(t.list(), t.two, (pg.rank() + 1) % kSize); });
  add(
      "GatherOutputSize", "gather: outputs[2] has 5 elements, want input's 2",
      CALL { (void)pg.gather(t.list_but(2, t.out5), t.two, pg.rank()); });
  add(
      "GatherTimeout", "gather: " + no_time, CALL { (void)pg.gather(t.list(), t.two, pg.rank(), negative_timeout()); });
  add(
      "ScatterRootBelow", "scatter: " + root_text(-1), CALL { (void)pg.scatter(t.out, t.inputs(), -1); });
  add(
      "ScatterRootAbove", "scatter: " + root_text(4), CALL { (void)pg.scatter(t.out, t.inputs(), 4); });
  add(
      "ScatterOutput", "scatter: output" + null, CALL { (void)pg.scatter(t.null(), {}, (pg.rank() + 1) % kSize); });
  add(
      "ScatterInputs", "scatter: inputs has 4 tensors, want size = 3",
      CALL { (void)pg.scatter(t.out, t.inputs(4), pg.rank()); });
  add(
      "ScatterInputsElsewhere", "scatter: inputs has 3 tensors, want none: only the root, NEXT, scatters",
      CALL { (void)pg.scatter(t.out, t.inputs(), (pg.rank() + 1) % kSize); });
  add(
      "ScatterInputSize", "scatter: inputs[1] has 6 elements, want output's 2",
      CALL { (void)pg.scatter(t.out, t.inputs_but(1, t.six), pg.rank()); });
  add(
      "ScatterTimeout", "scatter: " + no_time,
      CALL { (void)pg.scatter(t.out, t.inputs(), pg.rank(), negative_timeout()); });

  // reduce_scatter and its forms
  add(
      "ReduceScatterInputs", "reduce_scatter: inputs has 2 tensors, want size = 3",
      CALL { (void)pg.reduce_scatter(t.out, t.inputs(2)); });
  add(
      "ReduceScatterOwnInput", "reduce_scatter: inputs[RANK] has 6 elements, want output's 2",
      CALL { (void)pg.reduce_scatter(t.out, t.inputs_but(static_cast<size_t>(pg.rank()), t.six)); });
  add(
      "ReduceScatterOutput", "reduce_scatter: output" + null, CALL { (void)pg.reduce_scatter(t.null(), t.inputs()); });
  add(
      "ReduceScatterOp", "reduce_scatter: " + no_op,
      CALL { (void)pg.reduce_scatter(t.out, t.inputs(), unknown_op()); });
  add(
      "ReduceScatterOrder", "reduce_scatter: " + no_order,
      CALL { (void)pg.reduce_scatter(t.out, t.inputs(), ReduceOp::kSum, unknown_order()); });
  add(
      "ReduceScatterTimeout", "reduce_scatter: " + no_time,
      CALL { (void)pg.reduce_scatter(t.out, t.inputs(), ReduceOp::kSum, negative_timeout()); });
  add(
      "ReduceScatterTensorInput", "reduce_scatter_tensor: input has 2 elements, want size * output = 3 * 2 = 6",
      CALL { (void)pg.reduce_scatter_tensor(t.out, t.two); });
  add(
      "ReduceScatterTensorOutput", "reduce_scatter_tensor: output" + null,
      CALL { (void)pg.reduce_scatter_tensor(t.null(), t.six); });
  add(
      "ReduceScatterTensorOp", "reduce_scatter_tensor: " + no_op,
      CALL { (void)pg.reduce_scatter_tensor(t.out, t.six, unknown_op()); });
  add(
      "ReduceScatterTensorOrder", "reduce_scatter_tensor: " + no_order,
      CALL { (void)pg.reduce_scatter_tensor(t.out, t.six, ReduceOp::kSum, unknown_order()); });
  add(
      "ReduceScatterTensorCoalescedLists",
      "reduce_scatter_tensor_coalesced: inputs has 2 tensors and outputs 1, want as many of both and at least 1", CALL {
        (void)pg.reduce_scatter_tensor_coalesced({t.out}, {t.six, t.two});
      });
  add(
      "ReduceScatterTensorCoalescedPair",
      "reduce_scatter_tensor_coalesced: pair 0: input has 2 elements, want size * output = 3 * 2 = 6",
      CALL { (void)pg.reduce_scatter_tensor_coalesced({t.out}, {t.two}); });
  add(
      "ReduceScatterTensorCoalescedOp", "reduce_scatter_tensor_coalesced: pair 0: " + no_op,
      CALL { (void)pg.reduce_scatter_tensor_coalesced({t.out}, {t.six}, unknown_op()); });

  // all_to_all and all_to_all_single
  add(
      "AllToAllOutputs", "all_to_all: outputs has 2 tensors, want size = 3",
      CALL { (void)pg.all_to_all(t.list(2), t.inputs()); });
  add(
      "AllToAllInputs", "all_to_all: inputs has 4 tensors, want size = 3",
      CALL { (void)pg.all_to_all(t.list(), t.inputs(4)); });
  add(
      "AllToAllDType", "all_to_all: outputs[1] has dtype int32, want inputs[0]'s float32",
      CALL { (void)pg.all_to_all(t.list_but(1, t.ints), t.inputs()); });
  add(
      "AllToAllTensor", "all_to_all: inputs[2]" + null,
      CALL { (void)pg.all_to_all(t.list(), t.inputs_but(2, t.null())); });
  add(
      "AllToAllOverlap", "all_to_all: inputs[0] overlaps outputs[1], want separate memory",
      CALL { (void)pg.all_to_all(t.list(), t.inputs_but(0, t.parts[1])); });
  add(
      "AllToAllTimeout", "all_to_all: " + no_time,
      CALL { (void)pg.all_to_all(t.list(), t.inputs(), negative_timeout()); });
  add(
      "AllToAllSingleInput",
      "all_to_all_single: input has 2 rows (dimension 0) and no in_splits, want a multiple of "
      "size = 3",
      CALL { (void)pg.all_to_all_single(t.out6, t.two); });
  add(
      "AllToAllSingleOutput",
      "all_to_all_single: output has 5 rows (dimension 0) and no out_splits, want a multiple of "
      "size = 3",
      CALL { (void)pg.all_to_all_single(t.out5, t.six); });
  add(
      "AllToAllSingleInSplits", "all_to_all_single: in_splits has 2 entries, want size = 3", CALL {
        (void)pg.all_to_all_single(t.out6, t.six, {}, {3, 3});
      });
  add(
      "AllToAllSingleOutSplits", "all_to_all_single: out_splits has 4 entries, want size = 3", CALL {
        (void)pg.all_to_all_single(t.out6, t.six, {1, 1, 2, 2});
      });
  add(
      "AllToAllSingleNegativeSplit", "all_to_all_single: out_splits[0] is -1, want 0 or more", CALL {
        (void)pg.all_to_all_single(t.out6, t.six, {-1, 3, 4});
      });
  add(
      "AllToAllSingleSum", "all_to_all_single: in_splits add up to 1 + 2 + 2, want dimension 0 of input = 6", CALL {
        (void)pg.all_to_all_single(t.out6, t.six, {}, {1, 2, 2});
      });
  add(
      "AllToAllSingleOverlap", "all_to_all_single: output overlaps input, want separate memory",
      CALL { (void)pg.all_to_all_single(t.out6, t.out6); });
  add(
      "AllToAllSingleTimeout", "all_to_all_single: " + no_time,
      CALL { (void)pg.all_to_all_single(t.out6, t.six, {}, {}, negative_timeout()); });

  // barriers
  add(
      "BarrierTimeout", "barrier: " + no_time, CALL { (void)pg.barrier(negative_timeout()); });
  add(
      "BarrierWarning", "barrier: " + no_warning, CALL { (void)pg.barrier(negative_warning()); });
  add(
      "MonitoredBarrierTimeout", "monitored_barrier: " + no_time, CALL { pg.monitored_barrier(absl::Seconds(-1)); });

  // point-to-point
  const auto peer_text = [](int peer, const char* more) {
    return absl::StrCat("peer is ", peer, ", want 0 <= peer < size = 3", more);
  };
  const char* const any = " or any source";
  add(
      "SendBelow", "send!: " + peer_text(-1, ""), CALL { (void)pg.send(t.two, -1); });
  add(
      "SendAbove", "send!: " + peer_text(3, ""), CALL { (void)pg.send(t.two, 3); });
  add(
      "SendToAny", "send!: " + peer_text(-2, ""), CALL { (void)pg.send(t.two, CollectiveCall::kAnySource); });
  add(
      "SendToSelf", "send!: peer is RANK, which is this rank, want another member",
      CALL { (void)pg.send(t.two, pg.rank()); });
  add(
      "SendTag", "send!: tag is -1, want 0 or more", CALL { (void)pg.send(t.two, (pg.rank() + 1) % kSize, -1); });
  add(
      "SendInput", "send!: input" + null, CALL { (void)pg.send(t.null(), (pg.rank() + 1) % kSize); });
  add(
      "SendTimeout", "send!: " + no_time,
      CALL { (void)pg.send(t.two, (pg.rank() + 1) % kSize, 0, negative_timeout()); });
  add(
      "RecvBelow", "recv!: " + peer_text(-1, any), CALL { (void)pg.recv(t.out, -1); });
  add(
      "RecvAbove", "recv!: " + peer_text(3, any), CALL { (void)pg.recv(t.out, 3); });
  add(
      "RecvFromAny", "recv!: " + peer_text(-1, any), CALL { (void)pg.recv(t.out, CollectiveCall::kAnySource); });
  add(
      "RecvFromSelf", "recv!: peer is RANK, which is this rank, want another member",
      CALL { (void)pg.recv(t.out, pg.rank()); });
  add(
      "RecvTag", "recv!: tag is -5, want 0 or more", CALL { (void)pg.recv(t.out, (pg.rank() + 1) % kSize, -5); });
  add(
      "RecvOutput", "recv!: output" + strided, CALL { (void)pg.recv(t.strided(), (pg.rank() + 1) % kSize); });
  add(
      "RecvWarning", "recv!: " + no_warning,
      CALL { (void)pg.recv(t.out, (pg.rank() + 1) % kSize, 0, negative_warning()); });
  add(
      "RecvAnyTag", "recv!: tag is -1, want 0 or more", CALL { (void)pg.recv_any(t.out, -1); });
  add(
      "RecvAnyOutput", "recv!: output" + null, CALL { (void)pg.recv_any(t.null()); });
  add(
      "RecvAnyTimeout", "recv!: " + no_time, CALL { (void)pg.recv_any(t.out, 0, negative_timeout()); });

  // further groups
  add(
      "NewGroupNone", "new_group: ranks is empty, want at least one", CALL { pg.new_group(std::vector<int>()); });
  add(
      "NewGroupBelow", "new_group: ranks has -1, want 0 <= rank < size = 3", CALL {
        pg.new_group({0, -1});
      });
  add(
      "NewGroupAbove", "new_group: ranks has 3, want 0 <= rank < size = 3", CALL { pg.new_group({3}); });
  add(
      "NewGroupTwice", "new_group: ranks has 1 twice, want each once", CALL {
        pg.new_group({1, 0, 1});
      });
  add(
      "NewGroupTimeout", "new_group!: " + no_time, CALL { pg.new_group({.timeout = absl::Seconds(-1)}); });
  add(
      "NewGroupWarning", "new_group!: " + no_warning, CALL { pg.new_group({.warn_after = absl::Seconds(-1)}); });
  add(
      "SplitGroupColor", "split_group: color is -2, want 0 or more, or kNoColor = -1", CALL { pg.split_group(-2); });
  add(
      "SplitGroupTimeout", "split_group!: " + no_time, CALL { pg.split_group(0, 0, {.timeout = absl::Seconds(-1)}); });

  // state
  add(
      "SetTimeout", "set_timeout!: " + no_time, CALL { pg.set_timeout(absl::Seconds(-1)); });
  add(
      "SetWarnAfter", "set_warn_after!: " + no_warning, CALL { pg.set_warn_after(absl::Seconds(-1)); });
  add(
      "EndCoalescing", "end_coalescing!: want start_coalescing() before it", CALL { (void)pg.end_coalescing(); });
  return all;
}

#undef CALL

class BadArgumentsTest : public testing::TestWithParam<std::tuple<WorldMode, Case>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BadArgumentsTest, testing::Combine(every_world(), testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" + std::get<0>(info.param).name;
                         });

TEST_P(BadArgumentsTest, IsRefusedByName) {
  const auto& [mode, c] = GetParam();
  const Case& bad = c;
  const RunReport report =
      run_world({.world_size = kSize, .engine = mode.engine, .schedule = mode.schedule}, [&bad](RankContext& rank) {
        for (const BackendKind backend : {BackendKind::kThreaded, BackendKind::kFake}) {
          auto pg = init_process_group(rank, {.backend = backend});
          Tensors t(rank.rank());
          // Every operation but send and recv (marked with a "!") is known by the number that it would have had.
          std::string text = bad.text;
          const size_t colon = text.find(':');
          if (text[colon - 1] == '!') {
            text.erase(colon - 1, 1);
          } else {
            text.insert(colon, " seq 1");
          }
          const auto fill_in = [&text](const std::string& word, int value) {
            if (const size_t at = text.find(word); at != std::string::npos)
              text.replace(at, word.size(), std::to_string(value));
          };
          fill_in("RANK", rank.rank());
          fill_in("NEXT", (rank.rank() + 1) % kSize);
          EXPECT_THAT(
              [&] { bad.call(*pg, t); },
              ThrowsDistError(ErrorKind::kInvalidArgument, absl::StrCat("InvalidArgument: rank ", rank.rank(),
                                                                        ", group ", pg->group_name(), ", ", text)));
          EXPECT_THAT(t.out, Each(kUntouched));
          EXPECT_THAT(t.out5, Each(kUntouched));
          EXPECT_THAT(t.out6, Each(kUntouched));
          for (const std::vector<float>& part : t.parts) EXPECT_THAT(part, Each(kUntouched));
          EXPECT_EQ(pg->sequence_number(), 0);
          pg->barrier().wait();
          EXPECT_EQ(pg->sequence_number(), 1);
        }
      });
  EXPECT_TRUE(report.ok()) << report.text();
}

// What has no group, or more than one.
class BadSetupTest : public EveryWorldTest {
 protected:
  template <typename Call>
  static void refuses(Call call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kInvalidArgument, "InvalidArgument: " + text));
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, BadSetupTest, every_world(), world_name);

TEST_P(BadSetupTest, GroupsOfAWorld) {
  run(2, [](RankContext& rank) {
    const std::string who = absl::StrCat("rank ", rank.rank(), ", group ");
    refuses([&] { init_process_group(rank, {.backend = static_cast<BackendKind>(99)}); },
            who + "0: GroupOptions::backend has the unknown value 99");
    refuses(
        [&] {
          init_process_group(rank, {.make = [](RankContext&, const std::shared_ptr<const Group>&) {
                               return std::shared_ptr<ProcessGroup>();
                             }});
        },
        who + "1: GroupOptions::make gave null, want a group");
    refuses([&] { init_process_group(rank, {.timeout = absl::Seconds(-2)}); },
            who + "2, set_timeout: timeout is -2s, want 0 or more");
    refuses([&] { init_process_group(rank, {.warn_after = absl::Seconds(-2)}); },
            who + "3, set_warn_after: warn_after is -2s, want 0 or more");
    auto pg = init_process_group(rank);
    refuses([&] { (void)pg->global_rank(2); }, "group 4, global_rank: rank is 2, want 0 <= rank < size = 2");
    refuses([&] { (void)pg->global_rank(-1); }, "group 4, global_rank: rank is -1, want 0 <= rank < size = 2");
    refuses([&] { pg->new_group({.backend = static_cast<BackendKind>(99)}); },
            who + "4.1: GroupOptions::backend has the unknown value 99");
    refuses([&] { init_device_mesh(std::shared_ptr<ProcessGroup>(), {2}); },
            "rank -1, mesh [2]: its group is null, want one");
    pg->start_coalescing();
    refuses([&] { pg->start_coalescing(); },
            who + "4, start_coalescing: it was called before, want end_coalescing() between");
    pg->end_coalescing().wait();
    destroy_process_group(nullptr);
    pg->barrier().wait();
  });
}

TEST_P(BadSetupTest, BatchesOfMessages) {
  run(2, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto other = pg->new_group();
    std::vector<float> x(2);
    const int peer = 1 - rank.rank();
    const auto op = [&](P2POp::Kind kind, ProcessGroup* group, int to, int tag = 0) {
      return P2POp{.kind = kind, .tensor = x, .peer = to, .group = group, .tag = tag};
    };
    const P2POp good = op(P2POp::Kind::kSend, pg.get(), peer);
    const auto batch = [&](P2POp bad) { return [&good, bad] { (void)batch_isend_irecv({good, bad}); }; };
    refuses([&] { (void)batch_isend_irecv({op(P2POp::Kind::kSend, nullptr, peer)}); },
            "batch_isend_irecv: operation 0, send: group is null");
    refuses(batch(op(P2POp::Kind::kRecv, nullptr, peer)), "batch_isend_irecv: operation 1, recv: group is null");
    refuses(batch(op(P2POp::Kind::kRecv, other.get(), peer)),
            "batch_isend_irecv: operation 1, recv: group is 0.1, want that of the first, 0");
    refuses(batch(op(static_cast<P2POp::Kind>(9), pg.get(), peer)),
            "batch_isend_irecv: operation 1, recv: kind is 9, want kSend or kRecv");
    refuses(batch(op(P2POp::Kind::kSend, pg.get(), 2)),
            "batch_isend_irecv: operation 1, send: peer is 2, want 0 <= peer < size = 2");
    refuses(batch(op(P2POp::Kind::kSend, pg.get(), rank.rank())),
            absl::StrCat("batch_isend_irecv: operation 1, send: peer is ", rank.rank(),
                         ", which is this rank, want another member"));
    refuses(batch(op(P2POp::Kind::kRecv, pg.get(), peer, -3)),
            "batch_isend_irecv: operation 1, recv: tag is -3, want 0 or more");
    EXPECT_TRUE(batch_isend_irecv({}).empty());
    pg->barrier().wait();  // nothing of a refused batch was sent
  });
}

TEST_P(BadSetupTest, Works) {
  run(1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    refuses([&] { pg->barrier().wait(absl::Seconds(-1)); }, "wait: timeout is -1s, want 0 or more");
    std::vector<Work> none;
    refuses([&] { wait_any(none); }, "wait_any: the list is empty, want at least one work");
    wait_all(none);
    pg->start_coalescing();
    std::vector<float> x(2);
    Work part = pg->all_reduce(x);
    refuses([&] { part.wait(); },
            "rank 0, group 0, all_reduce: wait() before end_coalescing(): the call was not issued yet");
    refuses([&] { (void)pg->all_reduce(x, ReduceOp::kSum, negative_timeout()); },
            "rank 0, group 0, all_reduce seq 2: timeout is -1s, want 0 or more");
    refuses([&] { (void)pg->all_reduce(x, ReduceOp::kSum, unknown_order()); },
            "rank 0, group 0, all_reduce seq 2: order of reduction has the unknown kind 99");
    refuses([&] { pg->monitored_barrier(); },
            "rank 0, group 0, monitored_barrier seq 2: it cannot be coalesced, want end_coalescing() first");
    pg->end_coalescing().wait();
    part.wait();
    refuses([&] { (void)pg->all_reduce(TensorView::meta({2}, DType::kFloat32)); },
            "rank 0, group 0, all_reduce seq 3: a tensor is float32[2] on meta, want memory of this process; tensors "
            "without data need a fake group");
    refuses([&] { (void)flight_records(rank.world(), 1); },
            "flight_records: rank is 1, want 0 <= rank < world_size = 1");
  });
}

TEST(BadSetup, GroupsWithoutAWorld) {
  const auto refuses = [](auto call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kInvalidArgument, "InvalidArgument: " + text));
  };
  const auto making = [](int rank, int size) {
    return [rank, size] { make_fake_process_group({.rank = rank, .world_size = size}); };
  };
  refuses(making(0, 0), "make_fake_process_group: world_size is 0, want 1 <= world_size <= 2^31 - 1 = 2147483647");
  refuses(making(-1, 4), "make_fake_process_group: rank is -1, want 0 <= rank < world_size = 4");
  refuses(making(4, 4), "make_fake_process_group: rank is 4, want 0 <= rank < world_size = 4");
}

}  // namespace
}  // namespace rankloom
