#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "sim/base/kept_memory.h"
#include "sim/base/task.h"

namespace rankloom::internal {

// The tasks that could run next. As a queue (insertion order: O(1)) or as a set in ascending order of id (O(log n)),
// whichever the policy asks for; never both, since a million ranks pay for each. A set whose ids are all below 64, most
// runs' one, is a single word.
class ReadySet {
 public:
  enum class Order : uint8_t { kQueue, kAscending };

  explicit ReadySet(Order order) : order_(order), one_word_(order == Order::kAscending) {}

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void insert(TaskId id) {  // id is not in it
    if (one_word_ && id < 64) [[likely]] {
      word_ |= uint64_t{1} << id;
      ++size_;
    } else {
      insert_large(id);
    }
  }
  void remove(TaskId id) {  // `id` is a member; kQueue: O(1) for the oldest one, else O(n)
    --size_;
    if (one_word_) [[likely]] {
      word_ &= ~(uint64_t{1} << id);
    } else {
      remove_large(id);
    }
  }
  bool contains(TaskId id) const;                  // kAscending only
  TaskId oldest() const { return queue_[head_]; }  // kQueue only
  // kQueue only: the oldest task once i have been removed; i < size().
  TaskId oldest_after(int i) const { return queue_[(head_ + static_cast<size_t>(i)) & (queue_.size() - 1)]; }
  TaskId nth(int i) const {  // kAscending only: the i-th smallest
    if (!one_word_) [[unlikely]]
      return nth_large(i);
    return nth_bit(word_, i);
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    if (order_ == Order::kQueue) {
      for (int i = 0; i < size_; ++i) visit(oldest_after(i));
      return;
    }
    for (size_t word = 0; word < count_of_words(); ++word) {
      for (uint64_t bits = words()[word]; bits != 0; bits &= bits - 1) {
        visit(static_cast<TaskId>(word * 64) + std::countr_zero(bits));
      }
    }
  }
  TaskId first_after(TaskId id) const;  // kAscending only: the smallest above id, or the smallest of all

 private:
  static TaskId nth_bit(uint64_t bits, int i) {
    for (; i > 0; --i) bits &= bits - 1;
    return std::countr_zero(bits);
  }
  const uint64_t* words() const { return one_word_ ? &word_ : words_.data(); }
  size_t count_of_words() const { return one_word_ ? 1 : words_.size(); }
  void insert_large(TaskId id);
  void remove_large(TaskId id);
  void remove_from_queue(TaskId id);
  TaskId nth_large(int i) const;
  void grow(TaskId id);

  const Order order_;
  bool one_word_;  // kAscending, and no id has been 64 or more yet
  int size_ = 0;
  uint64_t word_ = 0;  // one_word_: bits
  // kQueue: a ring buffer whose size is a power of two
  std::vector<TaskId, KeptAllocator<TaskId>> queue_;
  size_t head_ = 0;
  // kAscending, more than one word: bits, and a Fenwick tree over the counts of the words
  std::vector<uint64_t> words_;
  std::vector<int32_t> counts_;
};

}  // namespace rankloom::internal
