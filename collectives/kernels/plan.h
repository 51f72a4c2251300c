#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "collectives/kernels/reduce.h"
#include "rankloom/tensor.h"

namespace rankloom::internal {

// The effect of a collective on memory, as data: for a device that runs it, while the kernels of this folder only say
// what is to be done. Nothing in a stage depends on anything else in it; stages run in order.
class KernelPlan {
 public:
  struct Copy {
    void* to;
    const void* from;
    int64_t bytes;  // > 0
  };
  // Elements [0, numel) of a ReduceJob; its pointers begin at `pointers` of all_pointers(): `count` inputs, then the
  // outputs.
  struct Reduce {
    ReduceJob job;  // without its pointers
    int64_t numel;  // > 0
    size_t pointers;
  };
  struct Stage {
    std::vector<Reduce> reduces;
    std::vector<Copy> copies;
    bool empty() const { return reduces.empty() && copies.empty(); }
  };

  void add_copy(void* to, const void* from, int64_t bytes);
  // Elements [begin, end) of the job, whose pointers are copied.
  void add_reduce(const ReduceJob& job, int64_t begin, int64_t end);
  // Entries that follow may depend on those added since the last call of this: then they go into a stage of their own.
  void end_stage();

  bool empty() const { return current_.empty() && stages_.empty(); }
  // Ends the plan.
  const std::vector<Stage>& stages();
  absl::Span<void* const> pointers_of(const Reduce& reduce) const {
    return {pointers_.data() + reduce.pointers, static_cast<size_t>(reduce.job.count + reduce.job.output_count)};
  }

 private:
  // Ranges of addresses, those that touch joined.
  class Ranges {
   public:
    bool overlap(uintptr_t begin, uintptr_t end) const;
    void add(uintptr_t begin, uintptr_t end);
    void clear() { ends_.clear(); }

   private:
    std::map<uintptr_t, uintptr_t> ends_;  // [begin]
  };

  template <class Visit>  // visit(begin, end, written)
  void for_each_range(const Stage& part, Visit visit) const;

  std::vector<void*> pointers_;
  Stage current_;              // the part that is being added
  std::vector<Stage> stages_;  // of parts that ended
  // Of the last stage.
  Ranges touched_;
  Ranges written_;
};

}  // namespace rankloom::internal
