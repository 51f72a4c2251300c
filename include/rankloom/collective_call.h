#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rankloom/error.h"
#include "rankloom/tensor.h"

namespace rankloom::internal {

// A container that is almost always empty: one word then, which costs next to nothing to make, to move and to destroy.
// Every call of a group is made, moved and destroyed once, see docs/decisions/0008-hot-path.md. Reads as a const T.
template <typename T>
class Rare {
 public:
  Rare() = default;
  template <typename U>
  requires(!std::is_same_v<std::remove_cvref_t<U>, Rare> && std::is_convertible_v<U, T>) Rare(U&& value) {  // NOLINT
    *this = std::forward<U>(value);
  }
  Rare(const Rare& other) : value_(other.empty() ? nullptr : new T(*other.value_)) {}
  Rare(Rare&& other) noexcept = default;
  Rare& operator=(const Rare& other) {
    if (this != &other) *this = Rare(other);
    return *this;
  }
  Rare& operator=(Rare&& other) noexcept = default;
  ~Rare() = default;

  template <typename U>
  requires(!std::is_same_v<std::remove_cvref_t<U>, Rare>) Rare& operator=(U&& value) {
    value_ = Owned<T>(std::empty(value) ? nullptr : new T(std::forward<U>(value)));
    return *this;
  }
  Rare& operator=(std::initializer_list<typename T::value_type> values) {
    value_ = Owned<T>(values.size() == 0 ? nullptr : new T(values));
    return *this;
  }

  const T& get() const { return value_.get() != nullptr ? *value_ : nothing(); }
  T& mutable_get() {
    if (value_.get() == nullptr) value_ = Owned<T>(new T());
    return *value_;
  }
  operator const T&() const { return get(); }                                  // NOLINT
  operator std::string_view() const requires std::is_same_v<T, std::string> {  // NOLINT
    return value_.get() != nullptr ? std::string_view(*value_) : std::string_view();
  }

  bool empty() const { return value_.get() == nullptr || value_->empty(); }
  size_t size() const { return value_.get() != nullptr ? value_->size() : 0; }
  const auto* data() const { return get().data(); }
  const auto& operator[](size_t i) const { return (*value_)[i]; }
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }

  friend bool operator==(const Rare& a, const Rare& b) { return a.get() == b.get(); }

 private:
  static const T& nothing() {
    static const T* const empty = new T();
    return *empty;
  }

  Owned<T> value_;
};

}  // namespace rankloom::internal

namespace rankloom {

// How elements of several ranks become one. A value.
//   sum, product, min, max: every dtype with arithmetic (min and max: not complex); bool counts as 0 or 1, its sum is
//     `or`.
//   avg: sum divided by the group's size; floating and complex dtypes only.
//   band, bor, bxor: integers and bool only.
//   premul_sum(x): every input is multiplied by x first; floating dtypes only.
// Integer overflow wraps. NaN: min and max give NaN if any input is NaN, as PyTorch's do.
class ReduceOp {
 public:
  // In which order a reduction adds up. Floating-point results depend on it; integers do not.
  struct Order {
    enum class Kind : uint8_t {
      kRank,      // ((r0 + r1) + r2) + ...
      kReversed,  // ((rn-1 + rn-2) + ...) + r0
      kRing,      // chunk c starts at rank c + 1 and goes round, as a ring reduce-scatter does
      kTree,      // neighbours in pairs, then pairs of pairs
      kSeeded,    // a permutation from the seed, for all elements of a call the same
    };
    Kind kind = Kind::kRank;
    uint64_t seed = 0;
    // float16 and bfloat16: add up in float32 and round once at the end (the default), or round after each step.
    bool accumulate_in_float = true;

    friend constexpr bool operator==(const Order&, const Order&) = default;
  };

  enum class Kind : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

  constexpr ReduceOp() = default;
  constexpr ReduceOp(Kind kind) : kind_(kind) {}  // NOLINT: implicit, so that ReduceOp::kSum is one
  static constexpr ReduceOp premul_sum(double factor) {
    ReduceOp op(Kind::kPremulSum);
    op.factor_ = factor;
    return op;
  }

  static constexpr Kind kSum = Kind::kSum;
  static constexpr Kind kAvg = Kind::kAvg;
  static constexpr Kind kProduct = Kind::kProduct;
  static constexpr Kind kMin = Kind::kMin;
  static constexpr Kind kMax = Kind::kMax;
  static constexpr Kind kBand = Kind::kBand;
  static constexpr Kind kBor = Kind::kBor;
  static constexpr Kind kBxor = Kind::kBxor;

  constexpr Kind kind() const { return kind_; }
  constexpr double factor() const { return factor_; }  // of premul_sum, else 1
  std::string name() const;                            // "sum", "premul_sum(0.5)"

  friend constexpr bool operator==(const ReduceOp&, const ReduceOp&) = default;

 private:
  Kind kind_ = Kind::kSum;
  double factor_ = 1.0;
};

class Stream;

namespace internal {
class DeviceMark;
class IssueGate;
struct GroupRequest;
}  // namespace internal

// Every operation. Rows of the op table are in this order.
enum class OpType : uint8_t {
  kBroadcast,
  kAllReduce,
  kAllReduceCoalesced,
  kReduce,
  kAllGather,
  kAllGatherIntoTensor,
  kAllGatherIntoTensorCoalesced,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterTensor,
  kReduceScatterTensorCoalesced,
  kAllToAll,
  kAllToAllSingle,
  kBarrier,
  kMonitoredBarrier,
  kSend,
  kRecv,
  kCoalesced,   // the calls between start_coalescing and end_coalescing, as one
  kNewGroup,    // the agreement of members on new groups: one of a list of ranks, or those of a mesh
  kSplitGroup,  // the same, where each member says which group it wants to be in
};

// "all_reduce", "new_group": torch.distributed's names, as reports print them.
std::string_view op_name(OpType op);

namespace internal {
inline constexpr int kOpTypeCount = static_cast<int>(OpType::kSplitGroup) + 1;
inline constexpr int kReduceOpCount = static_cast<int>(ReduceOp::Kind::kPremulSum) + 1;
}  // namespace internal

namespace internal {

// A list of views; one is held without an allocation.
class TensorList {
 public:
  TensorList() = default;
  TensorList(const TensorView& view) : size_(1), one_(view) {}        // NOLINT: implicit
  TensorList(TensorView&& view) : size_(1), one_(std::move(view)) {}  // NOLINT: implicit
  TensorList(std::vector<TensorView> views);                          // NOLINT: implicit

