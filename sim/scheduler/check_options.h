#pragma once

#include "absl/status/status.h"
#include "rankloom/options.h"

namespace rankloom::internal {

// InvalidArgument for numbers that no run can have, those that only a world reads among them.
absl::Status check_options(const WorldOptions& options);

}  // namespace rankloom::internal
