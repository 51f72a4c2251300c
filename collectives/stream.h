#pragma once

#include <memory>

#include "absl/time/time.h"

namespace rankloom {

class WorkState;

// A queue of work that runs in order, beside the rank that fills it: a CUDA stream, or a simulated one.
class Stream {
 public:
  virtual ~Stream() = default;

  // What is put on the stream later starts only when `work` is done. The stream owns what it needs for that, so the caller's
  // handles may go. A timeout or an abort releases the stream and marks it failed.
  virtual void wait_for(std::shared_ptr<WorkState> work, absl::Duration timeout) = 0;
};

}  // namespace rankloom
