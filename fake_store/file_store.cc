#include <utility>

#include "fake_store/file_log.h"
#include "fake_store/store_state.h"
#include "fake_store/table_store.h"
#include "rankloom/error.h"
#include "rankloom/store.h"
#include "sim/base/dist_error.h"
#include "sim/base/task.h"

namespace rankloom {

using namespace internal;

FileStore::FileStore(const FileStore::Options& options, std::unique_ptr<internal::FileLog> log)
    : Store(options.scheduler),
      table_(new internal::TableStore("FileStore", options.scheduler, internal::StoreAccess::state(*this),
                                      std::move(log), options.shared)) {}

FileStore::~FileStore() = default;

absl::StatusOr<StoreReply> FileStore::execute(const StoreCall& call) { return table_->execute(call, *this); }

std::shared_ptr<FileStore> FileStore::open(std::string path, const FileStore::Options& options) {
  absl::StatusOr<std::unique_ptr<internal::FileLog>> log = internal::FileLog::open(std::move(path));
  if (!log.ok()) {
    const Task* const task = Task::current();
    refuse({.rank = task != nullptr ? task->info.rank : -1, .group = {}, .op = "store open"}, ErrorKind::kStoreError,
           "FileStore open: ", log.status().message());
  }
  return std::shared_ptr<FileStore>(new FileStore(options, *std::move(log)));
}

}  // namespace rankloom
