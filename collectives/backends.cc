// The roof over the rooms: init_process_group() and make_group_member(), which group/process_group.h declares and which choose
// the backend, so that a group knows none of them.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/fake/fake_group.h"
#include "collectives/group/fault_group.h"
#include "collectives/group/group_front.h"
#include "collectives/threaded/threaded_process_group.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

std::shared_ptr<ProcessGroup> init_process_group(RankContext& rank, const GroupOptions& options) {
  internal::RankState& state = internal::state_of(rank);
  const std::shared_ptr<const Group> group = state.world().next_world_group(state, options.name);
  std::shared_ptr<ProcessGroup> made = internal::make_group_member(state, group, options);
  made->set_description(options.description.empty() ? group->description() : options.description);
  if (options.timeout.has_value()) made->set_timeout(*options.timeout);
  if (options.warn_after.has_value()) made->set_warn_after(*options.warn_after);
  if (options.order.has_value()) made->set_reduce_order(*options.order);
  return made;
}

namespace internal {

std::shared_ptr<ProcessGroup> make_group_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                const GroupOptions& options) {
  std::shared_ptr<ProcessGroup> member;
  std::string wrong = "GroupOptions::make gave null, want a group";
  if (options.make) {
    member = options.make(rank, group);
  } else {
    switch (options.backend.value_or(GroupOptions::Backend::kThreaded)) {
      case GroupOptions::Backend::kThreaded:
        return with_faults(rank, make_threaded_member(rank, group, options));
      case GroupOptions::Backend::kFake:
        return with_faults(rank, make_fake_member(rank, group, options.fake.value_or(FakeOptions{})));
    }
    wrong = absl::StrCat("GroupOptions::backend has the unknown value ", static_cast<int>(*options.backend));
  }
  if (member == nullptr) {
    refuse({.rank = rank.rank(), .group = group->name(), .op = "init_process_group"}, ErrorKind::kInvalidArgument,
           "rank ", rank.rank(), ", group ", group->name(), ": ", wrong);
  }
  return with_faults(rank, std::move(member));
}

}  // namespace internal
}  // namespace rankloom
