#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rankloom/process_group.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/tensors.h"

namespace rankloom {

// One member's part of a collective: its tensors, made and filled, and the call.
class CallOf {
 public:
  // Tensors are taken from `tensors`, which stays until the call is done.
  CallOf(const JobCall& call, int act, int part, const std::vector<int>& ranks, int member, uint64_t state,
         Tensors* tensors);

  // Writes the inputs. Once, before the call is made, or in front of it on its stream.
  void fill();
  Work make(ProcessGroup& pg, const CallOptions& options);
  // What the outputs hold.
  void read(std::string* text) const;

 private:
  const JobCall call_;
  const int act_;
  const int size_, member_;
  std::vector<Bytes> values_;
  std::vector<TensorView> inputs_, outputs_;
};

}  // namespace rankloom
