#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rankloom/error.h"
#include "rankloom/faults.h"
#include "sim/base/prng.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {
namespace {

using Kind = Fault::Kind;
using When = Fault::When;

constexpr std::array<std::string_view, 8> kKinds = {"crash",     "hang",    "delay", "drop",
                                                    "duplicate", "corrupt", "abort", "store_timeout"};
constexpr std::array<std::string_view, 3> kWhens = {"before", "inside", "after"};

template <typename Names>
std::optional<size_t> index_of(const Names& names, absl::string_view name) {
  const auto it = std::find(names.begin(), names.end(), std::string_view(name.data(), name.size()));
  if (it == names.end()) return std::nullopt;
  return static_cast<size_t>(it - names.begin());
}

bool suits(Kind kind, const FaultInjector::Call& call) {
  switch (kind) {
    case Kind::kDrop:
    case Kind::kDuplicate:
      return call.sends;
    case Kind::kCorrupt:
    case Kind::kAbort:
      return !call.group.empty();
    case Kind::kStoreTimeout:
      return call.group.empty();
    default:
      return true;
  }
}

bool fits(const Fault& fault, const FaultInjector::Call& call) {
  return (fault.rank < 0 || fault.rank == call.rank) && (fault.group.empty() || fault.group == call.group) &&
         (fault.op.empty() || fault.op == call.op) && (fault.seq < 0 || fault.seq == call.seq);
}

absl::StatusOr<Fault> parse_fault(absl::string_view text) {
  const auto bad = [text](absl::string_view what) {
    return make_error(
        ErrorKind::kInvalidArgument,
        absl::StrCat("fault \"", text, "\": ", what, ", want KIND[@NAME=VALUE,...] with KIND one of ",
                     absl::StrJoin(kKinds, " ", [](std::string* out, std::string_view name) { out->append(name); }),
                     " and NAME one of rank group op seq nth when by maybe"));
  };
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  Fault fault;
  const std::optional<size_t> kind = index_of(kKinds, parts.first);
  if (!kind.has_value()) return bad(absl::StrCat("unknown kind \"", parts.first, "\""));
  fault.kind = static_cast<Kind>(*kind);
  for (const absl::string_view field : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(field, absl::MaxSplits('=', 1));
    const auto& [name, value] = named;
    bool good = true;
    if (name == "rank") {
      good = absl::SimpleAtoi(value, &fault.rank);
    } else if (name == "group") {
      fault.group = std::string(value);
    } else if (name == "op") {
      fault.op = std::string(value);
    } else if (name == "seq") {
      good = absl::SimpleAtoi(value, &fault.seq);
    } else if (name == "nth") {
      good = absl::SimpleAtoi(value, &fault.nth);
    } else if (name == "when") {
      const std::optional<size_t> when = index_of(kWhens, value);
      good = when.has_value();
      if (good) fault.when = static_cast<When>(*when);
    } else if (name == "by") {
      good = absl::ParseDuration(value, &fault.by);
    } else if (name == "maybe") {
      good = absl::SimpleAtob(value, &fault.maybe);
    } else {
      good = false;
    }
    if (!good) return bad(absl::StrCat("cannot read \"", field, "\""));
  }
  return fault;
}

}  // namespace

