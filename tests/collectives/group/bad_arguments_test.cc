// Every argument of every operation out of range, through the front of real and of fake groups: the text says who,
// what, have and want, nothing is written, the call takes no number, and the group goes on.

#include <array>
#include <concepts>
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
#include "rankloom/records.h"
#include "tests/world/every_world.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::Each;

constexpr int kSize = 3;
constexpr float kUntouched = -7;

// Tensors for calls. `two` is rank() + 1 everywhere, outputs are kUntouched.
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

// The text on a bad argument: one of its own, or one that names the rank or its neighbour.
class Text {
 public:
  Text(const char* text) : of_([text](int) { return std::string(text); }) {}       // NOLINT: implicit
  Text(std::string text) : of_([text = std::move(text)](int) { return text; }) {}  // NOLINT: implicit
  template <std::invocable<int> F>
  Text(F of) : of_(std::move(of)) {}  // NOLINT: implicit
  std::string of(int rank) const { return of_(rank); }

 private:
  std::function<std::string(int rank)> of_;
};

struct Row {
  const char* name;  // of the test, behind its table's
  Text text;         // the rest of what() after "OP: "
  std::function<void(ProcessGroup& pg, Tensors& t)> call;
};

// The bad calls of one operation.
struct Table {
  const char* op;
  const char* test;
  bool numbered = true;  // the operation is known by the number that the call would have had
  std::vector<Row> rows = {};
};

const std::string kNull = " has a null pointer, want the address of 2 elements of float32";
const std::string kStrided = " is not contiguous: shape [2, 3] has strides [1, 2], want [3, 1]";
const std::string kOfInts = "reduce op avg has no kernel for int32, want a floating or complex dtype";
const std::string kNoOp = "reduce op has the unknown kind 99";
const std::string kNoOrder = "order of reduction has the unknown kind 99";
const std::string kNoTime = "timeout is -1s, want 0 or more";
const std::string kNoWarning = "warn_after is -1s, want 0 or more";
const std::string kOrAny = ", or recv_any()";

std::string root_text(int root) { return absl::StrCat("root is ", root, ", want 0 <= root < size = 3"); }
std::string peer_text(const char* name, int peer) {
  return absl::StrCat(name, " is ", peer, ", want 0 <= ", name, " < size = 3");
}
// The text before the place of the call, which must be there: " [bad_arguments_test.cc:12]".
std::string placed(const std::string& what) {
  const size_t at = what.rfind(" [bad_arguments_test.cc:");
  return at != std::string::npos && what.ends_with(']') ? what.substr(0, at) : "no place in: " + what;
}
testing::Matcher<std::string> Placed(const std::string& text) { return testing::ResultOf(placed, testing::Eq(text)); }
int next(int rank) { return (rank + 1) % kSize; }

ReduceOp unknown_op() { return {static_cast<ReduceOp::Kind>(99)}; }
CallOptions unknown_order() { return {.order = ReduceOp::Order{.kind = static_cast<ReduceOp::Order::Kind>(99)}}; }
CallOptions negative_timeout() { return {.timeout = absl::Seconds(-1)}; }
CallOptions negative_warning() { return {.warn_after = absl::Seconds(-1)}; }

Table bad_broadcast() {
  return {
      .op = "broadcast",
      .test = "Broadcast",
      .rows = {
          {"Buffer", "buffer" + kNull, [](auto& pg, auto& t) { return pg.broadcast(t.null(), 0); }},
          {"Strided", "buffer" + kStrided, [](auto& pg, auto& t) { return pg.broadcast(t.strided(), 0); }},
          {"NegativeSize", "buffer's shape [2, -3] has a negative size, -3",
           [](auto& pg, auto& t) {
             return pg.broadcast(TensorView(t.out.data(), {2, -3}), 0);
           }},
          {"RootBelow", root_text(-1), [](auto& pg, auto& t) { return pg.broadcast(t.out, -1); }},
          {"RootAbove", root_text(3), [](auto& pg, auto& t) { return pg.broadcast(t.out, 3); }},
          {"DType", "buffer's dtype is 99, want 0 <= dtype < 14, a value of DType",
           [](auto& pg, auto& t) { return pg.broadcast(TensorView(t.out.data(), static_cast<DType>(99), {2}), 0); }},
          {"Timeout", kNoTime, [](auto& pg, auto& t) { return pg.broadcast(t.out, 0, negative_timeout()); }},
          {"Warning", kNoWarning, [](auto& pg, auto& t) { return pg.broadcast(t.out, 0, negative_warning()); }},
      }};
}

