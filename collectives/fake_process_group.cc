#include "collectives/fake_process_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

}  // namespace

FakeProcessGroup::FakeProcessGroup(RankContext* context, std::shared_ptr<const Group> group, const FakeOptions& options)
    : ProcessGroup(context, std::move(group)), options_(options) {}
FakeProcessGroup::FakeProcessGroup(int rank, int world_size, const FakeOptions& options)
    : ProcessGroup(rank, world_size), options_(options) {}

absl::StatusOr<Work> FakeProcessGroup::execute(CollectiveCall&& call) {
  if (options_.error_on_collective) {
    return make_error(ErrorKind::kCollectiveError,
                      absl::StrCat("FakeProcessGroup collective operation error: ", op_row(call.op).name, ", rank ",
                                   global_rank(), ", group ", group_name(), ", inputs ", shapes_text(call.inputs),
                                   ", outputs ", shapes_text(call.outputs)));
  }
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
