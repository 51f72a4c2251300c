#include "sim/faults/fault_injector.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/random.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/faults/injected_hang.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

using Kind = Fault::Kind;
using When = Fault::When;

// Whether there is a tensor whose bit can be flipped then.
bool can_corrupt(When when, const FaultInjector::Call& call) {
  return !call.group.empty() && (when == When::kAfter ? call.writes : call.reads);
}

bool suits(Kind kind, When when, const FaultInjector::Call& call) {
  switch (kind) {
    case Kind::kDrop:
      return call.sends;
    case Kind::kDuplicate:
      return call.sends && call.reads;  // of which a copy is made
    case Kind::kCorrupt:
      return can_corrupt(when, call);
    case Kind::kAbort:
      return !call.group.empty();
    case Kind::kStoreTimeout:
      return call.group.empty();
    case Kind::kCrash:
    case Kind::kHang:
    case Kind::kDelay:
      return true;
  }
  return true;
}

bool fits(const Fault& fault, const FaultInjector::Call& call) {
  return (fault.rank < 0 || fault.rank == call.rank) && (fault.group.empty() || fault.group == call.group) &&
         (fault.op.empty() || fault.op == call.op || fault.op == call.base_op) &&
         (fault.seq < 0 || fault.seq == call.seq);
}

// Which calls can, for one that cannot.
std::string_view wanted(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kDrop:
      return "a send";
    case Kind::kDuplicate:
      return "a send of something in memory of the host";
    case Kind::kCorrupt:
      return fault.when == When::kAfter ? "a call of a group that writes to memory of the host"
                                        : "a call of a group that reads memory of the host";
    case Kind::kAbort:
      return "a call of a group";
    case Kind::kStoreTimeout:
      return "a call of a store";
    case Kind::kCrash:
    case Kind::kHang:
    case Kind::kDelay:
      return "any call";
  }
  return "any call";
}

// The fault, of this one call.
Fault exactly(Fault fault, int rank, int64_t nth) {
  fault.rank = rank;
  fault.group.clear();
  fault.op.clear();
  fault.seq = -1;
  fault.nth = nth;
  fault.maybe = false;
  return fault;
}

}  // namespace

FaultInjector::FaultInjector(FaultPlan plan, Scheduler* scheduler, int ranks,
                             std::function<void(int, const std::string&)> crash)
    : plan_(std::move(plan)),
      scheduler_(scheduler),
      crash_(std::move(crash)),
      mu_(scheduler, LockLevel::kFaults),
      calls_(static_cast<size_t>(ranks)),
      matched_(plan_.faults().size(), {.calls = std::vector<int64_t>(static_cast<size_t>(ranks))}) {}

std::vector<Fault> FaultInjector::at(const Call& call) {
  if (plan_.empty() || scheduler_->aborted()) return {};
  std::vector<Fault> due;
  const size_t rank = static_cast<size_t>(call.rank);
  int64_t nth = 0;
  {
    RankMutexLock lock(&mu_);
    nth = ++calls_[rank];
    if (!ops_.contains(call.op)) ops_.emplace(call.op);
    for (size_t i = 0; i < plan_.faults().size(); ++i) {
      const Fault& fault = plan_.faults()[i];
      if (!fits(fault, call)) continue;
      const int64_t matched = ++matched_[i].calls[rank];
      if ((fault.nth >= 0 && fault.nth != matched) || !suits(fault.kind, fault.when, call)) continue;
      due.push_back(fault);
      if (fault.maybe) {
        matched_[i].offered = true;
      } else if (!matched_[i].struck) {
        matched_[i].due.push_back(exactly(fault, call.rank, nth));
      }
    }
  }
  if (plan_.rate() > 0) {
    // The seed is spread first: else the draws of seeds in a row are the same ones in another order.
    uint64_t spread = plan_.seed();
    Prng prng(Prng::splitmix64(spread) ^ (static_cast<uint64_t>(call.rank) << 40) ^ static_cast<uint64_t>(nth));
    if (static_cast<double>(prng.below(uint64_t{1} << 32)) < plan_.rate() * 4294967296.0) {
      std::vector<Kind> kinds;
      for (int number = 0; number < kFaultKindCount; ++number) {
        const auto kind = static_cast<Kind>(number);
        const bool asked =
            plan_.kinds().empty() || std::find(plan_.kinds().begin(), plan_.kinds().end(), kind) != plan_.kinds().end();
        const bool possible = suits(kind, When::kBefore, call) || suits(kind, When::kAfter, call);
        if (asked && possible) kinds.push_back(kind);
      }
      if (!kinds.empty()) {
        Fault fault{.kind = kinds[prng.below(kinds.size())]};
        fault.when = static_cast<When>(prng.below(3));
        if (!suits(fault.kind, fault.when, call))
          fault.when = fault.when == When::kAfter ? When::kBefore : When::kAfter;
        fault.by = absl::Milliseconds(1 + static_cast<int64_t>(prng.below(1000)));
        due.push_back(std::move(fault));
      }
    }
  }
  // Not under the lock: to choose is to let others see the choice.
  std::erase_if(due, [&](const Fault& fault) {
    return fault.maybe &&
           scheduler_->choose(ChoiceKind::kFault, 2, Site{.what = "fault", .group = call.group, .seq = call.seq}) == 0;
  });
  for (Fault& fault : due) fault = exactly(std::move(fault), call.rank, nth);
  return due;
}

