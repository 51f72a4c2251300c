#include "sim/schedule/ready_set.h"

#include "absl/strings/str_cat.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {

void ReadySet::insert_large(TaskId id) {
  if (order_ == Order::kQueue) {
    if (static_cast<size_t>(size_) == queue_.size()) {
      std::vector<TaskId, KeptAllocator<TaskId>> larger(queue_.empty() ? 64 : queue_.size() * 2);
      for (int i = 0; i < size_; ++i)
        larger[static_cast<size_t>(i)] = queue_[(head_ + static_cast<size_t>(i)) & (queue_.size() - 1)];
      queue_ = std::move(larger);
      head_ = 0;
    }
    queue_[(head_ + static_cast<size_t>(size_)) & (queue_.size() - 1)] = id;
    ++size_;
    return;
  }
  const size_t word = static_cast<size_t>(id) / 64;
  if (word >= words_.size()) grow(id);
  words_[word] |= uint64_t{1} << (id % 64);
  for (size_t i = word + 1; i < counts_.size(); i += i & (~i + 1)) ++counts_[i];
  ++size_;
}

void ReadySet::remove_large(TaskId id) {
  if (order_ == Order::kQueue) {
    remove_from_queue(id);
    return;
  }
  const size_t word = static_cast<size_t>(id) / 64;
  words_[word] &= ~(uint64_t{1} << (id % 64));
  for (size_t i = word + 1; i < counts_.size(); i += i & (~i + 1)) --counts_[i];
}

void ReadySet::remove_from_queue(TaskId id) {  // size_ counts the others only
  const size_t mask = queue_.size() - 1;
  size_t place = 0;
  while (queue_[(head_ + place) & mask] != id) {
    if (place++ == static_cast<size_t>(size_))
      fatal(absl::StrCat("task ", id, " left the tasks that are ready and was not among them"));
  }
  for (; place > 0; --place) queue_[(head_ + place) & mask] = queue_[(head_ + place - 1) & mask];
  head_ = (head_ + 1) & mask;
}

bool ReadySet::contains(TaskId id) const {
  const size_t word = static_cast<size_t>(id) / 64;
  return id >= 0 && word < count_of_words() && (words()[word] >> (id % 64) & 1) != 0;
}

TaskId ReadySet::nth_large(int i) const {
  size_t word = 0;
  for (size_t step = std::bit_floor(counts_.size() - 1); step > 0; step /= 2) {
    if (word + step < counts_.size() && counts_[word + step] <= i) {
      word += step;
      i -= counts_[word];
    }
  }
  return static_cast<TaskId>(word * 64) + nth_bit(words_[word], i);
}

TaskId ReadySet::first_after(TaskId id) const {
  const size_t from = static_cast<size_t>(id + 1);
  for (size_t word = from / 64; word < count_of_words(); ++word) {
    uint64_t bits = words()[word];
    if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
    if (bits != 0) return static_cast<TaskId>(word * 64) + std::countr_zero(bits);
  }
  return nth(0);
}

void ReadySet::grow(TaskId id) {
  if (one_word_) {
    words_ = {word_};
    one_word_ = false;
  }
  size_t words = words_.size();
  while (words <= static_cast<size_t>(id) / 64) words *= 2;
  words_.resize(words);
  counts_.assign(words + 1, 0);
  for (size_t i = 1; i < counts_.size(); ++i) {
    counts_[i] += std::popcount(words_[i - 1]);
    const size_t parent = i + (i & (~i + 1));
    if (parent < counts_.size()) counts_[parent] += counts_[i];
  }
}

}  // namespace rankloom::internal
