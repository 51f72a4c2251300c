#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rankloom::internal {

// Makes `bytes` all that the file at `path` holds. Errors: InvalidArgument, `file "PATH": cannot be written: No space
// left on device`, whichever step failed, closing it included; what was written until then stays. The one way in which
// the library writes a file but for a FileStore's (a test holds that).
absl::Status write_file(const std::string& path, std::string_view bytes);

}  // namespace rankloom::internal
