#include "collectives/fake_process_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/new_group.h"
#include "collectives/op_table.h"
#include "sim/dist_error.h"
#include "world/world.h"

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

}  // namespace

FakeProcessGroup::FakeProcessGroup(RankContext* context, std::shared_ptr<const Group> group, const FakeOptions& options)
    : ProcessGroup(context, std::move(group)), options_(options) {}
FakeProcessGroup::FakeProcessGroup(int rank, int world_size, const FakeOptions& options)
    : ProcessGroup(rank, world_size), options_(options) {}

FakeProcessGroup::FakeProcessGroup(std::shared_ptr<const Group> group, int rank, const FakeOptions& options)
    : ProcessGroup(std::move(group), rank), options_(options) {}

std::shared_ptr<ProcessGroup> FakeProcessGroup::make_member(const std::shared_ptr<const Group>& group,
                                                            const GroupOptions&) {
  if (context() != nullptr) return std::shared_ptr<ProcessGroup>(new FakeProcessGroup(context(), group, options_));
  return std::shared_ptr<ProcessGroup>(new FakeProcessGroup(group, group->group_rank(global_rank()), options_));
}

absl::StatusOr<Work> FakeProcessGroup::execute(CollectiveCall&& call) {
  if (options_.error_on_collective) {
    std::string calls = absl::StrCat(", ", tensors_text(call));
    if (call.op == OpType::kCoalesced) {
      calls.clear();
      for (const CollectiveCall& part : call.parts)
        absl::StrAppend(&calls, calls.empty() ? ", " : "; ", op_text(part), ", ", tensors_text(part));
    }
    return make_error(ErrorKind::kCollectiveError,
                      absl::StrCat("FakeProcessGroup collective operation error: ", op_text(call), ", rank ",
                                   global_rank(), ", group ", group_name(), calls));
  }
  if (call.request != nullptr) internal::make_groups_alone(call.request, ProcessGroup::rank());
  if (context() != nullptr) context()->recorder().close(call.record_id, context()->world().scheduler().now_ns(), true);
  return Work();
}

std::shared_ptr<ProcessGroup> make_fake_process_group(const FakeWorldOptions& options) {
  return std::shared_ptr<ProcessGroup>(new FakeProcessGroup(options.rank, options.world_size, options.options));
}

struct FakeFactory {
  static std::shared_ptr<ProcessGroup> make(RankContext& rank, const std::shared_ptr<const Group>& group,
                                            const FakeOptions& options) {
    return std::shared_ptr<ProcessGroup>(new FakeProcessGroup(&rank, group, options));
  }
};

namespace internal {

std::shared_ptr<ProcessGroup> make_fake_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                               const FakeOptions& options) {
  return FakeFactory::make(rank, group, options);
}

}  // namespace internal
}  // namespace rankloom
