#pragma once

#include <string>

namespace rankloom::internal {

// While it lives, what GoogleTest is told with a text that begins with this one is printed in a terminal's colours, if
// stdout is one that wants them: not under NO_COLOR or --gtest_color=no. Other listeners, and the XML, get it plain.
// On GoogleTest's own thread, within a test.
class ColouredFailure {
 public:
  // `text` outlives this.
  explicit ColouredFailure(const std::string& text);
  ~ColouredFailure();
  ColouredFailure(const ColouredFailure&) = delete;
  ColouredFailure& operator=(const ColouredFailure&) = delete;
};

}  // namespace rankloom::internal