std::string_view fault_kind_name(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::string Fault::text() const {
  std::vector<std::string> fields;
  if (rank >= 0) fields.push_back(absl::StrCat("rank=", rank));
  if (!group.empty()) fields.push_back(absl::StrCat("group=", group));
  if (!op.empty()) fields.push_back(absl::StrCat("op=", op));
  if (seq >= 0) fields.push_back(absl::StrCat("seq=", seq));
  if (nth >= 0) fields.push_back(absl::StrCat("nth=", nth));
  if (when != When::kBefore) fields.push_back(absl::StrCat("when=", sv(kWhens[static_cast<size_t>(when)])));
  if (kind == Kind::kDelay) fields.push_back(absl::StrCat("by=", absl::FormatDuration(by)));
  if (maybe) fields.push_back("maybe=true");
  return absl::StrCat(sv(fault_kind_name(kind)), fields.empty() ? "" : "@", absl::StrJoin(fields, ","));
}

FaultPlan FaultPlan::seeded(uint64_t seed, double rate, std::vector<Kind> kinds) {
  FaultPlan plan;
  plan.seed_ = seed;
  plan.rate_ = rate;
  plan.kinds_ = std::move(kinds);
  return plan;
}

std::string FaultPlan::text() const {
  std::vector<std::string> parts;
  for (const Fault& fault : faults_) parts.push_back(fault.text());
  if (rate_ > 0) {
    std::string text = absl::StrCat("seeded:", seed_, ":", rate_);
    for (const Kind kind : kinds_) absl::StrAppend(&text, ":", sv(fault_kind_name(kind)));
    parts.push_back(std::move(text));
  }
  return absl::StrJoin(parts, ";");
}

absl::StatusOr<FaultPlan> FaultPlan::parse(std::string_view text) {
  FaultPlan plan;
  for (const absl::string_view part : absl::StrSplit(sv(text), ';', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, ':');
    if (words[0] != "seeded") {
      absl::StatusOr<Fault> fault = parse_fault(part);
      if (!fault.ok()) return fault.status();
      plan.faults_.push_back(*std::move(fault));
      continue;
    }
    bool good = words.size() >= 3 && absl::SimpleAtoi(words[1], &plan.seed_) &&
                absl::SimpleAtod(words[2], &plan.rate_) && plan.rate_ >= 0 && plan.rate_ <= 1;
    for (size_t i = 3; good && i < words.size(); ++i) {
      const std::optional<size_t> kind = index_of(kKinds, words[i]);
      good = kind.has_value();
      if (good) plan.kinds_.push_back(static_cast<Kind>(*kind));
    }
    if (!good) {
      return make_error(ErrorKind::kInvalidArgument,
                        absl::StrCat("faults \"", part, "\", want seeded:SEED:RATE[:KIND...] with 0 <= RATE <= 1"));
    }
  }
  return plan;
}

FaultInjector::FaultInjector(FaultPlan plan, Scheduler* scheduler, int ranks,
                             std::function<void(int, const std::string&)> crash)
    : plan_(std::move(plan)),
      scheduler_(scheduler),
      crash_(std::move(crash)),
      mu_(scheduler),
      calls_(static_cast<size_t>(ranks)),
      matched_(plan_.faults().size(), std::vector<int64_t>(static_cast<size_t>(ranks))) {}

std::vector<Fault> FaultInjector::at(const Call& call) {
  if (plan_.empty() || scheduler_->aborted()) return {};
  std::vector<Fault> due;
  const size_t rank = static_cast<size_t>(call.rank);
  int64_t nth = 0;
  {
    RankMutexLock lock(&mu_);
    nth = ++calls_[rank];
    for (size_t i = 0; i < plan_.faults().size(); ++i) {
      const Fault& fault = plan_.faults()[i];
      if (!fits(fault, call)) continue;
      const int64_t matched = ++matched_[i][rank];
      if ((fault.nth < 0 || fault.nth == matched) && suits(fault.kind, call)) due.push_back(fault);
    }
  }
  if (plan_.rate() > 0) {
    Prng prng(plan_.seed() ^ (static_cast<uint64_t>(call.rank) << 40) ^ static_cast<uint64_t>(nth));
    if (static_cast<double>(prng.below(uint64_t{1} << 32)) < plan_.rate() * 4294967296.0) {
      std::vector<Kind> kinds;
      for (size_t i = 0; i < kKinds.size(); ++i) {
        const Kind kind = static_cast<Kind>(i);
        const bool asked =
            plan_.kinds().empty() || std::find(plan_.kinds().begin(), plan_.kinds().end(), kind) != plan_.kinds().end();
        if (asked && suits(kind, call)) kinds.push_back(kind);
      }
      if (!kinds.empty()) {
        Fault fault{.kind = kinds[prng.below(kinds.size())]};
        fault.when = static_cast<When>(prng.below(3));
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
  if (due.empty()) return due;
  RankMutexLock lock(&mu_);
  for (Fault& fault : due) {
    fault.maybe = false;
    Fault exact = fault;
    exact.rank = call.rank;
    exact.group.clear();
    exact.op.clear();
    exact.seq = -1;
    exact.nth = nth;
    happened_.push_back(std::move(exact));
  }
  return due;
}

absl::Status FaultInjector::act(const Fault& fault, const Call& call, CodeSite code) {
  const auto text = [&](absl::string_view what) {
    return absl::StrCat("rank ", call.rank, ", ",
                        call.group.empty() ? "" : absl::StrCat("group ", sv(call.group), ", "), sv(call.op),
                        call.seq >= 0 ? absl::StrCat(" seq ", call.seq) : "", ": ", what, " (injected, ",
                        sv(kWhens[static_cast<size_t>(fault.when)]), " the call)");
  };
  switch (fault.kind) {
    case Kind::kCrash: {
      const std::string what = text("the rank crashed");
      crash_(call.rank, what);
      // Nobody would catch it on a helper.
      if (Task::current()->info.kind == TaskKind::kRank) throw RankCancelled();
      return make_error(ErrorKind::kRankFailed, what);
    }
    case Kind::kHang: {
      RankMutex mu(scheduler_);
      RankCondVar never;
      RankMutexLock lock(&mu);
      return never.await(
          &mu, [] { return false; },
          Site{.what = "a hang (injected)", .code = code, .group = call.group, .seq = call.seq, .detail = call.op});
    }
    case Kind::kDelay:
      return scheduler_->sleep(Site{.what = "a delay (injected)", .code = code, .group = call.group, .seq = call.seq},
                               fault.by);
    case Kind::kStoreTimeout:
      return make_error(ErrorKind::kTimeout, text("timed out"));
    default:
      return absl::OkStatus();
  }
}

std::vector<Fault> FaultInjector::happened() const {
  RankMutexLock lock(&mu_);
  return happened_;
}

}  // namespace rankloom
