#pragma once

#include <memory>
#include <string>

#include "fake_store/table_store.h"

namespace rankloom {

struct FileStoreOptions {
  Scheduler* scheduler = nullptr;  // null: no world
  // Other processes, or other FileStores of this one, write the file. Then a wait takes real time, with real timeouts, and
  // counts as able to end: nobody here knows what they will do. If false, only this object changes the file: waits are
  // in the world's time and a stuck job is a deadlock, as with a HashStore.
  bool shared = true;
};

// A store in a file, for ranks of several processes on one machine, or for values that outlive a job. Each operation is
// in the file when it returns, where all who open the file see it; the death of any process, by kill -9 too, loses
// nothing that was acknowledged. The death of the machine may: nothing is synced to the disk.
// Only on file systems with fcntl locks. The file is made if there is none, is never removed, and only grows.
// StoreError, besides what Store says: the file cannot be opened, read, locked or written (a full disk: the operation
// changed nothing), is damaged, was removed or cut, or is no store.
// A write to a file of RLIMIT_FSIZE bytes raises SIGXFSZ; a process that ignores the signal gets the StoreError.
// After fork() both processes may use the store, if nobody was in a call meanwhile.
class FileStore final : public internal::TableStore {
 public:
  // Throws DistError, as the operations do.
  static std::shared_ptr<FileStore> open(std::string path, const FileStoreOptions& options = {});

  std::string_view kind() const override { return "FileStore"; }

 private:
  FileStore(const FileStoreOptions& options, std::unique_ptr<internal::FileLog> log)
      : TableStore(options.scheduler, std::move(log), options.shared) {}
};

}  // namespace rankloom
