#include "collectives/work/withdrawal.h"

#include <exception>

#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {

Withdrawal Withdrawal::of_wait(const absl::Status& waited, int rank) {
  if (error_kind(waited) == ErrorKind::kTimeout) return failure(blamed_on(rank, waited));
  return {Why::kAbort, waited};
}

Withdrawal withdrawal_of_drop(RankState& context, const std::string& who, const std::string& what, const char* lost,
                              const Site& site) {
  if (context.world().scheduler().aborted())
    return {Withdrawal::Why::kAbort, context.world().scheduler().abort_cause()};
  if (context.unwinding()) {
    return {Withdrawal::Why::kUnwinding,
            blamed_on(context.rank(),
                      make_error(ErrorKind::kRankFailed, "group ", sv(site.group), ": rank ", context.rank(),
                                 " dropped its ", what, " while an exception unwound, so ", lost,
                                 ", want wait() or keep_alive, or the rank to end", site_place(site)))};
  }
  return Withdrawal::failure(blamed_on(
      context.rank(), make_error(ErrorKind::kRankFailed, who,
                                 ": the work was dropped unfinished, want wait() or keep_alive", site_place(site))));
}

bool Unwound::look() {
  if (caught || task != Task::current_serial() || std::uncaught_exceptions() > 0) return false;
  caught = true;
  return true;
}

}  // namespace rankloom::internal
