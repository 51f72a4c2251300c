#include "world/open_outputs.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace rankloom::internal {
namespace {

using Range = OpenOutputs::Range;

bool meet(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

// Both ascend.
bool meet(absl::Span<const Range> a, absl::Span<const Range> b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (meet(a[i], b[j])) return true;
    a[i].end <= b[j].begin ? ++i : ++j;
  }
  return false;
}

}  // namespace

bool OpenOutputs::add(OpenCall& call, std::vector<Range> ranges, std::string* other) {
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  Entry entry{.call = &call, .hull = ranges.front(), .ranges = nullptr};
  for (const Range range : ranges) entry.hull.end = std::max(entry.hull.end, range.end);
  if (ranges.size() > 1) entry.ranges = std::make_unique<std::vector<Range>>(std::move(ranges));
  RankMutexLock lock(&mu_);
  if (first_.call != nullptr || !more_.empty()) return add_beside(std::move(entry), other);
  first_ = std::move(entry);
  return true;
}

bool OpenOutputs::add_beside(Entry entry, std::string* other) {
  const auto ranges = [](const Entry& of) {
    return of.ranges != nullptr ? absl::MakeConstSpan(*of.ranges) : absl::MakeConstSpan(&of.hull, 1);
  };
  const auto clashes = [&](const Entry& with) {
    if (with.call == nullptr || !meet(entry.hull, with.hull) || !meet(ranges(entry), ranges(with))) return false;
    *other = with.call->open_text();
    return true;
  };
  if (clashes(first_)) return false;
  if (!more_.empty() && meet(entry.hull, hull_) && std::any_of(more_.begin(), more_.end(), clashes)) return false;
  if (first_.call == nullptr) {
    first_ = std::move(entry);
    return true;
  }
  hull_ =
      more_.empty() ? entry.hull : Range{std::min(hull_.begin, entry.hull.begin), std::max(hull_.end, entry.hull.end)};
  entry.call->place_ = more_.size();
  more_.push_back(std::move(entry));
  return true;
}

void OpenOutputs::remove_beside(OpenCall& call) {
  if (first_.call == &call) {
    first_ = {};
    return;
  }
  const size_t place = call.place_;
  if (place >= more_.size() || more_[place].call != &call) return;
  if (place + 1 < more_.size()) {
    more_[place] = std::move(more_.back());
    more_[place].call->place_ = place;
  }
  more_.pop_back();
}

bool OpenOutputs::written_beside(const OpenCall& call, absl::Span<const Range> reads, std::string* other) const {
  RankMutexLock lock(&mu_);
  const auto written_by = [&](const Entry& entry) {
    if (entry.call == nullptr || entry.call == &call) return false;
    const auto writes =
        entry.ranges != nullptr ? absl::MakeConstSpan(*entry.ranges) : absl::MakeConstSpan(&entry.hull, 1);
    for (const Range read : reads) {
      if (meet(read, entry.hull) && meet(absl::MakeConstSpan(&read, 1), writes)) {
        *other = entry.call->open_text();
        return true;
      }
    }
    return false;
  };
  if (written_by(first_)) return true;
  const auto near = [hull = hull_](Range read) { return meet(read, hull); };
  return !more_.empty() && std::any_of(reads.begin(), reads.end(), near) &&
         std::any_of(more_.begin(), more_.end(), written_by);
}

bool OpenOutputs::has(const OpenCall& call) const {
  RankMutexLock lock(&mu_);
  return first_.call == &call || (call.place_ < more_.size() && more_[call.place_].call == &call);
}

void OpenOutputs::remove_if(absl::FunctionRef<bool(const OpenCall&)> gone) {
  RankMutexLock lock(&mu_);
  if (first_.call != nullptr && gone(*first_.call)) first_ = {};
  std::erase_if(more_, [&](const Entry& entry) { return gone(*entry.call); });
  for (size_t place = 0; place < more_.size(); ++place) more_[place].call->place_ = place;
}

std::vector<std::string> OpenOutputs::texts() const {
  RankMutexLock lock(&mu_);
  std::vector<std::pair<uintptr_t, std::string>> texts;
  if (first_.call != nullptr) texts.emplace_back(first_.hull.begin, first_.call->open_text());
  for (const Entry& entry : more_) texts.emplace_back(entry.hull.begin, entry.call->open_text());
  std::sort(texts.begin(), texts.end());
  std::vector<std::string> in_order;
  for (auto& [begin, text] : texts) in_order.push_back(std::move(text));
  return in_order;
}

}  // namespace rankloom::internal
