#pragma once

#include <string>

#include "sim/base/code_site.h"
#include "world/world.h"

namespace rankloom {
namespace internal {
class RankFailures;
}  // namespace internal

// SCOPED_TRACE for ranks: while it lives, failures of this rank and of its helpers end with its line and text. GoogleTest
// keeps one stack of traces per thread; ranks that are fibers share it, so that a SCOPED_TRACE which lives across a
// scheduling point (a collective, a wait, a store call) shows up at another rank's failures. This one is right everywhere.
// Does nothing in a world that no MultiThreadedTestCase runs.
class RankTrace {
 public:
  RankTrace(RankContext& rank, const std::string& text, CodeSite code = CodeSite::here());
  ~RankTrace();
  RankTrace(const RankTrace&) = delete;
  RankTrace& operator=(const RankTrace&) = delete;

 private:
  internal::RankFailures* const failures_;
  const int rank_;
};

}  // namespace rankloom
