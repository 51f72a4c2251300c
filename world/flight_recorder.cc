#include "world/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/site_text.h"
#include "sim/text.h"

namespace rankloom {

FlightEntry& RankRecorder::next_entry() {
  const int64_t record_id = next_++;
  if (static_cast<int64_t>(ring_.size()) < capacity_) {
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

void RankRecorder::close(int64_t record_id, int64_t now_ns, bool ok, int64_t started_ns) {
  RankMutexLock lock(&mu_);
  if (FlightEntry* const entry = find(record_id); entry != nullptr) {
    entry->started_ns = started_ns;
    entry->completed_ns = now_ns;
    entry->state = ok ? FlightEntry::State::kCompleted : FlightEntry::State::kFailed;
  }
}

void RankRecorder::set_peer(int64_t record_id, int peer) {
  RankMutexLock lock(&mu_);
  if (FlightEntry* const entry = find(record_id); entry != nullptr) entry->peer = peer;
}

std::vector<FlightEntry> RankRecorder::entries() const {
  RankMutexLock lock(&mu_);
  std::vector<FlightEntry> entries = ring_;
  std::sort(entries.begin(), entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.record_id < b.record_id; });
  return entries;
}

std::vector<std::string> RankRecorder::last_calls(int n) const {
  static constexpr const char* kStates[] = {"scheduled", "completed", "failed"};
  const std::vector<FlightEntry> all = entries();
  std::vector<std::string> lines;
  for (size_t i = all.size() > static_cast<size_t>(n) ? all.size() - static_cast<size_t>(n) : 0; i < all.size(); ++i) {
    const FlightEntry& entry = all[i];
    lines.push_back(absl::StrCat(entry.op, " seq ", entry.seq, " (", kStates[static_cast<size_t>(entry.state)],
                                 ") [group ", entry.group->name(), ", ", sv(base_name(entry.code.file)), ":",
                                 entry.code.line, "]"));
  }
  return lines;
}

}  // namespace rankloom