Table bad_all_reduce() {
  return {
      .op = "all_reduce",
      .test = "AllReduce",
      .rows = {
          {"Buffer", "buffer" + kNull, [](auto& pg, auto& t) { return pg.all_reduce(t.null()); }},
          {"Strided", "buffer" + kStrided, [](auto& pg, auto& t) { return pg.all_reduce(t.strided()); }},
          {"DType", "reduce op sum has no kernel for an unknown dtype, want any dtype but float8",
           [](auto& pg, auto& t) { return pg.all_reduce(TensorView(t.out.data(), static_cast<DType>(99), {2})); }},
          {"Op", kNoOp, [](auto& pg, auto& t) { return pg.all_reduce(t.out, unknown_op()); }},
          {"OpOfInts", kOfInts, [](auto& pg, auto& t) { return pg.all_reduce(t.ints, ReduceOp::kAvg); }},
          {"Order", kNoOrder, [](auto& pg, auto& t) { return pg.all_reduce(t.out, ReduceOp::kSum, unknown_order()); }},
          {"Timeout", kNoTime,
           [](auto& pg, auto& t) { return pg.all_reduce(t.out, ReduceOp::kSum, negative_timeout()); }},
      }};
}

Table bad_all_reduce_coalesced() {
  return {.op = "all_reduce_coalesced",
          .test = "AllReduceCoalesced",
          .rows = {
              {"None", "buffers has 0 inputs and 0 outputs, want as many of both and at least 1",
               [](auto& pg, auto&) { return pg.all_reduce_coalesced({}); }},
              {"Buffer", "buffers[1]" + kNull,
               [](auto& pg, auto& t) { return pg.all_reduce_coalesced(t.list_but(1, t.null())); }},
              {"Overlap", "buffers[2] overlaps buffers[0], want separate memory",
               [](auto& pg, auto& t) { return pg.all_reduce_coalesced(t.list_but(2, t.parts[0])); }},
              {"Op", kNoOp, [](auto& pg, auto& t) { return pg.all_reduce_coalesced(t.list(), unknown_op()); }},
              {"Order", kNoOrder,
               [](auto& pg, auto& t) { return pg.all_reduce_coalesced(t.list(), ReduceOp::kSum, unknown_order()); }},
          }};
}

Table bad_reduce() {
  return {
      .op = "reduce",
      .test = "Reduce",
      .rows = {
          {"Buffer", "buffer" + kNull, [](auto& pg, auto& t) { return pg.reduce(t.null(), 0); }},
          {"RootBelow", root_text(-2), [](auto& pg, auto& t) { return pg.reduce(t.out, -2); }},
          {"RootAbove", root_text(7), [](auto& pg, auto& t) { return pg.reduce(t.out, 7); }},
          {"Op", kNoOp, [](auto& pg, auto& t) { return pg.reduce(t.out, 0, unknown_op()); }},
          {"Order", kNoOrder, [](auto& pg, auto& t) { return pg.reduce(t.out, 0, ReduceOp::kSum, unknown_order()); }},
          {"Timeout", kNoTime,
           [](auto& pg, auto& t) { return pg.reduce(t.out, 0, ReduceOp::kSum, negative_timeout()); }},
      }};
}

