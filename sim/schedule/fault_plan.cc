#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rankloom/faults.h"
#include "rankloom/random.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = Fault::Kind;
using When = Fault::When;

// The compiler warns of a kind that is missing here. Empty: there is no such kind.
constexpr std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kCrash:
      return "crash";
    case Kind::kHang:
      return "hang";
    case Kind::kDelay:
      return "delay";
    case Kind::kDrop:
      return "drop";
    case Kind::kDuplicate:
      return "duplicate";
    case Kind::kCorrupt:
      return "corrupt";
    case Kind::kAbort:
      return "abort";
    case Kind::kStoreTimeout:
      return "store_timeout";
  }
  return {};
}

static_assert(kind_name(static_cast<Kind>(kFaultKindCount)).empty());

constexpr auto kKinds = [] {
  std::array<std::string_view, kFaultKindCount> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kind_name(static_cast<Kind>(i));
  return names;
}();
constexpr std::array<std::string_view, 3> kWhens = {"before", "inside", "after"};

// Of a text: more than a run could look at in each of its calls.
constexpr size_t kMostFaults = 10'000;

// A name as a value of a fault's text: ',' and ';', which end a value, '%' and the NUL, at which a variable of the
// environment ends, are written as "%2c".
std::string escaped(absl::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == ',' || c == ';' || c == '%' || c == '\0') {
      absl::StrAppendFormat(&text, "%%%02x", static_cast<unsigned>(c));
    } else {
      text.push_back(c);
    }
  }
  return text;
}

// The reverse. A '%' that no two hexadecimal digits follow stands for itself.
std::string unescaped(absl::string_view text) {
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(i + 1, 2);
    const bool hex = text[i] == '%' && digits.size() == 2 &&
                     absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) &&
                     absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]));
    uint32_t byte = 0;
    if (hex && absl::SimpleHexAtoi(digits, &byte)) {
      name += static_cast<char>(byte);
      i += 2;
    } else {
      name += text[i];
    }
  }
  return name;
}

// The fewest digits, from six on, that read as this number.
std::string rate_text(double rate) {
  std::string text;
  double read = 0;
  for (int digits = 6; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, rate);
    if (absl::SimpleAtod(text, &read) && read == rate) break;
  }
  return text;
}

template <typename Names>
std::optional<size_t> index_of(const Names& names, absl::string_view name) {
  const auto it = std::find(names.begin(), names.end(), std::string_view(name.data(), name.size()));
  if (it == names.end()) return std::nullopt;
  return static_cast<size_t>(it - names.begin());
}

