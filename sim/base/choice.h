#pragma once

#include <cstdint>

namespace rankloom {

// What a choice is about. Values are part of the trace format.
enum class ChoiceKind : uint8_t {
  kNextTask = 0,    // which ready task runs next
  kAnySource = 1,   // which of several matching sends a receive takes
  kCompletion = 2,  // whether a finished call completes now or later
  kFault = 3,       // whether a planned fault happens
};

}  // namespace rankloom
