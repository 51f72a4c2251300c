#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rankloom/process_group.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/rank_words.h"
#include "tests/campaign/tensors.h"

namespace rankloom {

// One member's part of a collective: its tensors, made and filled, and the call.
class CallOf {
 public:
  CallOf(const JobCall& call, int act, int part, const std::vector<int>& ranks, int member, uint64_t state,
         std::shared_ptr<Tensors> tensors, std::shared_ptr<Arrivals> arrivals);

  // Writes the inputs. Once, before the call is made, or in front of it on its stream.
  void fill();
  Work make(ProcessGroup& pg, const CallOptions& options);
  // Appends the bytes of the outputs.
  void read(std::string* text) const;

 private:
  // A stream may use them when the rank's program has ended.
  const std::shared_ptr<Tensors> tensors_;
  const JobCall call_;
  const int act_;
  const int size_, member_;
  const std::shared_ptr<Arrivals> arrivals_;  // null: nobody counts
  const Arrivals::Barrier barrier_;
  std::vector<Bytes> values_;
  std::vector<TensorView> inputs_, outputs_;
  bool keeps_inputs_ = true;  // none lies in an output
};

}  // namespace rankloom
