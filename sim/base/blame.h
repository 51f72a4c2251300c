#pragma once

#include <optional>

#include "absl/status/status.h"

namespace rankloom::internal {

// What one rank did wrong and others fail with, too.
struct Blame {
  int rank;             // in the world
  absl::Status status;  // its kind and text
};

// `status`, which fails whoever waits, is the doing of `rank`.
absl::Status blamed_on(int rank, absl::Status status);
// `later` is a consequence of `cause`: whoever is to blame for that is to blame for this.
absl::Status blamed_as(absl::Status later, const absl::Status& cause);
// Null: nobody is.
std::optional<Blame> blame_of(const absl::Status& status);

}  // namespace rankloom::internal
