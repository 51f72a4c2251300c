#include "fake_store/file_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fake_store/crc32c.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr std::string_view kMagic = "RLSTORE1";
constexpr size_t kHeaderBytes = 24;
constexpr size_t kSummedBytes = 20;

struct Header {
  uint32_t change = 0;
  uint32_t key_bytes = 0;
  uint64_t value_bytes = 0;
  uint32_t body_sum = 0;
};

template <typename T>
void put(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

template <typename T>
T take(std::string_view* in) {
  T value;
  std::memcpy(&value, in->data(), sizeof(T));
  in->remove_prefix(sizeof(T));
  return value;
}

std::string encode(const Header& header) {
  std::string bytes;
  put(&bytes, header.change);
  put(&bytes, header.key_bytes);
  put(&bytes, header.value_bytes);
  put(&bytes, header.body_sum);
  put(&bytes, crc32c(bytes));
  return bytes;
}

// Reads a file from `at` on, through a buffer; what is large goes straight to where it shall be.
class Reader {
 public:
  Reader(int fd, int64_t at, std::string* buffer) : fd_(fd), at_(at), buffer_(*buffer) { buffer_.resize(65536); }

  // 0, errno, or ENODATA if the file ends first.
  int read(char* out, size_t n) {
    while (n > 0) {
      if (buffered_.empty()) {
        if (n >= buffer_.size()) {
          const ssize_t got = pread_some(out, n);
          if (got <= 0) return got == 0 ? ENODATA : errno;
          out += got;
          n -= static_cast<size_t>(got);
          continue;
        }
        const ssize_t got = pread_some(buffer_.data(), buffer_.size());
        if (got <= 0) return got == 0 ? ENODATA : errno;
        buffered_ = {buffer_.data(), static_cast<size_t>(got)};
      }
      const size_t part = std::min(n, buffered_.size());
      std::memcpy(out, buffered_.data(), part);
      buffered_.remove_prefix(part);
      out += part;
      n -= part;
    }
    return 0;
  }

 private:
  ssize_t pread_some(char* out, size_t n) {
    ssize_t got;
    do {
      got = pread(fd_, out, n, at_);
    } while (got < 0 && errno == EINTR);
    if (got > 0) at_ += got;
    return got;
  }

  const int fd_;
  int64_t at_;
  std::string_view buffered_;
  std::string& buffer_;
};

std::string_view file_type(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a directory";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    case S_IFIFO:
      return "a pipe";
    default:
      return "no file";
  }
}

#if defined(F_OFD_SETLKW) && !defined(RANKLOOM_POSIX_ONLY)

int lock_file(int fd, FileLog::Access access) {
  struct flock whole = {};
  whole.l_type = access == FileLog::Access::kWrite ? F_WRLCK : F_RDLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLKW, &whole);
}

void unlock_file(int fd) {
  struct flock whole = {};
  whole.l_type = F_UNLCK;
  whole.l_whence = SEEK_SET;
  fcntl(fd, F_OFD_SETLK, &whole);
}

#else

int lock_file(int fd, FileLog::Access access) {
  return flock(fd, access == FileLog::Access::kWrite ? LOCK_EX : LOCK_SH);
}

void unlock_file(int fd) { flock(fd, LOCK_UN); }

#endif

// The next key of a list (Change::kBatch), with its value. nullopt: the list does not fit its length.
std::optional<std::pair<std::string_view, std::string_view>> take_item(std::string_view* list) {
  if (list->size() < sizeof(uint32_t) + sizeof(uint64_t)) return std::nullopt;
  const auto key_bytes = take<uint32_t>(list);
  const auto value_bytes = take<uint64_t>(list);
  if (key_bytes > list->size() || value_bytes > list->size() - key_bytes) return std::nullopt;
  const std::pair item(list->substr(0, key_bytes), list->substr(key_bytes, value_bytes));
  list->remove_prefix(key_bytes + value_bytes);
  return item;
}

bool fits_its_length(std::string_view list) {
  while (!list.empty()) {
    if (!take_item(&list).has_value()) return false;
  }
  return true;
}