absl::StatusOr<Fault> parse_fault(absl::string_view text) {
  const auto bad = [text](absl::string_view what) {
    return internal::invalid_argument(
        "fault \"", text, "\": ", what, ", want KIND[@NAME=VALUE,...] with KIND one of ",
        absl::StrJoin(kKinds, " ", [](std::string* out, std::string_view name) { out->append(name); }),
        " and NAME one of rank group op seq nth when by maybe");
  };
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  Fault fault;
  const std::optional<size_t> kind = index_of(kKinds, parts.first);
  if (!kind.has_value()) return bad(absl::StrCat("unknown kind \"", parts.first, "\""));
  fault.kind = static_cast<Kind>(*kind);
  std::set<absl::string_view> names;
  for (const absl::string_view field : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(field, absl::MaxSplits('=', 1));
    const auto& [name, value] = named;
    if (!names.insert(name).second) return bad(absl::StrCat("\"", name, "\" twice"));
    bool good = true;
    if (name == "rank") {
      good = absl::SimpleAtoi(value, &fault.rank) && fault.rank >= -1;
    } else if (name == "group") {
      fault.group = unescaped(value);
    } else if (name == "op") {
      fault.op = unescaped(value);
    } else if (name == "seq") {
      good = absl::SimpleAtoi(value, &fault.seq) && fault.seq >= -1;
    } else if (name == "nth") {
      good = absl::SimpleAtoi(value, &fault.nth) && fault.nth >= -1;
    } else if (name == "when") {
      const std::optional<size_t> when = index_of(kWhens, value);
      good = when.has_value();
      if (good) fault.when = static_cast<When>(*when);
    } else if (name == "by") {
      good = absl::ParseDuration(value, &fault.by) && fault.by >= absl::ZeroDuration() &&
             fault.by < absl::InfiniteDuration();
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

std::string_view internal::fault_when_name(When when) {
  const auto at = static_cast<size_t>(when);
  return at < kWhens.size() ? kWhens[at] : "?";
}

std::string_view internal::fault_kind_name(Kind kind) {
  const std::string_view name = kind_name(kind);
  return name.empty() ? "?" : name;
}

std::string Fault::text() const {
  std::vector<std::string> fields;
  if (rank >= 0) fields.push_back(absl::StrCat("rank=", rank));
  if (!group.empty()) fields.push_back(absl::StrCat("group=", escaped(group)));
  if (!op.empty()) fields.push_back(absl::StrCat("op=", escaped(op)));
  if (seq >= 0) fields.push_back(absl::StrCat("seq=", seq));
  if (nth >= 0) fields.push_back(absl::StrCat("nth=", nth));
  if (when != When::kBefore) fields.push_back(absl::StrCat("when=", sv(fault_when_name(when))));
  if (kind == Kind::kDelay || by != Fault().by) fields.push_back(absl::StrCat("by=", absl::FormatDuration(by)));
  if (maybe) fields.push_back("maybe=true");
  return absl::StrCat(sv(fault_kind_name(kind)), fields.empty() ? "" : "@", absl::StrJoin(fields, ","));
}

FaultPlan::FaultPlan() = default;
FaultPlan::FaultPlan(std::vector<Fault> faults) : faults_(std::move(faults)) {}
FaultPlan::FaultPlan(std::initializer_list<Fault> faults) : faults_(faults) {}
FaultPlan::FaultPlan(const FaultPlan& other) = default;
FaultPlan::FaultPlan(FaultPlan&& other) noexcept = default;
FaultPlan& FaultPlan::operator=(FaultPlan other) noexcept {
  std::swap(faults_, other.faults_);
  std::swap(kinds_, other.kinds_);
  seed_ = other.seed_;
  rate_ = other.rate_;
  return *this;
}
FaultPlan::~FaultPlan() = default;

FaultPlan FaultPlan::plus(const std::vector<Fault>& faults) const {
  FaultPlan plan = *this;
  plan.faults_.insert(plan.faults_.end(), faults.begin(), faults.end());
  return plan;
}

FaultPlan FaultPlan::seeded(uint64_t seed, double rate, std::vector<Kind> kinds, CodeSite code) {
  if (!(rate >= 0 && rate <= 1))  // nor a NaN
    refuse({.rank = -1, .group = {}, .op = "seeded"}, ErrorKind::kInvalidArgument, "FaultPlan::seeded: rate is ", rate,
           ", want 0 to 1", site_place(Site{.code = code}));
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
    std::string text = absl::StrCat("seeded:", seed_, ":", rate_text(rate_));
    for (const Kind kind : kinds_) absl::StrAppend(&text, ":", sv(fault_kind_name(kind)));
    parts.push_back(std::move(text));
  }
  return absl::StrJoin(parts, ";");
}

absl::StatusOr<FaultPlan> FaultPlan::parse(std::string_view text) {
  FaultPlan plan;
  bool drawn = false;
  for (const absl::string_view part : absl::StrSplit(sv(text), ';', absl::SkipEmpty())) {
    if (part != "seeded" && !absl::StartsWith(part, "seeded:")) {
      absl::StatusOr<Fault> fault = parse_fault(part);
      if (!fault.ok()) return fault.status();
      if (plan.faults_.size() == kMostFaults) return internal::invalid_argument("faults: more than ", kMostFaults);
      plan.faults_.push_back(*std::move(fault));
      continue;
    }
    if (std::exchange(drawn, true))
      return internal::invalid_argument("faults \"", part, "\": drawn from a seed for the second time, want one seed");
    size_t words = 0;
    bool good = true;
    for (const absl::string_view word : absl::StrSplit(part, ':')) {
      if (words == 1) good = good && absl::SimpleAtoi(word, &plan.seed_);
      if (words == 2) good = good && absl::SimpleAtod(word, &plan.rate_) && plan.rate_ >= 0 && plan.rate_ <= 1;
      if (words >= 3) {
        const std::optional<size_t> kind = index_of(kKinds, word);
        good = good && kind.has_value();
        if (good) plan.kinds_.push_back(static_cast<Kind>(*kind));
      }
      ++words;
    }
    if (!good || words < 3) {
      return internal::invalid_argument("faults \"", part, "\", want seeded:SEED:RATE[:KIND...] with 0 <= RATE <= 1");
    }
  }
  if (plan.rate_ == 0) plan = FaultPlan(std::move(plan.faults_));  // nothing is drawn, whatever from
  return plan;
}

}  // namespace rankloom
