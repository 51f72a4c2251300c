#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "sim/base/task.h"

namespace rankloom::internal {

// The tasks that could run next. As a queue (insertion order: O(1)) or as a set in ascending order of id (O(log n)),
// whichever the policy asks for; never both, since a million ranks pay for each.
class ReadySet {
 public:
  enum class Order : uint8_t { kQueue, kAscending };

  explicit ReadySet(Order order) : order_(order) {}

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void insert(TaskId id);                          // id is not in it
  void remove(TaskId id);                          // `id` is a member; kQueue: the oldest one
  bool contains(TaskId id) const;                  // kAscending only
  TaskId oldest() const { return queue_[head_]; }  // kQueue only
  // kQueue only: the oldest task once i have been removed; i < size().
  TaskId oldest_after(int i) const { return queue_[(head_ + static_cast<size_t>(i)) & (queue_.size() - 1)]; }
  TaskId nth(int i) const;  // kAscending only: the i-th smallest
  template <typename Visit>
  void for_each(Visit visit) const {  // kAscending only
    for (size_t word = 0; word < words_.size(); ++word) {
      for (uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        visit(static_cast<TaskId>(word * 64) + std::countr_zero(bits));
      }
    }
  }
  TaskId first_after(TaskId id) const;  // kAscending only: the smallest above id, or the smallest of all

 private:
  void grow(TaskId id);

  const Order order_;
  int size_ = 0;
  // kQueue: a ring buffer whose size is a power of two
  std::vector<TaskId> queue_;
  size_t head_ = 0;
  // kAscending: bits, and a Fenwick tree over the counts of the words once there is more than one word
  std::vector<uint64_t> words_;
  std::vector<int32_t> counts_;
};

}  // namespace rankloom::internal
