#pragma once

#include <optional>

#include "absl/status/status.h"

namespace rankloom::internal {

// A rank, and the error by which its doing fails other ranks, too.
struct Blame {
  int rank;              // in the world
  absl::Status status;   // its kind and text
  bool unwinds = false;  // an exception that may end the rank is on its way, and tells more
};

// `status`, which fails the waiting ranks, is the doing of `rank`.
absl::Status blamed_on(int rank, absl::Status status, bool unwinds = false);
// `later` is a consequence of `cause`: the rank to blame for `cause` is to blame for `later`.
absl::Status blamed_as(absl::Status later, const absl::Status& cause);
// Null: nobody is.
std::optional<Blame> blame_of(const absl::Status& status);

}  // namespace rankloom::internal
