#pragma once

#include <atomic>

namespace rankloom::internal {

// Whether fatal() has told why the process ends: the handler of its SIGABRT says nothing more.
inline std::atomic<bool> fatal_told{false};

}  // namespace rankloom::internal
