#include "sim/base/blame.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rankloom/error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Of kKindPayload: "RANK KIND UNWINDS TEXT", three numbers before the text; empty: nobody is to blame.
std::string blame_text(const absl::Status& status) {
  const auto payload = status.GetPayload(kKindPayload);
  if (!payload.has_value()) return "";
  const std::pair<std::string, std::string> parts = absl::StrSplit(std::string(*payload), absl::MaxSplits(' ', 1));
  return parts.second;
}

absl::Status with_blame(absl::Status status, const std::string& blame) {
  status.SetPayload(kKindPayload, absl::Cord(absl::StrCat(sv(error_kind_name(error_kind(status))), " ", blame)));
  return status;
}

}  // namespace

absl::Status blamed_on(int rank, absl::Status status, bool unwinds) {
  const std::string blame =
      absl::StrCat(rank, " ", static_cast<int>(error_kind(status)), " ", unwinds ? 1 : 0, " ", message_of(status));
  return with_blame(std::move(status), blame);
}

absl::Status blamed_as(absl::Status later, const absl::Status& cause) {
  const std::string blame = blame_text(cause);
  return blame.empty() ? later : with_blame(std::move(later), blame);
}

std::optional<Blame> blame_of(const absl::Status& status) {
  const std::string text = blame_text(status);
  if (text.empty()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  Blame blame{.rank = -1, .status = {}};
  int kind = 0;
  int unwinds = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &blame.rank) || !absl::SimpleAtoi(parts[1], &kind) ||
      !absl::SimpleAtoi(parts[2], &unwinds))
    return std::nullopt;
  blame.unwinds = unwinds != 0;
  blame.status = make_error(static_cast<ErrorKind>(kind), parts[3]);
  return blame;
}

}  // namespace rankloom::internal