void FaultInjector::struck(const Fault& fault) {
  RankMutexLock lock(&mu_);
  happened_.push_back(fault);
  for (Matched& matched : matched_) {
    if (!absl::c_linear_search(matched.due, fault)) continue;
    matched.struck = true;
    matched.due = {};
  }
}

void FaultInjector::keep(std::shared_ptr<const void> memory, absl::AnyInvocable<bool()> over) {
  std::vector<Kept> kept;
  {
    RankMutexLock lock(&mu_);
    kept.swap(kept_);
  }
  std::erase_if(kept, [](Kept& each) { return each.over(); });  // without the lock: a call may go with its question
  kept.push_back({.memory = std::move(memory), .over = std::move(over)});
  RankMutexLock lock(&mu_);
  std::move(kept.begin(), kept.end(), std::back_inserter(kept_));
}

absl::Status FaultInjector::act(const Fault& fault, const Call& call, CodeSite code) {
  const auto text = [&](absl::string_view what, bool with_rank = true) {
    const std::string said = absl::StrCat(with_rank ? absl::StrCat("rank ", call.rank, ", ") : "",
                                          call.group.empty() ? "" : absl::StrCat("group ", sv(call.group), ", "),
                                          sv(call.op), call.seq >= 0 ? absl::StrCat(" seq ", call.seq) : "", ": ", what,
                                          " (injected, ", sv(fault_when_name(fault.when)), " the call)");
    return located(said, code);
  };
  switch (fault.kind) {
    case Kind::kCrash: {
      const std::string what = text("the rank crashed");
      crash_(call.rank, what);
      // Nobody would catch it on a helper.
      if (Task::current()->info.kind == TaskKind::kRank) throw RankCrashed();
      return make_error(ErrorKind::kRankFailed, what);
    }
    case Kind::kHang: {
      RankMutex mu(scheduler_, LockLevel::kSync);
      RankCondVar never;
      RankMutexLock lock(&mu);
      return never.await(
          &mu, [] { return false; },
          Site{.what = kInjectedHang, .code = code, .group = call.group, .seq = call.seq, .detail = call.op});
    }
    case Kind::kDelay:
      return scheduler_->sleep(Site{.what = "a delay (injected)", .code = code, .group = call.group, .seq = call.seq},
                               fault.by);
    case Kind::kStoreTimeout:
      return make_error(ErrorKind::kTimeout, text("timed out", /*with_rank=*/false));  // the store names it
    case Kind::kDrop:
    case Kind::kDuplicate:
    case Kind::kCorrupt:
    case Kind::kAbort:
      return absl::OkStatus();  // the group does these
  }
  return absl::OkStatus();
}

std::vector<std::string> FaultInjector::missed() const {
  std::vector<std::string> lines;
  RankMutexLock lock(&mu_);
  for (size_t i = 0; i < matched_.size(); ++i) {
    const Fault& fault = plan_.faults()[i];
    if (matched_[i].offered || matched_[i].struck) continue;
    const int64_t most = matched_[i].calls.empty() ? 0 : *absl::c_max_element(matched_[i].calls);
    std::string why;
    if (!matched_[i].due.empty()) {
      why = "its call failed, nobody waited for it, or only after the rank had learned that it was done";
    } else if (most == 0) {
      why = absl::StrCat("it fits no call; there were ", ops_.empty() ? "none" : absl::StrJoin(ops_, ", "));
    } else if (fault.nth == 0 || fault.nth > most) {
      why = absl::StrCat("it fits no rank's call number ", fault.nth, ", of 1 to ", most);
    } else {
      why = absl::StrCat("its calls cannot go wrong like that, want ", sv(wanted(fault)));
    }
    lines.push_back(absl::StrCat("the fault ", fault.text(), " did not happen: ", why));
  }
  return lines;
}

std::vector<Fault> FaultInjector::happened() const {
  RankMutexLock lock(&mu_);
  return happened_;
}

}  // namespace rankloom::internal
