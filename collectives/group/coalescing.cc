#include "collectives/group/coalescing.h"

#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "world/world_state.h"

namespace rankloom::internal {

absl::Status PartWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  if (is_completed()) return status();
  if (absl::Status s = waitable(); !s.ok()) return s;
  return WorkState::of(whole_)->wait(timeout, timeout_is_default, code);
}

absl::Status PartWork::waitable() const {
  if (issued_ || is_over()) return absl::OkStatus();
  return invalid_argument("rank ", rank(), ", group ", group_, ", ", op(),
                          ": wait() before end_coalescing(): the call was not issued yet");
}

const char* PartWork::op() const { return op_row(op_).name; }

}  // namespace rankloom::internal
