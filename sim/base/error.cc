#include "rankloom/error.h"

#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr char kKindPayload[] = "rankloom.kind";

struct KindRow {
  std::string_view name;
  absl::StatusCode code;
};

constexpr std::array<KindRow, 8> kKinds = {{
    {"InvalidArgument", absl::StatusCode::kInvalidArgument},
    {"Mismatch", absl::StatusCode::kInvalidArgument},
    {"RankFailed", absl::StatusCode::kAborted},
    {"Deadlock", absl::StatusCode::kAborted},
    {"Timeout", absl::StatusCode::kDeadlineExceeded},
    {"Aborted", absl::StatusCode::kAborted},
    {"StoreError", absl::StatusCode::kUnavailable},
    {"CollectiveError", absl::StatusCode::kFailedPrecondition},
}};

}  // namespace

std::string_view internal::error_kind_name(ErrorKind kind) { return kKinds[static_cast<size_t>(kind)].name; }

absl::Status make_error(ErrorKind kind, std::string_view text) {
  absl::Status status(kKinds[static_cast<size_t>(kind)].code, sv(text));
  const char digit = static_cast<char>('0' + static_cast<int>(kind));
  status.SetPayload(kKindPayload, absl::Cord(absl::string_view(&digit, 1)));
  return status;
}

ErrorKind error_kind(const absl::Status& status) {
  if (auto payload = status.GetPayload(kKindPayload); payload.has_value() && !payload->empty()) {
    return static_cast<ErrorKind>((*payload)[0] - '0');
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return ErrorKind::kInvalidArgument;
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorKind::kTimeout;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return ErrorKind::kAborted;
    default:
      return ErrorKind::kCollectiveError;
  }
}

DistError::DistError(absl::Status status, const ErrorOrigin& origin)
    : status_(std::move(status)),
      kind_(error_kind(status_)),
      rank_(origin.rank),
      group_(origin.group),
      op_(origin.op),
      seq_(origin.seq),
      what_(error_kind_name(kind_)) {
  what_ += ": ";
  what_ += message_of(status_);
}

}  // namespace rankloom