  void set(const TensorView& view) {
    one_ = view;
    size_ = 1;
  }
  void set(TensorView&& view) {
    one_ = std::move(view);
    size_ = 1;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const TensorView& operator[](int i) const { return size_ == 1 ? one_ : many_[static_cast<size_t>(i)]; }
  const TensorView* begin() const { return size_ == 1 ? &one_ : many_.data(); }
  const TensorView* end() const { return begin() + size_; }
  // Empty again. The address and the shape of a single view stay until another takes its place.
  void clear() {
    size_ = 0;
    if (!many_.empty()) [[unlikely]]
      many_ = {};
  }

 private:
  int size_ = 0;  // first: with the view's data pointer in one cache line, all that a kernel reads of most lists
  TensorView one_;
  Rare<std::vector<TensorView>> many_;
};

}  // namespace internal

namespace internal {

// The library's own fields of a call on its way.
struct CallWay {
  int64_t record_id = -1;             // in the flight recorder; -1: not recorded
  GroupRequest* request = nullptr;    // kNewGroup, kSplitGroup: on the stack of a caller that waits
  std::shared_ptr<DeviceMark> ready;  // of a device's stream: when the tensors may be used; null: now
  int64_t wait_until_ns = 0;  // monitored_barrier with wait_all_ranks: when this member's time is up; 0: without
  int64_t message_seq = -1;   // of a send or recv: its number among those of this member in the group
  IssueGate* gate = nullptr;  // of a call that a stream issues, which may be let go of meanwhile; null: of all others
};

}  // namespace internal

// One member's call, as data: what the front builds, the shape rule checks, members compare and the kernel reads.
//
// The tensors of `inputs` and `outputs`, by operation (n = size of the group):
//   broadcast                        outputs[0] = the buffer; the root's is the source
//   all_reduce                       inputs[0] = outputs[0] = the buffer (in place)
//   all_reduce_coalesced             inputs = outputs = the buffers
//   reduce                           inputs[0] = outputs[0] = the buffer; only the root's is written
//   all_gather                       inputs[0]; outputs = n tensors
//   all_gather_into_tensor           inputs[0]; outputs[0] holds n inputs
//   gather                           inputs[0]; outputs = n tensors at the root, none elsewhere
//   scatter                          inputs = n tensors at the root, none elsewhere; outputs[0]
//   reduce_scatter                   inputs = n tensors; outputs[0]
//   reduce_scatter_tensor            inputs[0] holds n outputs; outputs[0]
//   ..._coalesced                    pairwise: inputs[i] with outputs[i]
//   all_to_all                       n inputs, n outputs
//   all_to_all_single                inputs[0], outputs[0]; splits count rows (elements of dimension 0), empty: equal
//                                    parts
//   send / recv                      inputs[0] / outputs[0]; peer, tag
//   barrier                          none
struct CollectiveCall {
  OpType op = OpType::kBarrier;
  ReduceOp reduce_op;
  ReduceOp::Order order;
  int root = -1;  // rank in the group; -1: the operation has none
  int peer = -1;  // send, recv: the other's rank in the group; kAnySource for recv_any
  int tag = 0;
  // Sequence number in its group: the first collective is 1; -1 for point-to-point calls until matched.
  int64_t seq = -1;
  internal::TensorList inputs;
  internal::TensorList outputs;
  internal::Rare<std::vector<int64_t>> in_splits;
  internal::Rare<std::vector<int64_t>> out_splits;
  absl::Duration timeout = absl::InfiniteDuration();
  bool timeout_is_default = true;  // from the group: does not keep a stuck job from being a deadlock
  bool owned_in_part = false;      // kCoalesced: some tensors have no owner in keep_alive
  absl::Duration warn_after = absl::InfiniteDuration();  // a wait that lasts longer is told of
  CodeSite code;
  internal::Rare<std::string> label;       // barrier: the caller's word for it
  std::shared_ptr<const void> keep_alive;  // owners of the tensors, held until the call is done
  Stream* stream = nullptr;
  internal::Rare<std::vector<CollectiveCall>> parts;  // kCoalesced
  internal::CallWay way;                              // the library's own: moved along when a call is passed on

  static constexpr int kAnySource = -2;
};

namespace internal {

// One call of all members of a group: [rank in group].
using MemberCalls = absl::Span<const CollectiveCall* const>;

// Whether the tensors live as long as the call does.
inline bool owns_tensors(const CollectiveCall& call) { return call.keep_alive != nullptr && !call.owned_in_part; }
// Where the call's tensors are: the device of the first one, its parts' included; the CPU for a call without tensors.
Device call_device(const CollectiveCall& call);
// InvalidArgument if its tensors are on more than one device.
absl::Status one_device(const CollectiveCall& call);
// Makes a call that is over like a new one, but for what ProcessGroup's front writes into each: op, seq, code, timeout,
// timeout_is_default and warn_after.
void renew(CollectiveCall* call);

}  // namespace internal

}  // namespace rankloom
