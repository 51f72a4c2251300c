#include "sim/base/blame.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// "RANK KIND TEXT".
constexpr char kBlamePayload[] = "rankloom.blame";

}  // namespace

absl::Status blamed_on(int rank, absl::Status status) {
  status.SetPayload(kBlamePayload,
                    absl::Cord(absl::StrCat(rank, " ", static_cast<int>(error_kind(status)), " ", message_of(status))));
  return status;
}

absl::Status blamed_as(absl::Status later, const absl::Status& cause) {
  if (const auto blame = cause.GetPayload(kBlamePayload); blame.has_value()) later.SetPayload(kBlamePayload, *blame);
  return later;
}

std::optional<Blame> blame_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kBlamePayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string all(*payload);
  const size_t kind_at = all.find(' ') + 1;
  const size_t text_at = all.find(' ', kind_at) + 1;
  Blame blame{.rank = -1, .status = {}};
  int kind = 0;
  if (!absl::SimpleAtoi(all.substr(0, kind_at - 1), &blame.rank) ||
      !absl::SimpleAtoi(all.substr(kind_at, text_at - 1 - kind_at), &kind))
    return std::nullopt;
  blame.status = make_error(static_cast<ErrorKind>(kind), all.substr(text_at));
  return blame;
}

}  // namespace rankloom::internal
