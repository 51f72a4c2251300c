#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/fake/fake_outputs.h"
#include "collectives/ops/group_request.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#include "sim/base/text.h"

namespace rankloom {
namespace {

std::string shapes_text(const TensorList& tensors) {
  return absl::StrCat(
      "[", absl::StrJoin(tensors, ", ", [](std::string* out, const TensorView& tensor) { out->append(tensor.text()); }),
      "]");
}

// "inputs [float32[3]], outputs []".
std::string tensors_text(const CollectiveCall& call) {
  return absl::StrCat("inputs ", shapes_text(call.inputs), ", outputs ", shapes_text(call.outputs));
}

// "all_reduce", "send to 2".
std::string op_text(const CollectiveCall& call) {
  const std::string name = op_row(call.op).name;
  if (call.op == OpType::kSend) return absl::StrCat(name, " to ", call.peer);
  if (call.op != OpType::kRecv) return name;
  return call.peer == CollectiveCall::kAnySource ? name + " from any" : absl::StrCat(name, " from ", call.peer);
}

[[noreturn]] void invalid(int rank, std::string_view op, const std::string& text) {
  throw_dist_error(make_error(ErrorKind::kInvalidArgument, absl::StrCat(sv(op), ": ", text)),
                   {.rank = rank, .group = {}, .op = op});
}

[[gnu::cold, gnu::noinline]] absl::Status refusal(const CollectiveCall& call, int global_rank,
                                                  const std::string& group) {
  std::string calls = absl::StrCat(", ", tensors_text(call));
  if (call.op == OpType::kCoalesced) {
    calls.clear();
    for (const CollectiveCall& part : call.parts)
      absl::StrAppend(&calls, calls.empty() ? ", " : "; ", op_text(part), ", ", tensors_text(part));
  }
  return make_error(ErrorKind::kCollectiveError,
                    absl::StrCat("FakeProcessGroup collective operation error: ", op_text(call), ", rank ", global_rank,
                                 ", group ", group, calls));
}

}  // namespace

FakeProcessGroup::FakeProcessGroup(RankContext* context, std::shared_ptr<const Group> group, FakeOptions options)
    : ProcessGroup(context, std::move(group)), options_(std::move(options)) {
  if (options_.record != nullptr) record_group_ = options_.record->add_group(this->group(), ProcessGroup::rank());
}

FakeProcessGroup::FakeProcessGroup(std::shared_ptr<const Group> group, int rank, FakeOptions options)
    : ProcessGroup(std::move(group), rank), options_(std::move(options)) {
  if (options_.record != nullptr) record_group_ = options_.record->add_group(this->group(), rank);
}

struct FakeFactory {
  template <typename... Args>
  static std::shared_ptr<FakeProcessGroup> make(Args&&... args) {
    return std::shared_ptr<FakeProcessGroup>(new FakeProcessGroup(std::forward<Args>(args)...));
  }
};

std::shared_ptr<ProcessGroup> FakeProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                            const GroupOptions& options) {
  FakeOptions fake = options.fake.value_or(options_);
  if (context() != nullptr) return FakeFactory::make(context(), group, std::move(fake));
  return FakeFactory::make(group, group->group_rank(global_rank()), std::move(fake));
}

absl::StatusOr<Work> FakeProcessGroup::execute(CollectiveCall&& call) {
  if (options_.error_on_collective || !options_.deny.empty()) [[unlikely]] {
    if (options_.refuses(call)) return refusal(call, global_rank(), group_name());
  }
  if (options_.outputs != FakeOutputs::kShapesOnly) {
    if (absl::Status written =
            internal::write_fake_outputs(options_.outputs, call, ProcessGroup::rank(), group()->size());
        !written.ok()) {
      return written;
    }
  }
  if (call.request != nullptr) {
    call.request->seq = call.seq;
    internal::make_groups_alone(call.request, ProcessGroup::rank());
  }
  if (context() != nullptr) context()->recorder().close(call.record_id, context()->world().scheduler().now_ns(), true);
  if (options_.record != nullptr && call.request == nullptr) return options_.record->add(call, record_group_);
  return Work();
}

void FakeProcessGroup::set_rank(int rank) {
  const int size = group()->size();
  if (rank < 0 || rank >= size)
    invalid(global_rank(), "set_rank", absl::StrCat("rank is ", rank, ", want 0 <= rank < size = ", size));
  if (context() != nullptr) {
    invalid(global_rank(), "set_rank",
            absl::StrCat("group ", group_name(), " is that of rank ", context()->rank(),
                         " of a world, want make_fake_process_group()"));
  }
  if (options_.record != nullptr) {
    if (options_.record->size() > 0 || options_.record->groups().size() > 1) {
      invalid(global_rank(), "set_rank",
              absl::StrCat("the record is that of rank ", global_rank(),
                           ": it has calls or further groups, want another one"));
    }
    options_.record->set_rank(record_group_, rank);
  }
  become(rank);
}

std::shared_ptr<FakeProcessGroup> make_fake_process_group(const FakeWorldOptions& options) {
  static constexpr std::string_view kName = "make_fake_process_group";
  static constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (options.world_size < 1 || options.world_size > kMost) {
    invalid(-1, kName,
            absl::StrCat("world_size is ", options.world_size, ", want 1 <= world_size <= 2^31 - 1 = ", kMost));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    invalid(-1, kName, absl::StrCat("rank is ", options.rank, ", want 0 <= rank < world_size = ", options.world_size));
  }
  return FakeFactory::make(std::make_shared<const Group>(0, "0", static_cast<int>(options.world_size)),
                           static_cast<int>(options.rank), options.options);
}

namespace internal {

std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options) {
  return FakeFactory::make(&rank, group, options);
}

}  // namespace internal
}  // namespace rankloom
