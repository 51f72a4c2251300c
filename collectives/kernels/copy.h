#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rankloom::internal {
class KernelPlan;
}

namespace rankloom::internal {

// Copies less than this are bound by the access to their ends, not by their bytes.
inline constexpr int64_t kSmallBytes = 1024;

// As memcpy, but sizes of a few elements, which are usual in tests, cost no call.
inline void copy_few(void* to, const void* from, size_t bytes) {
  switch (bytes) {
    case 1:
      std::memcpy(to, from, 1);
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    case 16:
      std::memcpy(to, from, 16);
      return;
    default:
      std::memcpy(to, from, bytes);
  }
}

// The copies of one collective. Few bytes are copied at once; many are collected and copied by run(), over all cores.
// Sources and targets do not overlap, except that a target may be its own source (in place), which costs nothing.
class CopyBatch {
 public:
  // total_bytes: what will be written, over all targets. With a plan nothing is copied: add() adds to it.
  explicit CopyBatch(int64_t total_bytes, KernelPlan* plan = nullptr);

  // Whether add() copies at once. Then the order of calls should suit the targets, else sources: the targets of one
  // source in a row read it once.
  bool at_once() const { return at_once_; }

  void add(void* to, const void* from, size_t bytes);
  void run();

 private:
  struct Source {
    const char* from;
    int64_t bytes;
    int64_t begin;        // where it lies in the row of all sources
    size_t first_target;  // of targets_
    size_t target_count;
  };

  void copy_range(int64_t begin, int64_t end) const;

  KernelPlan* const plan_;
  const bool at_once_;
  std::vector<Source> sources_;
  std::vector<char*> targets_;
};

}  // namespace rankloom::internal
