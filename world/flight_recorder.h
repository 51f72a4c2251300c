#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "rankloom/error.h"
#include "rankloom/group.h"
#include "sim/sync/rank_mutex.h"

namespace rankloom::internal {

// Shapes of tensors, one after another, each as: number of dimensions, dimensions. The first six numbers cost no
// allocation, which is all that most calls need.
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
  // The sizes of the tensor whose shape begins at `*at`, which moves on to the next one's.
  std::vector<int64_t> take(size_t* at) const {
    std::vector<int64_t> sizes(static_cast<size_t>((*this)[(*at)++]));
    for (int64_t& size : sizes) size = (*this)[(*at)++];
    return sizes;
  }
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

class OperationLog;

// The facts that calls of one line share, as long as they are alike. Types are opaque numbers here: the layer above
// knows their names.
struct FlightFacts {
  const Group* group = nullptr;  // lives as long as the entry: RankRecorder::left()
  const char* op = "";
  const char* recorder_name = "";  // what PyTorch's recorder calls the operation
  int64_t timeout_ns = -1;         // -1: none
  CodeSite code;
  bool is_p2p = false;
  int root = -1;        // rank in the group of the root of a collective; below 0: none
  int peer = -1;        // rank in the group of the other side of a point-to-point call; below 0: none, or not known yet
  uint8_t dtype = 0;    // of the first tensor; 0: there is none
  uint32_t inputs = 0;  // how many of the shapes below are inputs
  uint32_t outputs = 0;
  // Behind those of the outputs, if tensors are not split equally: the splits of the input and of the output, each like
  // a shape.
  FlightShapes shapes;
  int tag = 0;  // of a point-to-point call
};

// The numbers that each call has for itself.
struct FlightNumbers {
  int64_t seq = -1;        // collective or point-to-point sequence number in the group
  int64_t other_seq = -1;  // that of the other kind at the time: how many the rank had issued
  int64_t op_id = -1;
  int64_t created_ns = 0;  // Scheduler::now_ns()
};

// One call of one rank.
struct FlightEntry : FlightFacts, FlightNumbers {
  enum class State : uint8_t { kScheduled, kCompleted, kFailed };
  int64_t record_id = -1;     // position in the rank's sequence of calls, from 0
  int64_t started_ns = -1;    // -1: not known
  int64_t completed_ns = -1;  // -1: not yet
  State state = State::kScheduled;
  // OperationLog::Steps; -1: not known.
  int64_t issued_step = -1;
  int64_t ended_step = -1;
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

// "scheduled", "completed", "failed": as reports have it.
const char* flight_state_name(FlightEntry::State state);

// The last calls of one rank: a ring that grows up to its capacity. Calls that are alike share their facts, so that a
// call takes one cache line of the ring.
// Thread-safety: all methods; a call may be completed by another rank's thread.
class RankRecorder {
  struct Kind;

 public:
  RankRecorder(const Scheduler* scheduler, int capacity) : capacity_(capacity), mu_(scheduler, LockLevel::kRecorder) {}
  ~RankRecorder();

  // From now on `log`, which outlives this, is told when calls begin and end. Before the first call.
  void tell(OperationLog* log) {
    RankMutexLock lock(&mu_);
    log_ = log;
  }

  // The facts of a call that was filed, for the next one like it.
  class Known {
   private:
    friend class RankRecorder;
    Kind* kind_ = nullptr;  // lives as long as the recorder
    uint64_t serial_ = 0;   // another: the kind has become that of other calls
  };