// `create`: O_CREAT, or 0.
int open_file(const std::string& path, int create) {
  int fd;
  do {
    fd = ::open(path.c_str(), O_RDWR | create | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLog>> FileLog::open(std::string path) {
  std::unique_ptr<FileLog> log(new FileLog(std::move(path)));
  if (log->path_.find('\0') != std::string::npos) return log->file_error("has a NUL in its name");
  log->fd_ = open_file(log->path_, O_CREAT);
  if (log->fd_ < 0) return log->system_error("cannot be opened to read and write", errno);
  struct stat info;
  if (fstat(log->fd_, &info) != 0) return log->system_error("cannot be examined", errno);
  if (!S_ISREG(info.st_mode)) {
    return log->file_error(absl::StrCat("have ", sv(file_type(info.st_mode)), ", want a regular file"));
  }
  if (info.st_nlink == 0) return log->file_error("was removed");
  return log;
}

FileLog::FileLog(std::string path) : path_(std::move(path)), pid_(getpid()) {}

FileLog::~FileLog() {
  if (fd_ >= 0) close(fd_);
}

absl::Status FileLog::file_error(std::string_view what) const {
  return make_error(ErrorKind::kStoreError, "file ", quote(path_), ": ", sv(what));
}

absl::Status FileLog::system_error(std::string_view what, int error) const {
  return file_error(absl::StrCat(sv(what), ": ", std::generic_category().message(error)));
}

absl::Status FileLog::reopen_after_fork() {
  // An open file description, and so its locks, is shared with the parent: a child needs one of its own.
  struct stat before;
  struct stat now;
  if (fstat(fd_, &before) != 0) return system_error("cannot be examined", errno);
  const int fd = open_file(path_, /*create=*/0);
  if (fd < 0 && errno == ENOENT) return file_error("was removed before this process, made by fork, used it");
  if (fd < 0) return system_error("cannot be opened again after fork", errno);
  if (fstat(fd, &now) != 0 || before.st_dev != now.st_dev || before.st_ino != now.st_ino) {
    close(fd);
    return file_error("was replaced before this process, made by fork, used it");
  }
  close(fd_.exchange(fd));
  pid_ = getpid();
  return absl::OkStatus();
}

absl::Status FileLog::lock(Access access) {
  while (lock_file(fd_, access) != 0) {
    if (errno != EINTR) return system_error("cannot be locked", errno);
  }
  return absl::OkStatus();
}

void FileLog::end() { unlock_file(fd_); }  // cannot fail: the descriptor is good

absl::Status FileLog::begin(Access access, KeyTable* table) {
  if (pid_ != getpid()) {
    if (absl::Status s = reopen_after_fork(); !s.ok()) return s;
  }
  if (absl::Status s = lock(access); !s.ok()) return s;
  absl::Status read = read_new(table);
  if (!read.ok()) end();
  return read;
}

bool FileLog::changed() const {
  struct stat info;
  return fstat(fd_, &info) != 0 || info.st_size != end_.load(std::memory_order_relaxed) || info.st_nlink == 0;
}

absl::Status FileLog::refresh(KeyTable* table) {
  // A file that ends where we stopped has nothing new: a writer makes it longer before it says that it wrote.
  if (!changed()) return absl::OkStatus();
  if (absl::Status s = begin(Access::kRead, table); !s.ok()) return s;
  end();
  return absl::OkStatus();
}

absl::Status FileLog::read_new(KeyTable* table) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return system_error("cannot be examined", errno);
  if (info.st_nlink == 0) return file_error("was removed while in use");
  size_ = info.st_size;
  int64_t at = end_.load(std::memory_order_relaxed);
  if (size_ < at)
    return file_error(absl::StrCat("have ", size_, " bytes, want at least the ", at, " read before: it was cut"));
  if (size_ == at) return absl::OkStatus();

  Reader reader(fd_, at, &buffer_);
  const auto cannot_read = [&](int error) { return system_error(absl::StrCat("cannot be read at byte ", at), error); };
  if (at == 0) {
    std::string magic(static_cast<size_t>(std::min<int64_t>(size_, kMagic.size())), '\0');
    if (int error = reader.read(magic.data(), magic.size()); error != 0) return cannot_read(error);
    if (!kMagic.starts_with(magic)) {
      return file_error(absl::StrCat("is no rankloom store: starts with ", quote(magic), ", want ", quote(kMagic)));
    }
    if (magic.size() < kMagic.size()) return absl::OkStatus();  // torn
    at = kMagic.size();
    end_.store(at, std::memory_order_relaxed);
  }
  while (size_ - at >= static_cast<int64_t>(kHeaderBytes)) {
    char bytes[kHeaderBytes];
    if (int error = reader.read(bytes, kHeaderBytes); error != 0) return cannot_read(error);
    std::string_view rest(bytes, kHeaderBytes);
    const uint32_t sum = crc32c(rest.substr(0, kSummedBytes));
    Header header;
    header.change = take<uint32_t>(&rest);
    header.key_bytes = take<uint32_t>(&rest);
    header.value_bytes = take<uint64_t>(&rest);
    header.body_sum = take<uint32_t>(&rest);
    if (const uint32_t have = take<uint32_t>(&rest); have != sum) {
      return file_error(absl::StrFormat("is damaged: the record at byte %d has a header with checksum %08x, want %08x",
                                        at, have, sum));
    }
    const auto left = static_cast<uint64_t>(size_ - at) - kHeaderBytes;
    if (header.key_bytes > left || header.value_bytes > left - header.key_bytes) break;  // torn
    std::string key(header.key_bytes, '\0');
    std::string value(header.value_bytes, '\0');
    if (int error = reader.read(key.data(), key.size()); error != 0) return cannot_read(error);
    if (int error = reader.read(value.data(), value.size()); error != 0) return cannot_read(error);
    if (const uint32_t want = crc32c(value, crc32c(key)); want != header.body_sum) {
      return file_error(
          absl::StrFormat("is damaged: the record at byte %d has checksum %08x, want %08x", at, header.body_sum, want));
    }
    const auto record_bytes = static_cast<int64_t>(kHeaderBytes + header.key_bytes + header.value_bytes);
    if (absl::Status s = apply(static_cast<Change>(header.change), std::move(key), std::move(value), at, table);
        !s.ok()) {
      return s;
    }
    at += record_bytes;
    end_.store(at, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

absl::Status FileLog::apply(Change change, std::string&& key, std::string&& value, int64_t at, KeyTable* table) {
  switch (change) {
    case Change::kSet:
      table->set(key, std::move(value));
      return absl::OkStatus();
    case Change::kAppend:
      table->append(key, value);
      return absl::OkStatus();
    case Change::kErase:
      table->erase(key);
      return absl::OkStatus();
    case Change::kPush:
      table->push(key, value);
      return absl::OkStatus();
    case Change::kPop:
      table->pop(key);
      return absl::OkStatus();
    case Change::kBatch:
      // Looked through twice: a list of them would take more than the file.
      if (!fits_its_length(value))
        return file_error(absl::StrCat("is damaged: the list of keys at byte ", at, " does not fit its length"));
      for (std::string_view rest = value; !rest.empty();) {
        const auto [item_key, item_value] = *take_item(&rest);
        table->set(item_key, item_value);
      }
      return absl::OkStatus();
  }
  return file_error(absl::StrCat("the record at byte ", at, " has kind ", static_cast<uint32_t>(change),
                                 ", want 1 to 6: written by a newer rankloom?"));
}

absl::Status FileLog::check_key(std::string_view key) const {
  if (key.size() <= std::numeric_limits<uint32_t>::max()) return absl::OkStatus();
  return file_error(absl::StrCat("have a key of ", key.size(), " bytes, want less than 4 GiB"));
}

absl::StatusOr<std::string> FileLog::encode_batch(absl::Span<const std::string_view> keys,
                                                  absl::Span<const std::string_view> values) const {
  std::string bytes;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (absl::Status s = check_key(keys[i]); !s.ok()) return s;
    put(&bytes, static_cast<uint32_t>(keys[i].size()));
    put(&bytes, uint64_t{values[i].size()});
    bytes.append(keys[i]);
    bytes.append(values[i]);
  }
  return bytes;
}

absl::Status FileLog::append(Change change, std::string_view key, std::string_view value) {
  if (absl::Status s = check_key(key); !s.ok()) return s;
  const int64_t at = end_.load(std::memory_order_relaxed);
  if (size_ > at && ftruncate(fd_, at) != 0) return system_error(absl::StrCat("cannot be cut at byte ", at), errno);
  const std::string header = encode({.change = static_cast<uint32_t>(change),
                                     .key_bytes = static_cast<uint32_t>(key.size()),
                                     .value_bytes = value.size(),
                                     .body_sum = crc32c(value, crc32c(key))});
  const std::string_view parts[] = {at == 0 ? kMagic : "", header, key, value};
  int64_t total = 0;
  for (std::string_view part : parts) total += static_cast<int64_t>(part.size());

  int64_t written = 0;
  while (written < total) {
    iovec left[4];
    int count = 0;
    auto skip = static_cast<size_t>(written);
    for (std::string_view part : parts) {
      const size_t done = std::min(skip, part.size());
      skip -= done;
      if (done < part.size()) left[count++] = {const_cast<char*>(part.data()) + done, part.size() - done};
    }
    const ssize_t n = pwritev(fd_, left, count, at + written);
    if (n > 0) {
      written += n;
    } else if (n == 0 || errno != EINTR) {
      const int error = n == 0 ? EIO : errno;
      // If this fails too, what was written is a torn record, which the next writer cuts off.
      size_ = ftruncate(fd_, at) == 0 ? at : at + written;
      return system_error(absl::StrCat("cannot be written, ", total, " bytes at byte ", at), error);
    }
  }
  end_.store(at + total, std::memory_order_relaxed);
  size_ = at + total;
  return absl::OkStatus();
}

}  // namespace rankloom::internal