Table bad_all_gather() {
  return {
      .op = "all_gather",
      .test = "AllGather",
      .rows = {
          {"Outputs", "outputs has 2 tensors, want size = 3",
           [](auto& pg, auto& t) { return pg.all_gather(t.list(2), t.two); }},
          {"OwnOutput", [](int rank) { return absl::StrCat("outputs[", rank, "] has 5 elements, want input's 2"); },
           [](auto& pg, auto& t) { return pg.all_gather(t.list_but(static_cast<size_t>(pg.rank()), t.out5), t.two); }},
          {"DType", "outputs[0] has dtype int32, want input's float32",
           [](auto& pg, auto& t) { return pg.all_gather(t.list_but(0, t.ints), t.two); }},
          {"Input", "input" + kNull, [](auto& pg, auto& t) { return pg.all_gather(t.list(), t.null()); }},
          {"Overlap", "outputs[2] overlaps outputs[0], want separate memory",
           [](auto& pg, auto& t) { return pg.all_gather(t.list_but(2, t.parts[0]), t.two); }},
          {"Timeout", kNoTime, [](auto& pg, auto& t) { return pg.all_gather(t.list(), t.two, negative_timeout()); }},
      }};
}

Table bad_all_gather_into_tensor() {
  return {.op = "all_gather_into_tensor",
          .test = "AllGatherIntoTensor",
          .rows = {
              {"Output", "output has 5 elements, want size * input = 3 * 2 = 6",
               [](auto& pg, auto& t) { return pg.all_gather_into_tensor(t.out5, t.two); }},
              {"Input", "input" + kNull, [](auto& pg, auto& t) { return pg.all_gather_into_tensor(t.out6, t.null()); }},
              {"DType", "output has dtype float32, want input's float64",
               [](auto& pg, auto& t) { return pg.all_gather_into_tensor(t.out6, t.doubles); }},
              {"Timeout", kNoTime,
               [](auto& pg, auto& t) { return pg.all_gather_into_tensor(t.out6, t.two, negative_timeout()); }},
          }};
}

Table bad_all_gather_into_tensor_coalesced() {
  return {.op = "all_gather_into_tensor_coalesced",
          .test = "AllGatherIntoTensorCoalesced",
          .rows = {
              {"Lists", "inputs has 1 tensor and outputs 2, want as many of both and at least 1",
               [](auto& pg, auto& t) {
                 return pg.all_gather_into_tensor_coalesced({t.out6, t.out}, {t.two});
               }},
              {"None", "inputs has 0 tensors and outputs 0, want as many of both and at least 1",
               [](auto& pg, auto&) { return pg.all_gather_into_tensor_coalesced({}, {}); }},
              {"Pair", "pair 1: output has 5 elements, want size * input = 3 * 2 = 6",
               [](auto& pg, auto& t) {
                 return pg.all_gather_into_tensor_coalesced({t.out6, t.out5}, {t.two, t.gives[0]});
               }},
          }};
}

Table bad_gather() {
  return {.op = "gather",
          .test = "Gather",
          .rows = {
              {"RootBelow", root_text(-1), [](auto& pg, auto& t) { return pg.gather(t.list(), t.two, -1); }},
              {"RootAbove", root_text(3), [](auto& pg, auto& t) { return pg.gather(t.list(), t.two, 3); }},
              {"Input", "input" + kNull, [](auto& pg, auto& t) { return pg.gather({}, t.null(), next(pg.rank())); }},
              {"Outputs", "outputs has 1 tensor, want size = 3",
               [](auto& pg, auto& t) { return pg.gather(t.list(1), t.two, pg.rank()); }},
              {"OutputsElsewhere",
               [](int rank) {
                 return absl::StrCat("outputs has 3 tensors, want none: only the root, ", next(rank), ", gathers");
               },
               [](auto& pg, auto& t) { return pg.gather(t.list(), t.two, next(pg.rank())); }},
              {"OutputSize", "outputs[2] has 5 elements, want input's 2",
               [](auto& pg, auto& t) { return pg.gather(t.list_but(2, t.out5), t.two, pg.rank()); }},
              {"Timeout", kNoTime,
               [](auto& pg, auto& t) { return pg.gather(t.list(), t.two, pg.rank(), negative_timeout()); }},
          }};
}

