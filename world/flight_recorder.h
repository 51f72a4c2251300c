#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/error.h"
#include "rankloom/group.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom::internal {

// Shapes of tensors, one after another, each as: number of dimensions, dimensions. The first six numbers cost no allocation,
// which is all that most calls need.
class FlightShapes {
 public:
  void clear() {
    size_ = 0;
    if (!more_.empty()) [[unlikely]]
      more_.clear();
  }
  void add(const int64_t* sizes, size_t dimensions) {
    if (dimensions == 1 && size_ + 2 <= kInline) [[likely]] {
      inline_[size_] = 1;
      inline_[size_ + 1] = sizes[0];
      size_ += 2;
      return;
    }
    push(static_cast<int64_t>(dimensions));
    for (size_t i = 0; i < dimensions; ++i) push(sizes[i]);
  }
  size_t size() const { return size_; }
  int64_t operator[](size_t i) const { return i < kInline ? inline_[i] : more_[i - kInline]; }
  friend bool operator==(const FlightShapes& a, const FlightShapes& b) {
    bool equal = a.size_ == b.size_;
    for (size_t i = 0; equal && i < a.size_; ++i) equal = a[i] == b[i];
    return equal;
  }

 private:
  static constexpr size_t kInline = 6;
  void push(int64_t value) {
    if (size_ < kInline) [[likely]] {
      inline_[size_] = value;
    } else {
      more_.push_back(value);
    }
    ++size_;
  }

  size_t size_ = 0;
  int64_t inline_[kInline];
  std::vector<int64_t> more_;
};

// One call of one rank, as the recorder keeps it. Types are opaque numbers here: the layer above knows their names.
struct FlightEntry {
  enum class State : uint8_t { kScheduled, kCompleted, kFailed };
  int64_t record_id = -1;        // position in the rank's sequence of calls, from 0
  const Group* group = nullptr;  // lives as long as the entry: RankRecorder::left()
  const char* op = "";
  const char* recorder_name = "";  // what PyTorch's recorder calls the operation
  int64_t seq = -1;                // collective or point-to-point sequence number in the group
  int64_t other_seq = -1;          // that of the other kind at the time: how many the rank had issued
  int64_t op_id = -1;
  int64_t created_ns = 0;     // Scheduler::now_ns()
  int64_t started_ns = -1;    // -1: not known
  int64_t completed_ns = -1;  // -1: not yet
  int64_t timeout_ns = -1;    // -1: none
  CodeSite code;
  State state = State::kScheduled;
  bool is_p2p = false;
  int root = -1;        // rank in the group of the root of a collective; below 0: none
  int peer = -1;        // rank in the group of the other side of a point-to-point call; below 0: none, or not known yet
  uint8_t dtype = 0;    // of the first tensor
  uint16_t inputs = 0;  // how many of the shapes below are inputs
  uint16_t outputs = 0;
  FlightShapes shapes;
  int tag = 0;  // of a point-to-point call
};

// Calls that a recorder had at some moment, oldest first, and their groups, which live as long as this.
class FlightEntries {
 public:
  FlightEntries(std::vector<FlightEntry> entries, std::vector<std::shared_ptr<const Group>> groups)
      : entries_(std::move(entries)), groups_(std::move(groups)) {}
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  const FlightEntry& operator[](size_t i) const { return entries_[i]; }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  // By id, each once.
  const std::vector<std::shared_ptr<const Group>>& groups() const { return groups_; }

 private:
  std::vector<FlightEntry> entries_;
  std::vector<std::shared_ptr<const Group>> groups_;
};

// The last calls of one rank: a ring that grows up to its capacity. Costs at most 15 ns a call (bench/).
// Thread-safety: all methods; a call may be completed by another rank's thread.
class RankRecorder {
 public:
  RankRecorder(const Scheduler* scheduler, int capacity) : capacity_(capacity), mu_(scheduler, LockLevel::kRecorder) {}

  // Files an entry, which `fill` writes into its place, and returns its record_id.
  template <typename Fill>
  int64_t open(Fill fill) {
    if (capacity_ == 0) return -1;
    RankMutexLock lock(&mu_);
    FlightEntry& entry = next_entry();
    fill(entry);
    return entry.record_id;
  }
  // The entry that the next open() will write, if the ring is full by then; else null.
  const FlightEntry* next_place() const {
    RankMutexLock lock(&mu_);
    const size_t next = place_of(next_);
    return next < ring_.size() ? &ring_[next] : nullptr;
  }
  // Of a call that has ended. Only the first time counts. `started_ns`: when all members had arrived, if it is known.
  void close(int64_t record_id, int64_t now_ns, bool ok, int64_t started_ns = -1);
  // The rank makes no more calls of `group`, which somebody has held until now: the recorder does from here on, for as long as
  // an entry names it.
  void left(const std::shared_ptr<const Group>& group);
  // A recv_any has found its source.
  void set_peer(int64_t record_id, int peer);
  // Oldest first.
  FlightEntries entries() const;
  // The last `n` calls, oldest first, one line each: "all_reduce seq 3 (completed) [group 0, train.cc:12]", "send seq 2 to rank 1,
  // tag 7 (scheduled) [...]".
  std::vector<std::string> last_calls(int n) const;

 private:
  FlightEntry& next_entry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void drop_left() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static std::string text_of(const FlightEntry& entry);
  FlightEntry* find(int64_t record_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A division of 64 bits is a good part of what a record costs; the default capacity needs none.
  size_t place_of(int64_t record_id) const {
    const auto id = static_cast<uint64_t>(record_id);
    const auto capacity = static_cast<uint64_t>(capacity_);
    return (capacity & (capacity - 1)) == 0 ? id & (capacity - 1) : id % capacity;
  }

  const int capacity_;  // 0: records nothing
  mutable RankMutex mu_;
  std::vector<FlightEntry> ring_ ABSL_GUARDED_BY(mu_);
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  // Groups that the rank has left and entries still name; no more than entries.
  struct Left {
    int64_t until;  // the record that takes the place of the last entry that names it
    std::shared_ptr<const Group> group;
  };
  std::vector<Left> left_ ABSL_GUARDED_BY(mu_);                                    // by `until`, the last to go first
  int64_t left_until_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();  // the least of those
};

}  // namespace rankloom::internal
