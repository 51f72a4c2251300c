#include "sim/base/dist_error.h"

#include <cstdio>
#include <cstdlib>

#include "sim/base/task.h"

namespace rankloom::internal {

void throw_dist_error(const absl::Status& status, const ErrorOrigin& origin) { throw DistError(status, origin); }

absl::Status cold_error(ErrorKind kind, const std::string& text) { return rankloom::make_error(kind, text); }

void fatal(std::string_view text) {
  const Task* task = Task::current();
  std::fprintf(stderr, "rankloom: fatal (rank %d): %.*s\n", task != nullptr ? task->info.rank : -1,
               static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace rankloom::internal