Table bad_scatter() {
  return {.op = "scatter",
          .test = "Scatter",
          .rows = {
              {"RootBelow", root_text(-1), [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs(), -1); }},
              {"RootAbove", root_text(4), [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs(), 4); }},
              {"Output", "output" + kNull, [](auto& pg, auto& t) { return pg.scatter(t.null(), {}, next(pg.rank())); }},
              {"Inputs", "inputs has 4 tensors, want size = 3",
               [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs(4), pg.rank()); }},
              {"InputsElsewhere",
               [](int rank) {
                 return absl::StrCat("inputs has 3 tensors, want none: only the root, ", next(rank), ", scatters");
               },
               [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs(), next(pg.rank())); }},
              {"InputSize", "inputs[1] has 6 elements, want output's 2",
               [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs_but(1, t.six), pg.rank()); }},
              {"Timeout", kNoTime,
               [](auto& pg, auto& t) { return pg.scatter(t.out, t.inputs(), pg.rank(), negative_timeout()); }},
          }};
}

Table bad_reduce_scatter() {
  return {
      .op = "reduce_scatter",
      .test = "ReduceScatter",
      .rows = {
          {"Inputs", "inputs has 2 tensors, want size = 3",
           [](auto& pg, auto& t) { return pg.reduce_scatter(t.out, t.inputs(2)); }},
          {"OwnInput", [](int rank) { return absl::StrCat("inputs[", rank, "] has 6 elements, want output's 2"); },
           [](auto& pg, auto& t) {
             return pg.reduce_scatter(t.out, t.inputs_but(static_cast<size_t>(pg.rank()), t.six));
           }},
          {"Output", "output" + kNull, [](auto& pg, auto& t) { return pg.reduce_scatter(t.null(), t.inputs()); }},
          {"Op", kNoOp, [](auto& pg, auto& t) { return pg.reduce_scatter(t.out, t.inputs(), unknown_op()); }},
          {"Order", kNoOrder,
           [](auto& pg, auto& t) { return pg.reduce_scatter(t.out, t.inputs(), ReduceOp::kSum, unknown_order()); }},
          {"Timeout", kNoTime,
           [](auto& pg, auto& t) { return pg.reduce_scatter(t.out, t.inputs(), ReduceOp::kSum, negative_timeout()); }},
      }};
}

Table bad_reduce_scatter_tensor() {
  return {
      .op = "reduce_scatter_tensor",
      .test = "ReduceScatterTensor",
      .rows = {
          {"Input", "input has 2 elements, want size * output = 3 * 2 = 6",
           [](auto& pg, auto& t) { return pg.reduce_scatter_tensor(t.out, t.two); }},
          {"Output", "output" + kNull, [](auto& pg, auto& t) { return pg.reduce_scatter_tensor(t.null(), t.six); }},
          {"Op", kNoOp, [](auto& pg, auto& t) { return pg.reduce_scatter_tensor(t.out, t.six, unknown_op()); }},
          {"Order", kNoOrder,
           [](auto& pg, auto& t) { return pg.reduce_scatter_tensor(t.out, t.six, ReduceOp::kSum, unknown_order()); }},
      }};
}

Table bad_reduce_scatter_tensor_coalesced() {
  return {.op = "reduce_scatter_tensor_coalesced",
          .test = "ReduceScatterTensorCoalesced",
          .rows = {
              {"Lists", "inputs has 2 tensors and outputs 1, want as many of both and at least 1",
               [](auto& pg, auto& t) {
                 return pg.reduce_scatter_tensor_coalesced({t.out}, {t.six, t.two});
               }},
              {"Pair", "pair 0: input has 2 elements, want size * output = 3 * 2 = 6",
               [](auto& pg, auto& t) { return pg.reduce_scatter_tensor_coalesced({t.out}, {t.two}); }},
              {"Op", "pair 0: " + kNoOp,
               [](auto& pg, auto& t) { return pg.reduce_scatter_tensor_coalesced({t.out}, {t.six}, unknown_op()); }},
          }};
}

