#include "rankloom/stream.h"

#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

void Stream::Event::synchronize(CodeSite code) const {
  if (state_ == nullptr) return;
  const absl::Status status = state_->wait(code);
  RankState::hears(status);
  throw_if_error(status, {.rank = -1, .group = {}, .op = "event synchronize"});
}

}  // namespace rankloom
