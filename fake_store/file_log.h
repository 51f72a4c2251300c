#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fake_store/key_table.h"

namespace rankloom::internal {

// The file of a FileStore: a list of changes, which each process replays into a table of its own. It only grows.
//
// Format, version 1, little-endian: "RLSTORE1", then records of
//   uint32 change, uint32 key bytes, uint64 value bytes, uint32 CRC-32C of key and value, uint32 CRC-32C of the 20
//   bytes before, key, value.
// A record that ends behind the end of the file was torn: its writer died. Readers ignore such a record, and the next
// writer cuts it off. Anything else that does not fit is damage, which nothing here repairs: every operation then fails
// and the file stays as it is. The header has a sum of its own because a wrong length would make the rest of a damaged
// file look like a torn record.
//
// Locks: fcntl's open file description locks (F_OFD_SETLKW, in POSIX since 2024) on the whole file, shared to read and
// exclusive to write. They exclude threads of one process too, and the kernel drops them when a process dies. Systems
// without them have flock()'s, of which the same is true on a local disk.
// Writes go to the page cache and are not synced: what was acknowledged survives the death of every process, but not
// the machine's.
// Thread-safety: guarded by the mutex of the table, except changed().
class FileLog {
 public:
  // Values are part of the format.
  enum class Change : uint32_t {
    kSet = 1,
    kAppend = 2,
    kErase = 3,
    kPush = 4,
    kPop = 5,
    kBatch = 6,  // no key; the value is a list of uint32 key bytes, uint64 value bytes, key, value: all set at once
  };
  enum class Access { kRead, kWrite };

  // Opens the file, or makes it.
  static absl::StatusOr<std::unique_ptr<FileLog>> open(std::string path);
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  // Locks the file and brings `table` up to date. After a failure nothing is locked.
  absl::Status begin(Access access, KeyTable* table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu);
  void end();

  // begin() and end(); no lock if there is nothing new.
  absl::Status refresh(KeyTable* table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu);

  // Writes one change, between begin(kWrite) and end(). If it fails the file is as before.
  absl::Status append(Change change, std::string_view key, std::string_view value);

  // Whether others may have written since the table was brought up to date. Any thread may ask.
  bool changed() const;

  // The value of a record of kind kBatch.
  absl::StatusOr<std::string> encode_batch(absl::Span<const std::string_view> keys,
                                           absl::Span<const std::string_view> values) const;

 private:
  explicit FileLog(std::string path);

  absl::Status file_error(std::string_view what) const;  // `file "...": <what>`
  absl::Status check_key(std::string_view key) const;
  absl::Status system_error(std::string_view what, int error) const;  // the same, with the error's text
  absl::Status lock(Access access);
  absl::Status reopen_after_fork();
  // All records between end_ and the end of the file.
  absl::Status read_new(KeyTable* table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu);
  absl::Status apply(Change change, std::string&& key, std::string&& value, int64_t at, KeyTable* table)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu);

  const std::string path_;
  std::atomic<int> fd_{-1};
  pid_t pid_;                    // of the process that opened fd_
  std::atomic<int64_t> end_{0};  // of the last whole record read or written
  int64_t size_ = 0;             // of the file, as of begin()
  std::string buffer_;           // to read through; off the stack, since a fiber's is small
};

}  // namespace rankloom::internal
