// The roof over the rooms: init_process_group() and make_group_member(), which rankloom/process_group.h and
// group/group_front.h declare and which choose the backend, so that a group knows none of them.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/fake/fake_group.h"
#include "collectives/group/fault_group.h"
#include "collectives/group/group_front.h"
#include "collectives/threaded/threaded_process_group.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// Refuses what no group can be, before there is one.
void check_group_options(const RankState& rank, const GroupOptions& options, CodeSite code) {
  const auto refuse_with = [&rank, code](const auto&... text) {
    refuse({.rank = rank.rank(), .group = {}, .op = "init_process_group"}, ErrorKind::kInvalidArgument, "rank ",
           rank.rank(), ", init_process_group: ", text..., site_place(Site{.code = code}));
  };
  for (const auto& [name, duration] : {std::pair("timeout", options.timeout), {"warn_after", options.warn_after}}) {
    if (duration.value_or(absl::ZeroDuration()) < absl::ZeroDuration())
      refuse_with(name, " is ", absl::FormatDuration(*duration), ", want 0 or more");
  }
  if (options.ranks.empty()) return;
  const int world_size = rank.world().size();
  std::vector<int> sorted = options.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (const int wrong = sorted.front() < 0 ? sorted.front() : sorted.back(); wrong < 0 || wrong >= world_size)
    refuse_with("ranks holds ", wrong, ", want 0 <= rank < world_size = ", world_size);
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    refuse_with("ranks holds ", *twice, " twice, want each rank once");
  if (!std::binary_search(sorted.begin(), sorted.end(), rank.rank()))
    refuse_with("ranks holds ", ranks_text(sorted), ", want the calling rank among them");
}

std::shared_ptr<const Group> group_for(RankState& rank, const GroupOptions& options) {
  if (options.ranks.empty()) return rank.world().next_world_group(rank, options.name);
  std::vector<int> sorted = options.ranks;
  std::sort(sorted.begin(), sorted.end());
  return rank.world().next_group_of(rank, options.name.empty() ? ranks_text(sorted) : options.name, options.ranks);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(RankContext& rank, const GroupOptions& options, CodeSite code) {
  uses_memory_of(&rank.world().scheduler(), rank.rank());
  const LibraryScope library;
  internal::RankState& state = internal::state_of(rank);
  check_group_options(state, options, code);
  const std::shared_ptr<const Group> group = group_for(state, options);
  std::shared_ptr<ProcessGroup> made = internal::make_group_member(state, group, options, code);
  made->set_description(options.description.empty() ? group->description() : options.description);
  if (options.timeout.has_value()) made->set_timeout(*options.timeout, code);
  if (options.warn_after.has_value()) made->set_warn_after(*options.warn_after, code);
  if (options.order.has_value()) made->set_reduce_order(*options.order);
  return made;
}

namespace internal {

std::shared_ptr<ProcessGroup> make_group_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                const GroupOptions& options, CodeSite code) {
  const auto refuse_with = [&](std::string_view wrong) {
    refuse({.rank = rank.rank(), .group = group->name(), .op = "init_process_group"}, ErrorKind::kInvalidArgument,
           "rank ", rank.rank(), ", group ", group->name(), ": ", sv(wrong), site_place(Site{.code = code}));
  };
  if (const std::string wrong = unknown_value(options); !wrong.empty()) refuse_with(wrong);
  std::shared_ptr<ProcessGroup> member;
  if (options.make) {
    member = options.make(rank, group);
  } else {
    switch (options.backend.value_or(GroupOptions::Backend::kThreaded)) {
      case GroupOptions::Backend::kThreaded:
        if (GroupBackend* const backend = rank.world().group_backend(); backend != nullptr)
          return with_faults(rank, backend->make_member(rank, group, options));
        return with_faults(rank, make_threaded_member(rank, group, options));
      case GroupOptions::Backend::kFake:
        return with_faults(rank, make_fake_member(rank, group, options.fake.value_or(FakeOptions{})));
    }
  }
  if (member == nullptr) refuse_with("GroupOptions::make gave null, want a group");
  return with_faults(rank, std::move(member));
}

}  // namespace internal
}  // namespace rankloom
