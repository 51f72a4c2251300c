#include "rankloom/stream.h"

#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom {

using namespace internal;

void Stream::Event::synchronize(CodeSite code) const {
  if (state_ == nullptr) return;
  throw_if_error(state_->wait(code), {.rank = -1, .group = {}, .op = "event synchronize"});
}

}  // namespace rankloom
