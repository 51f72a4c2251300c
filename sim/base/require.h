#pragma once

#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"

namespace rankloom::internal {

// InvalidArgument if `given`, a callback or a pointer that a caller handed over, is null: where it came in, not where
// it would be used, on a task that knows nothing of the caller. `what`: the parts of "rank 1, stream comm: ", "stream
// launch: kernel".
template <typename Given, typename... Parts>
[[gnu::always_inline]] inline void require(const Given& given, const ErrorOrigin& origin, CodeSite code,
                                           const Parts&... what) {
  if (given == nullptr) [[unlikely]]
    refuse(origin, ErrorKind::kInvalidArgument, what..., " is null, want one", site_place(Site{.code = code}));
}

}  // namespace rankloom::internal
