#include "world/flight_recorder.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/operation_log.h"

namespace rankloom::internal {

namespace {

bool alike(const FlightFacts& a, const FlightFacts& b) {
  return a.code.line == b.code.line && a.code.file == b.code.file && a.op == b.op && a.group == b.group &&
         a.shapes == b.shapes && a.dtype == b.dtype && a.peer == b.peer && a.tag == b.tag && a.root == b.root &&
         a.inputs == b.inputs && a.outputs == b.outputs && a.timeout_ns == b.timeout_ns && a.is_p2p == b.is_p2p &&
         a.recorder_name == b.recorder_name;
}

}  // namespace

RankRecorder::~RankRecorder() = default;

void RankRecorder::log_issue(int64_t record_id) { log_->call_issued(record_id); }
void RankRecorder::log_end(int64_t record_id) { log_->call_ended(record_id); }

RankRecorder::Slot& RankRecorder::longer_ring() {
  if (ring_.size() == ring_.capacity()) {
    // Not from 1 upwards: each of a large world's first calls would move all entries.
    ring_.reserve(static_cast<size_t>(
        std::min<int64_t>(capacity_, std::max<int64_t>(8, 2 * static_cast<int64_t>(ring_.size())))));
  }
  return ring_.emplace_back();
}

FlightFacts& RankRecorder::spare_facts() {
  size_t looked = 0;
  while (looked < kinds_.size() && kinds_[hand_]->entries != 0) {
    hand_ = hand_ + 1 < kinds_.size() ? hand_ + 1 : 0;
    ++looked;
  }
  if (looked == kinds_.size()) {
    hand_ = kinds_.size();
    kinds_.push_back(std::make_unique<Kind>());
  }
  Kind& spare = *kinds_[hand_];
  ++spare.serial;
  spare.facts = {};
  return spare.facts;
}

int64_t RankRecorder::open_spare(const FlightNumbers& numbers, Known* known) {
  Kind* const spare = kinds_[hand_].get();
  Kind*& recent = recent_[static_cast<size_t>(spare->facts.code.line) % kRecent];
  if (recent == nullptr || !alike(recent->facts, spare->facts)) recent = spare;
  if (known != nullptr) {
    known->kind_ = recent;
    known->serial_ = recent->serial;
  }
  return file(*recent, numbers);
}

void RankRecorder::left(const std::shared_ptr<const Group>& group) {
  RankMutexLock lock(&mu_);
  int64_t last = next_ - 1;
  while (last >= oldest() && ring_[place_of(last)].kind->facts.group != group.get()) --last;
  if (last < oldest()) return;
  const int64_t until = last + capacity_;
  const auto at = std::find_if(left_.begin(), left_.end(), [until](const Left& left) { return left.until <= until; });
  left_.insert(at, {until, group});
  left_until_ = left_.back().until;
}

void RankRecorder::drop_left() {
  while (!left_.empty() && left_.back().until < next_) left_.pop_back();
  left_until_ = left_.empty() ? std::numeric_limits<int64_t>::max() : left_.back().until;
}

void RankRecorder::set_peer(int64_t record_id, int peer) {
  RankMutexLock lock(&mu_);
  if (Slot* const slot = find(record_id); slot != nullptr) slot->peer = peer;
}

FlightEntry RankRecorder::entry_at(int64_t record_id) const {
  const Slot& slot = ring_[place_of(record_id)];
  FlightEntry entry;
  static_cast<FlightFacts&>(entry) = slot.kind->facts;
  static_cast<FlightNumbers&>(entry) = slot.numbers;
  entry.record_id = record_id;
  entry.peer = slot.peer;
  entry.started_ns = slot.started_ns;
  entry.completed_ns = slot.completed_ns;
  entry.state = slot.state;
  if (log_ != nullptr) {
    const OperationLog::Steps steps = log_->steps_of(record_id);
    entry.issued_step = steps.issued;
    entry.ended_step = steps.ended;
  }
  return entry;
}

FlightEntries RankRecorder::entries() const {
  std::vector<FlightEntry> entries;
  std::vector<std::shared_ptr<const Group>> groups;
  {
    RankMutexLock lock(&mu_);
    std::vector<const Group*> named;
    for (int64_t record_id = oldest(); record_id < next_; ++record_id) {
      const FlightEntry& entry = entries.emplace_back(entry_at(record_id));
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
  return {std::move(entries), std::move(groups)};
}

const char* flight_state_name(FlightEntry::State state) {
  switch (state) {
    case FlightEntry::State::kScheduled:
      return "scheduled";
    case FlightEntry::State::kCompleted:
      return "completed";
    case FlightEntry::State::kFailed:
      return "failed";
  }
  return "?";
}

std::string RankRecorder::text_of(const FlightEntry& entry) {
  std::string text = absl::StrCat(entry.op, " seq ", entry.seq);
  if (entry.is_p2p && entry.peer >= 0) {
    const bool sends = std::string_view(entry.op) == "send";
    absl::StrAppend(&text, sends ? " to rank " : " from rank ", entry.group->global_rank(entry.peer));
  }
  if (entry.is_p2p && entry.tag != 0) absl::StrAppend(&text, entry.peer >= 0 ? ", tag " : " tag ", entry.tag);
  return absl::StrCat(text, " (", flight_state_name(entry.state), ") [group ", entry.group->name(), ", ",
                      sv(base_name(entry.code.file)), ":", entry.code.line, "]");
}

std::vector<std::string> RankRecorder::last_calls(int n, const Group* group) const {
  const FlightEntries all = entries();
  std::vector<std::string> lines;
  for (size_t i = all.size(); i-- > 0 && lines.size() < static_cast<size_t>(n);) {
    if (group == nullptr || all[i].group == group) lines.push_back(text_of(all[i]));
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace rankloom::internal
