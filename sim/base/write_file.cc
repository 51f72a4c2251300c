#include "sim/base/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/printable.h"

namespace rankloom::internal {
namespace {

// 0 or errno.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      return n == 0 ? EIO : errno;
    }
  }
  return 0;
}

int write_whole(const std::string& path, std::string_view bytes) {
  if (path.find('\0') != std::string::npos) return EINVAL;  // the system would take a part of the name
  int fd;
  do {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno;
  const int error = write_all(fd, bytes);
  // Network file systems tell of a full disk here. After EINTR the descriptor is gone, too.
  const int closed = close(fd) == 0 || errno == EINTR ? 0 : errno;
  return error != 0 ? error : closed;
}

}  // namespace

absl::Status write_file(const std::string& path, std::string_view bytes) {
  const int error = write_whole(path, bytes);
  if (error == 0) return absl::OkStatus();
  return invalid_argument("file \"", printable(path),
                          "\": cannot be written: ", std::generic_category().message(error));
}

}  // namespace rankloom::internal
