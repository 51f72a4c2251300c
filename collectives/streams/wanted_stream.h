#pragma once

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace rankloom::internal {

// Whether anybody wants what is unfinished on a stream: the program, which has the stream, an event of it or the work
// of a call on it; or another stream that is wanted, and waits for something on this one. Streams that wait for each
// other in a circle, or for themselves, are no longer wanted once the program has nothing of them. Such a stream is
// given up.
// Thread-safety: all methods.
class WantedStream : public std::enable_shared_from_this<WantedStream> {
 public:
  // `give_up` is called once, by the thread that has let go last.
  explicit WantedStream(absl::AnyInvocable<void()> give_up);
  WantedStream(const WantedStream&) = delete;
  WantedStream& operator=(const WantedStream&) = delete;

  // The program has nothing of the stream any more.
  void let_go();
  // For an entry of the stream `by`, until it has ended or is given up: something on this stream is to come before it.
  // Null where both are the same, or this one was given up.
  std::shared_ptr<const void> want(const std::shared_ptr<WantedStream>& by);

 private:
  class Want;

  void give_up_unwanted();
  bool is_wanted() const;

  // Guarded by one lock for all streams.
  bool held_ = true;  // the program has something of the stream
  bool gone_ = false;
  std::vector<WantedStream*> wants_;  // in the order of the entries; one for each
  std::vector<WantedStream*> wanted_by_;

  absl::AnyInvocable<void()> give_up_;
};

}  // namespace rankloom::internal
