#include "world/flight_recorder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {

FlightEntry& RankRecorder::next_entry() {
  const int64_t record_id = next_++;
  if (record_id >= left_until_) [[unlikely]]
    drop_left();
  if (static_cast<int64_t>(ring_.size()) < capacity_) {
    if (ring_.size() == ring_.capacity()) {
      // Not from 1 upwards: each of a large world's first calls would move all entries.
      ring_.reserve(static_cast<size_t>(std::min<int64_t>(capacity_, std::max<int64_t>(8, 2 * record_id))));
    }
    FlightEntry& entry = ring_.emplace_back();
    entry.record_id = record_id;
    return entry;
  }
  FlightEntry& entry = ring_[place_of(record_id)];
  entry.record_id = record_id;
  entry.started_ns = entry.completed_ns = -1;
  entry.state = FlightEntry::State::kScheduled;
  entry.shapes.clear();
  return entry;
}

FlightEntry* RankRecorder::find(int64_t record_id) {
  if (record_id < 0) return nullptr;
  FlightEntry& entry = ring_[place_of(record_id)];
  return entry.record_id == record_id ? &entry : nullptr;
}

void RankRecorder::left(const std::shared_ptr<const Group>& group) {
  RankMutexLock lock(&mu_);
  int64_t last = -1;
  for (const FlightEntry& entry : ring_) {
    if (entry.group == group.get()) last = std::max(last, entry.record_id);
  }
  if (last < 0) return;
  const int64_t until = last + capacity_;
  const auto at = std::find_if(left_.begin(), left_.end(), [until](const Left& left) { return left.until <= until; });
  left_.insert(at, {until, group});
  left_until_ = left_.back().until;
}

void RankRecorder::drop_left() {
  while (!left_.empty() && left_.back().until < next_) left_.pop_back();
  left_until_ = left_.empty() ? std::numeric_limits<int64_t>::max() : left_.back().until;
}

void RankRecorder::close(int64_t record_id, int64_t now_ns, bool ok, int64_t started_ns) {
  RankMutexLock lock(&mu_);
  FlightEntry* const entry = find(record_id);
  if (entry != nullptr && entry->state == FlightEntry::State::kScheduled) {
    entry->started_ns = started_ns;
    entry->completed_ns = now_ns;
    entry->state = ok ? FlightEntry::State::kCompleted : FlightEntry::State::kFailed;
  }
}

void RankRecorder::set_peer(int64_t record_id, int peer) {
  RankMutexLock lock(&mu_);
  if (FlightEntry* const entry = find(record_id); entry != nullptr) entry->peer = peer;
}

FlightEntries RankRecorder::entries() const {
  std::vector<FlightEntry> entries;
  std::vector<std::shared_ptr<const Group>> groups;
  {
    RankMutexLock lock(&mu_);
    entries = ring_;
    std::vector<const Group*> named;
    for (const FlightEntry& entry : ring_) {
      if (entry.group != nullptr && (named.empty() || entry.group != named.back())) named.push_back(entry.group);
    }
    std::sort(named.begin(), named.end(), std::less<>());
    named.erase(std::unique(named.begin(), named.end()), named.end());
    for (const Group* const group : named) {
      if (std::shared_ptr<const Group> held = group->weak_from_this().lock(); held != nullptr)
        groups.push_back(std::move(held));
    }
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  std::sort(entries.begin(), entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.record_id < b.record_id; });
  return {std::move(entries), std::move(groups)};
}

std::string RankRecorder::text_of(const FlightEntry& entry) {
  static constexpr const char* kStates[] = {"scheduled", "completed", "failed"};
  std::string text = absl::StrCat(entry.op, " seq ", entry.seq);
  if (entry.is_p2p && entry.peer >= 0) {
    const bool sends = std::string_view(entry.op) == "send";
    absl::StrAppend(&text, sends ? " to rank " : " from rank ", entry.group->global_rank(entry.peer));
  }
  if (entry.is_p2p && entry.tag != 0) absl::StrAppend(&text, entry.peer >= 0 ? ", tag " : " tag ", entry.tag);
  return absl::StrCat(text, " (", kStates[static_cast<size_t>(entry.state)], ") [group ", entry.group->name(), ", ",
                      sv(base_name(entry.code.file)), ":", entry.code.line, "]");
}

std::vector<std::string> RankRecorder::last_calls(int n) const {
  const FlightEntries all = entries();
  std::vector<std::string> lines;
  for (size_t i = all.size() > static_cast<size_t>(n) ? all.size() - static_cast<size_t>(n) : 0; i < all.size(); ++i) {
    lines.push_back(text_of(all[i]));
  }
  return lines;
}

}  // namespace rankloom::internal
