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

// "RANK KIND UNWINDS TEXT", three numbers before the text.
constexpr char kBlamePayload[] = "rankloom.blame";

}  // namespace

absl::Status blamed_on(int rank, absl::Status status, bool unwinds) {
  status.SetPayload(kBlamePayload, absl::Cord(absl::StrCat(rank, " ", static_cast<int>(error_kind(status)), " ",
                                                           unwinds ? 1 : 0, " ", message_of(status))));
  return status;
}

absl::Status blamed_as(absl::Status later, const absl::Status& cause) {
  if (const auto blame = cause.GetPayload(kBlamePayload); blame.has_value()) later.SetPayload(kBlamePayload, *blame);
  return later;
}

std::optional<Blame> blame_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kBlamePayload);
  if (!payload.has_value()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(std::string(*payload), absl::MaxSplits(' ', 3));
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
