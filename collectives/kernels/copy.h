#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rankloom {
class KernelPlan;
}

namespace rankloom::internal {

// The copies of one collective. Few bytes are copied at once; many are collected and copied by run(), over all cores.
// Sources and targets do not overlap, except that a target may be its own source (in place), which costs nothing.
class CopyBatch {
 public:
  // total_bytes: what will be written, over all targets. With a plan nothing is copied: add() adds to it.
  explicit CopyBatch(int64_t total_bytes, KernelPlan* plan = nullptr);

  // Whether add() copies at once. Then the order of calls should suit the targets, else sources: the targets of one source
  // in a row read it once.
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