Table bad_all_to_all() {
  return {.op = "all_to_all",
          .test = "AllToAll",
          .rows = {
              {"Outputs", "outputs has 2 tensors, want size = 3",
               [](auto& pg, auto& t) { return pg.all_to_all(t.list(2), t.inputs()); }},
              {"Inputs", "inputs has 4 tensors, want size = 3",
               [](auto& pg, auto& t) { return pg.all_to_all(t.list(), t.inputs(4)); }},
              {"DType", "outputs[1] has dtype int32, want inputs[0]'s float32",
               [](auto& pg, auto& t) { return pg.all_to_all(t.list_but(1, t.ints), t.inputs()); }},
              {"Tensor", "inputs[2]" + kNull,
               [](auto& pg, auto& t) { return pg.all_to_all(t.list(), t.inputs_but(2, t.null())); }},
              {"Overlap", "inputs[0] overlaps outputs[1], want separate memory",
               [](auto& pg, auto& t) { return pg.all_to_all(t.list(), t.inputs_but(0, t.parts[1])); }},
              {"Timeout", kNoTime,
               [](auto& pg, auto& t) { return pg.all_to_all(t.list(), t.inputs(), negative_timeout()); }},
          }};
}

Table bad_all_to_all_single() {
  return {.op = "all_to_all_single",
          .test = "AllToAllSingle",
          .rows = {
              {"Input", "input has 2 rows (dimension 0) and no input_splits, want a multiple of size = 3",
               [](auto& pg, auto& t) { return pg.all_to_all_single(t.out6, t.two); }},
              {"Output", "output has 5 rows (dimension 0) and no output_splits, want a multiple of size = 3",
               [](auto& pg, auto& t) { return pg.all_to_all_single(t.out5, t.six); }},
              {"InSplits", "input_splits has 2 entries, want size = 3",
               [](auto& pg, auto& t) {
                 return pg.all_to_all_single(t.out6, t.six, {}, {3, 3});
               }},
              {"OutSplits", "output_splits has 4 entries, want size = 3",
               [](auto& pg, auto& t) {
                 return pg.all_to_all_single(t.out6, t.six, {1, 1, 2, 2});
               }},
              {"NegativeSplit", "output_splits[0] is -1, want 0 or more",
               [](auto& pg, auto& t) {
                 return pg.all_to_all_single(t.out6, t.six, {-1, 3, 4});
               }},
              {"Sum", "input_splits add up to 1 + 2 + 2, want dimension 0 of input = 6",
               [](auto& pg, auto& t) {
                 return pg.all_to_all_single(t.out6, t.six, {}, {1, 2, 2});
               }},
              {"Overlap", "output overlaps input, want separate memory",
               [](auto& pg, auto& t) { return pg.all_to_all_single(t.out6, t.out6); }},
              {"Timeout", kNoTime,
               [](auto& pg, auto& t) { return pg.all_to_all_single(t.out6, t.six, {}, {}, negative_timeout()); }},
          }};
}

Table bad_barrier() {
  return {.op = "barrier",
          .test = "Barrier",
          .rows = {
              {"Timeout", kNoTime, [](auto& pg, auto&) { return pg.barrier(negative_timeout()); }},
              {"Warning", kNoWarning, [](auto& pg, auto&) { return pg.barrier(negative_warning()); }},
          }};
}

Table bad_monitored_barrier() {
  return {.op = "monitored_barrier",
          .test = "MonitoredBarrier",
          .rows = {
              {"Timeout", kNoTime, [](auto& pg, auto&) { return pg.monitored_barrier(absl::Seconds(-1)); }},
          }};
}

Table bad_send() {
  return {
      .op = "send",
      .test = "Send",
      .numbered = false,
      .rows = {
          {"Below", peer_text("destination", -1), [](auto& pg, auto& t) { return pg.send(t.two, -1); }},
          {"Above", peer_text("destination", 3), [](auto& pg, auto& t) { return pg.send(t.two, 3); }},
          {"ToAny", peer_text("destination", -2),
           [](auto& pg, auto& t) { return pg.send(t.two, CollectiveCall::kAnySource); }},
          {"Tag", "tag is -1, want 0 or more", [](auto& pg, auto& t) { return pg.send(t.two, next(pg.rank()), -1); }},
          {"Input", "input" + kNull, [](auto& pg, auto& t) { return pg.send(t.null(), next(pg.rank())); }},
          {"Timeout", kNoTime,
           [](auto& pg, auto& t) { return pg.send(t.two, next(pg.rank()), 0, negative_timeout()); }},
      }};
}

