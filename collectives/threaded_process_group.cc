#include "collectives/threaded_process_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/op_table.h"
#include "sim/dist_error.h"
#include "sim/scheduler.h"
#include "sim/text.h"

namespace rankloom {
namespace {

// The first tensor that is not in this process's memory, or null.
const TensorView* foreign_tensor(const CollectiveCall& call) {
  for (const TensorList* list : {&call.inputs, &call.outputs}) {
    for (const TensorView& tensor : *list) {
      if (tensor.device().kind != Device::Kind::kCpu) return &tensor;
    }
  }
  return nullptr;
}

}  // namespace

ThreadedProcessGroup::ThreadedProcessGroup(RankContext* context, std::shared_ptr<Rendezvous> rendezvous, std::shared_ptr<const Group> group)
    : ProcessGroup(context, std::move(group)), rendezvous_(std::move(rendezvous)) {}

void ThreadedProcessGroup::abort(std::string_view reason) {
  rendezvous_->fail(make_error(ErrorKind::kAborted, absl::StrCat("rank ", global_rank(), " aborted group ", group()->name(), ": ", sv(reason))));
}

absl::StatusOr<Work> ThreadedProcessGroup::execute(CollectiveCall call) {
  if (const TensorView* const tensor = foreign_tensor(call); tensor != nullptr) [[unlikely]] {
    return make_error(ErrorKind::kInvalidArgument,
                      absl::StrCat(who(call), "a tensor is ", tensor->text(), ", want memory of this process; tensors without data need a fake group"));
  }
  auto state = std::make_shared<CallState>(rendezvous_, context(), ProcessGroup::rank(), std::move(call));
  Work work(state);
  if (absl::Status filed = rendezvous_->file(state); !filed.ok()) [[unlikely]] {
    state->complete(filed);  // so that dropping the handle means nothing
    return filed;
  }
  return work;
}

namespace internal {

std::shared_ptr<ProcessGroup> make_threaded_member(RankContext& rank, const std::shared_ptr<const Group>& group, std::string_view instance) {
  World& world = rank.world();
  const std::string key = absl::StrCat("rendezvous of group ", group->name(), sv(instance));
  std::shared_ptr<void> shared = world.shared(key, [&]() -> std::shared_ptr<void> {
    auto made = std::make_shared<Rendezvous>(&world, group);
    // A work may have no waiter but a callback: an abort completes it.
    world.on_abort([weak = std::weak_ptr<Rendezvous>(made)](const absl::Status& cause) {
      if (const std::shared_ptr<Rendezvous> rendezvous = weak.lock(); rendezvous != nullptr) rendezvous->fail(cause);
    });
    return made;
  });
  return std::make_shared<ThreadedProcessGroup>(&rank, std::static_pointer_cast<Rendezvous>(std::move(shared)), group);
}

}  // namespace internal
}  // namespace rankloom
