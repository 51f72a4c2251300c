#include "sim/base/dist_error.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "sim/base/fatal_told.h"
#include "sim/base/task.h"

namespace rankloom::internal {

void throw_dist_error(const absl::Status& status, const ErrorOrigin& origin) { throw DistError(status, origin); }

absl::Status cold_error(ErrorKind kind, const std::string& text) { return rankloom::make_error(kind, text); }

void fatal(std::string_view text) {
  const Task* const task = Task::current();
  const std::string rank = task != nullptr ? absl::StrCat(" (rank ", task->info.rank, ")") : "";
  std::fprintf(stderr, "rankloom: fatal%s: %.*s\n", rank.c_str(), static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  fatal_told.store(true);
  std::abort();
}

}  // namespace rankloom::internal