Table bad_recv() {
  return {
      .op = "recv",
      .test = "Recv",
      .numbered = false,
      .rows = {
          {"Below", peer_text("source", -1) + kOrAny, [](auto& pg, auto& t) { return pg.recv(t.out, -1); }},
          {"Above", peer_text("source", 3) + kOrAny, [](auto& pg, auto& t) { return pg.recv(t.out, 3); }},
          {"FromAny", peer_text("source", -1) + kOrAny,
           [](auto& pg, auto& t) { return pg.recv(t.out, CollectiveCall::kAnySource); }},
          {"Tag", "tag is -5, want 0 or more", [](auto& pg, auto& t) { return pg.recv(t.out, next(pg.rank()), -5); }},
          {"Output", "output" + kStrided, [](auto& pg, auto& t) { return pg.recv(t.strided(), next(pg.rank())); }},
          {"Warning", kNoWarning,
           [](auto& pg, auto& t) { return pg.recv(t.out, next(pg.rank()), 0, negative_warning()); }},
          {"AnyTag", "tag is -1, want 0 or more", [](auto& pg, auto& t) { return pg.recv_any(t.out, -1); }},
          {"AnyOutput", "output" + kNull, [](auto& pg, auto& t) { return pg.recv_any(t.null()); }},
          {"AnyTimeout", kNoTime, [](auto& pg, auto& t) { return pg.recv_any(t.out, 0, negative_timeout()); }},
      }};
}

Table bad_new_group() {
  return {.op = "new_group",
          .test = "NewGroup",
          .rows = {
              {"None", "ranks is empty, want at least one",
               [](auto& pg, auto&) { return pg.new_group(std::vector<int>()); }},
              {"Below", "ranks has -1, want 0 <= rank < size = 3",
               [](auto& pg, auto&) {
                 return pg.new_group({0, -1});
               }},
              {"Above", "ranks has 3, want 0 <= rank < size = 3", [](auto& pg, auto&) { return pg.new_group({3}); }},
              {"Twice", "ranks has 1 twice, want each once",
               [](auto& pg, auto&) {
                 return pg.new_group({1, 0, 1});
               }},
          }};
}

Table bad_new_group_options() {
  return {.op = "new_group",
          .test = "NewGroup",
          .numbered = false,
          .rows = {
              {"Timeout", kNoTime, [](auto& pg, auto&) { return pg.new_group({.timeout = absl::Seconds(-1)}); }},
              {"Warning", kNoWarning, [](auto& pg, auto&) { return pg.new_group({.warn_after = absl::Seconds(-1)}); }},
          }};
}

Table bad_split_group() {
  return {.op = "split_group",
          .test = "SplitGroup",
          .rows = {
              {"Color", "color is -2, want 0 or more, or kNoColor = -1",
               [](auto& pg, auto&) { return pg.split_group(-2); }},
          }};
}

Table bad_split_group_options() {
  return {
      .op = "split_group",
      .test = "SplitGroup",
      .numbered = false,
      .rows = {
          {"Timeout", kNoTime, [](auto& pg, auto&) { return pg.split_group(0, 0, {.timeout = absl::Seconds(-1)}); }},
      }};
}

Table bad_set_timeout() {
  return {.op = "set_timeout",
          .test = "SetTimeout",
          .numbered = false,
          .rows = {
              {"", kNoTime, [](auto& pg, auto&) { return pg.set_timeout(absl::Seconds(-1)); }},
          }};
}

Table bad_set_warn_after() {
  return {.op = "set_warn_after",
          .test = "SetWarnAfter",
          .numbered = false,
          .rows = {
              {"", kNoWarning, [](auto& pg, auto&) { return pg.set_warn_after(absl::Seconds(-1)); }},
          }};
}

Table bad_end_coalescing() {
  return {.op = "end_coalescing",
          .test = "EndCoalescing",
          .numbered = false,
          .rows = {
              {"", "want start_coalescing() before it", [](auto& pg, auto&) { return pg.end_coalescing(); }},
          }};
}