  // Files an entry and returns its record_id; -1: nothing is recorded. `fill` writes the facts, which are as new ones.
  // `known`: null, or gets the call's facts.
  template <typename Fill>
  int64_t open(const FlightNumbers& numbers, Fill fill, Known* known = nullptr) {
    if (capacity_ == 0) return -1;
    RankMutexLock lock(&mu_);
    fill(spare_facts());
    return open_spare(numbers, known);
  }
  // The same of a call whose facts are known, but for its line, perhaps. -1: they are no more, and open() is next.
  int64_t open_again(const Known& known, CodeSite code, const FlightNumbers& numbers) {
    RankMutexLock lock(&mu_);
    if (known.kind_ == nullptr || known.kind_->serial != known.serial_ || known.kind_->facts.code.line != code.line ||
        known.kind_->facts.code.file != code.file)
      return -1;
    return file(*known.kind_, numbers);
  }
  // The place of the entry that the next open() will write, if the ring is full by then; else null.
  const void* next_place() const {
    RankMutexLock lock(&mu_);
    const size_t next = place_of(next_);
    return next < ring_.size() ? &ring_[next] : nullptr;
  }
  // Of a call that has ended. Only the first time counts. `started_ns`: when all members had arrived, if it is known.
  void close(int64_t record_id, int64_t now_ns, bool ok, int64_t started_ns = -1) {
    RankMutexLock lock(&mu_);
    Slot* const slot = find(record_id);
    if (slot == nullptr || slot->state != FlightEntry::State::kScheduled) return;
    slot->started_ns = started_ns;
    slot->completed_ns = now_ns;
    slot->state = ok ? FlightEntry::State::kCompleted : FlightEntry::State::kFailed;
    if (log_ != nullptr) [[unlikely]]
      log_end(record_id);
  }
  // The rank makes no more calls of `group`, which somebody has held until now: the recorder does from here on, for as
  // long as an entry names it.
  void left(const std::shared_ptr<const Group>& group);
  // A recv_any has found its source.
  void set_peer(int64_t record_id, int peer);
  // Oldest first.
  FlightEntries entries() const;
  // The last `n` calls, oldest first, one line each: "all_reduce seq 3 (completed) [group 0, train.cc:12]", "send seq 2
  // to rank 1, tag 7 (scheduled) [...]". `group`: of this one only.
  std::vector<std::string> last_calls(int n, const Group* group = nullptr) const;

 private:
  struct Kind {
    FlightFacts facts;
    int entries = 0;      // of the ring that are of this kind; 0: free for other facts
    uint64_t serial = 0;  // how often it was that
  };
  // An entry but for its facts; its record_id follows from where it lies.
  struct alignas(64) Slot {
    Kind* kind = nullptr;
    FlightNumbers numbers;
    int64_t started_ns = -1;
    int64_t completed_ns = -1;
    int peer = -1;  // facts.peer, or set_peer()'s
    FlightEntry::State state = FlightEntry::State::kScheduled;
  };
  static_assert(sizeof(Slot) == 64);

  int64_t file(Kind& kind, const FlightNumbers& numbers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t record_id = next_++;
    if (record_id >= left_until_) [[unlikely]]
      drop_left();
    ++kind.entries;
    Slot& slot = static_cast<int64_t>(ring_.size()) < capacity_ ? longer_ring() : ring_[place_of(record_id)];
    if (slot.kind != nullptr) --slot.kind->entries;
    slot.kind = &kind;
    slot.numbers = numbers;
    slot.started_ns = slot.completed_ns = -1;
    slot.peer = kind.facts.peer;
    slot.state = FlightEntry::State::kScheduled;
    if (log_ != nullptr) [[unlikely]]
      log_issue(record_id);
    return record_id;
  }
  void log_issue(int64_t record_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void log_end(int64_t record_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Slot& longer_ring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a kind that no entry is of, the spare one, to be written.
  FlightFacts& spare_facts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Files an entry of the spare kind, or of one with the same facts.
  int64_t open_spare(const FlightNumbers& numbers, Known* known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void drop_left() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  FlightEntry entry_at(int64_t record_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t oldest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return next_ - static_cast<int64_t>(ring_.size()); }
  static std::string text_of(const FlightEntry& entry);
  Slot* find(int64_t record_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return record_id >= 0 && record_id >= next_ - capacity_ ? &ring_[place_of(record_id)] : nullptr;
  }
  // A division of 64 bits is a good part of what a record costs; the default capacity needs none.
  size_t place_of(int64_t record_id) const {
    const auto id = static_cast<uint64_t>(record_id);
    const auto capacity = static_cast<uint64_t>(capacity_);
    return (capacity & (capacity - 1)) == 0 ? id & (capacity - 1) : id % capacity;
  }

  const int capacity_;  // 0: records nothing
  mutable RankMutex mu_;
  std::vector<Slot> ring_ ABSL_GUARDED_BY(mu_);
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  OperationLog* log_ ABSL_GUARDED_BY(mu_) = nullptr;               // null: nobody is told
  std::vector<std::unique_ptr<Kind>> kinds_ ABSL_GUARDED_BY(mu_);  // at most two more than entries
  size_t hand_ ABSL_GUARDED_BY(mu_) = 0;                           // of the spare one
  static constexpr size_t kRecent = 4;
  std::array<Kind*, kRecent> recent_
      ABSL_GUARDED_BY(mu_) = {};  // by line: where calls like the last ones are looked for
  // Groups that the rank has left and entries still name; no more than entries.
  struct Left {
    int64_t until;  // the record that takes the place of the last entry that names it
    std::shared_ptr<const Group> group;
  };
  std::vector<Left> left_ ABSL_GUARDED_BY(mu_);                                    // by `until`, the last to go first
  int64_t left_until_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();  // the least of those
};

}  // namespace rankloom::internal
