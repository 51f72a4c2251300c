// The roof over the rooms: init_process_group() and make_group_member(), which group/process_group.h declares and which choose
// the backend, so that a group knows none of them.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group/fault_group.h"
#include "collectives/threaded/threaded_process_group.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"

namespace rankloom {

std::shared_ptr<ProcessGroup> init_process_group(RankContext& rank, const GroupOptions& options) {
  const std::shared_ptr<const Group> group = rank.world().next_world_group(rank, options.name);
  std::shared_ptr<ProcessGroup> made = internal::make_group_member(rank, group, options);
  made->set_description(options.description.empty() ? group->description() : options.description);
  if (options.timeout.has_value()) made->set_timeout(*options.timeout);
  if (options.warn_after.has_value()) made->set_warn_after(*options.warn_after);
  if (options.order.has_value()) made->set_reduce_order(*options.order);
  return made;
}

namespace internal {

std::shared_ptr<ProcessGroup> make_group_member(RankContext& rank, const std::shared_ptr<const Group>& group,
                                                const GroupOptions& options) {
  std::shared_ptr<ProcessGroup> member;
  std::string wrong = "GroupOptions::make gave null, want a group";
  if (options.make) {
    member = options.make(rank, group);
  } else {
    switch (options.backend.value_or(BackendKind::kThreaded)) {
      case BackendKind::kThreaded:
        return with_faults(rank, make_threaded_member(rank, group, options));
      case BackendKind::kFake:
        return with_faults(rank, make_fake_member(rank, group, options.fake.value_or(FakeOptions{})));
    }
    wrong = absl::StrCat("GroupOptions::backend has the unknown value ", static_cast<int>(*options.backend));
  }
  if (member == nullptr) {
    throw_dist_error(make_error(ErrorKind::kInvalidArgument,
                                absl::StrCat("rank ", rank.rank(), ", group ", group->name(), ": ", wrong)),
                     {.rank = rank.rank(), .group = group->name(), .op = "init_process_group"});
  }
  return with_faults(rank, std::move(member));
}

}  // namespace internal
}  // namespace rankloom