struct Case {
  Table table;  // without its rows
  Row row;

  std::string name() const { return absl::StrCat(table.test, row.name); }
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name(); }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (Table table : {bad_broadcast(),
                      bad_all_reduce(),
                      bad_all_reduce_coalesced(),
                      bad_reduce(),
                      bad_all_gather(),
                      bad_all_gather_into_tensor(),
                      bad_all_gather_into_tensor_coalesced(),
                      bad_gather(),
                      bad_scatter(),
                      bad_reduce_scatter(),
                      bad_reduce_scatter_tensor(),
                      bad_reduce_scatter_tensor_coalesced(),
                      bad_all_to_all(),
                      bad_all_to_all_single(),
                      bad_barrier(),
                      bad_monitored_barrier(),
                      bad_send(),
                      bad_recv(),
                      bad_new_group(),
                      bad_new_group_options(),
                      bad_split_group(),
                      bad_split_group_options(),
                      bad_set_timeout(),
                      bad_set_warn_after(),
                      bad_end_coalescing()}) {
    for (Row& row : std::exchange(table.rows, {})) all.push_back({table, std::move(row)});
  }
  return all;
}

class BadArgumentsTest : public testing::TestWithParam<std::tuple<WorldMode, Case>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BadArgumentsTest, testing::Combine(every_world(), testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name() + "_" + std::get<0>(info.param).name;
                         });

