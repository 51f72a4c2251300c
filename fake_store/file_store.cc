#include "fake_store/file_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/task.h"

namespace rankloom {

std::shared_ptr<FileStore> FileStore::open(std::string path, const FileStoreOptions& options) {
  absl::StatusOr<std::unique_ptr<internal::FileLog>> log = internal::FileLog::open(std::move(path));
  if (!log.ok()) {
    const Task* const task = Task::current();
    throw_dist_error(make_error(ErrorKind::kStoreError, absl::StrCat("FileStore open: ", log.status().message())),
                     ErrorOrigin{.rank = task != nullptr ? task->info.rank : -1, .group = {}, .op = "store open"});
  }
  return std::shared_ptr<FileStore>(new FileStore(options, *std::move(log)));
}

}  // namespace rankloom
