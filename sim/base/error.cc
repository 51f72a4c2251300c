#include "rankloom/error.h"

#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

struct KindRow {
  std::string_view name;
  absl::StatusCode code;
};

constexpr std::string_view kNoKind = "?";

// The compiler warns of a kind that is missing here.
constexpr KindRow kind_row(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return {"InvalidArgument", absl::StatusCode::kInvalidArgument};
    case ErrorKind::kMismatch:
      return {"Mismatch", absl::StatusCode::kInvalidArgument};
    case ErrorKind::kRankFailed:
      return {"RankFailed", absl::StatusCode::kAborted};
    case ErrorKind::kDeadlock:
      return {"Deadlock", absl::StatusCode::kAborted};
    case ErrorKind::kTimeout:
      return {"Timeout", absl::StatusCode::kDeadlineExceeded};
    case ErrorKind::kAborted:
      return {"Aborted", absl::StatusCode::kAborted};
    case ErrorKind::kStoreError:
      return {"StoreError", absl::StatusCode::kUnavailable};
    case ErrorKind::kCollectiveError:
      return {"CollectiveError", absl::StatusCode::kFailedPrecondition};
  }
  return {kNoKind, absl::StatusCode::kUnknown};
}

}  // namespace

std::string_view internal::error_kind_name(ErrorKind kind) { return kind_row(kind).name; }

absl::Status make_error(ErrorKind kind, std::string_view text) {
  absl::Status status(kind_row(kind).code, sv(text));
  status.SetPayload(kKindPayload, absl::Cord(sv(kind_row(kind).name)));  // which a printed status shows
  return status;
}

ErrorKind error_kind(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kKindPayload); payload.has_value()) {
    for (ErrorKind kind{}; kind_row(kind).name != kNoKind; kind = static_cast<ErrorKind>(static_cast<int>(kind) + 1)) {
      const std::string_view name = kind_row(kind).name;
      if (*payload == sv(name) || payload->StartsWith(absl::StrCat(sv(name), " "))) return kind;
    }
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