TEST_P(BadArgumentsTest, IsRefusedByName) {
  const auto& [mode, c] = GetParam();
  const Case& bad = c;
  const RunReport report =
      run_world({.world_size = kSize, .engine = mode.engine, .schedule = mode.schedule}, [&bad](RankContext& rank) {
        for (const GroupOptions::Backend backend : {GroupOptions::Backend::kThreaded, GroupOptions::Backend::kFake}) {
          auto pg = init_process_group(rank, {.backend = backend});
          Tensors t(rank.rank());
          const std::string who = absl::StrCat("InvalidArgument: rank ", rank.rank(), ", group ", pg->group_name(),
                                               ", ", bad.table.op, bad.table.numbered ? " seq 1: " : ": ");
          EXPECT_THAT([&] { bad.row.call(*pg, t); },
                      ThrowsDistError(ErrorKind::kInvalidArgument, Placed(who + bad.row.text.of(rank.rank()))));
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

// Refusals that belong to no group, or to more than one.
class BadSetupTest : public EveryWorldTest {
 protected:
  template <typename Call>
  static void refuses(Call call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kInvalidArgument, Placed("InvalidArgument: " + text)));
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, BadSetupTest, every_world(), world_name);

TEST_P(BadSetupTest, GroupsOfAWorld) {
  run(2, [](RankContext& rank) {
    const std::string who = absl::StrCat("rank ", rank.rank(), ", group ");
    refuses([&] { init_process_group(rank, {.backend = static_cast<GroupOptions::Backend>(99)}); },
            who + "0: GroupOptions::backend has the unknown value 99");
    refuses(
        [&] {
          init_process_group(rank, {.make = [](RankContext&, const std::shared_ptr<const Group>&) {
                               return std::shared_ptr<ProcessGroup>();
                             }});
        },
        who + "1: GroupOptions::make gave null, want a group");
    refuses([&] { init_process_group(rank, {.timeout = absl::Seconds(-2)}); },
            absl::StrCat("rank ", rank.rank(), ", init_process_group: timeout is -2s, want 0 or more"));
    refuses([&] { init_process_group(rank, {.warn_after = absl::Seconds(-2)}); },
            absl::StrCat("rank ", rank.rank(), ", init_process_group: warn_after is -2s, want 0 or more"));
    auto pg = init_process_group(rank);
    refuses([&] { (void)pg->global_rank(2); }, "group 2, global_rank: rank is 2, want 0 <= rank < size = 2");
    refuses([&] { (void)pg->global_rank(-1); }, "group 2, global_rank: rank is -1, want 0 <= rank < size = 2");
    refuses([&] { pg->new_group({.backend = static_cast<GroupOptions::Backend>(99)}); },
            who + "2.1: GroupOptions::backend has the unknown value 99");
    refuses([&] { pg->new_group({.rooted = static_cast<GroupOptions::Rooted>(99)}); },
            who + "2.2: GroupOptions::rooted has the unknown value 99");
    const ReduceOp::Order unknown{.kind = static_cast<ReduceOp::Order::Kind>(77)};
    refuses([&] { pg->new_group({.order = unknown}); }, who + "2.3: GroupOptions::order has the unknown value 77");
    const FakeOptions outputs{.outputs = static_cast<FakeOptions::Outputs>(9)};
    refuses([&] { pg->new_group({.backend = GroupOptions::Backend::kFake, .fake = outputs}); },
            who + "2.4: FakeOptions::outputs has the unknown value 9");
    refuses([&] { pg->set_reduce_order(unknown); },
            who + "2, set_reduce_order: order of reduction has the unknown kind 77");
    refuses([&] { init_device_mesh(std::shared_ptr<ProcessGroup>(), {2}); },
            "rank -1, mesh [2]: its group is null, want one");
    pg->start_coalescing(CodeSite{"some/train.cc", 12});
    refuses([&] { pg->start_coalescing(); },
            who + "2, start_coalescing: it was called before [train.cc:12], want end_coalescing() between");
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
            "batch_isend_irecv: operation 1, send: destination is 2, want 0 <= destination < size = 2");
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
    refuses([&] { (void)traces::flight_records(rank.world(), 1); },
            "flight_records: rank is 1, want 0 <= rank < world_size = 1");
  });
}

TEST(BadSetup, GroupsWithoutAWorld) {
  const auto refuses = [](auto call, const std::string& text) {
    EXPECT_THAT(call, ThrowsDistError(ErrorKind::kInvalidArgument, Placed("InvalidArgument: " + text)));
  };
  const auto making = [](int rank, int size) {
    return [rank, size] { make_fake_process_group({.rank = rank, .world_size = size}); };
  };
  refuses(making(0, 0), "make_fake_process_group: world_size is 0, want 1 <= world_size <= 2^31 - 1 = 2147483647");
  refuses(making(-1, 4), "make_fake_process_group: rank is -1, want 0 <= rank < world_size = 4");
  refuses(making(4, 4), "make_fake_process_group: rank is 4, want 0 <= rank < world_size = 4");
}

TEST(BadSetup, CallsOfAFakeGroupNameTheirLine) {
  const auto pg = make_fake_process_group({.rank = 1, .world_size = 4});
  std::vector<float> x(2);
  const std::string line = absl::StrCat("[bad_arguments_test.cc:", __LINE__ + 1, "]");
  const auto call = [&] { (void)pg->broadcast(x, 7); };
  EXPECT_THAT(call,
              ThrowsDistError(
                  ErrorKind::kInvalidArgument,
                  "InvalidArgument: rank 1, group 0, broadcast seq 1: root is 7, want 0 <= root < size = 4 " + line));
}

TEST_P(BadSetupTest, ARankOfTheWorldInASubgroup) {
  run(4, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    auto odd = pg->new_group({3, 1});
    if (odd == nullptr) return;
    std::vector<float> x(2);
    const std::string ranks = ", a rank in the group, which holds ranks 1, 3 of the world";
    refuses([&] { (void)odd->broadcast(x, 3); },
            absl::StrCat("rank ", rank.rank(), ", group 0.1, broadcast seq 1: root is 3, want 0 <= root < size = 2",
                         ranks));
    refuses([&] { (void)odd->send(x, 3); },
            absl::StrCat("rank ", rank.rank(), ", group 0.1, send: destination is 3, want 0 <= destination < size = 2",
                         ranks));
    auto turned = odd->split_group(0, -rank.rank());  // members 3 and 1, in this order
    refuses([&] { (void)turned->broadcast(x, 3); },
            absl::StrCat("rank ", rank.rank(), ", group 0.1.1:0, broadcast seq 1: root is 3, want 0 <= root < size = 2",
                         ranks));
  });
}

}  // namespace
}  // namespace rankloom
