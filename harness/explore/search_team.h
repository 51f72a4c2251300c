#pragma once

#include <functional>
#include <string>

#include "harness/explore/campaign_links.h"

namespace rankloom::internal {

// Processes that were there before the search, copies of no other: the leader's view.
// Thread-safety: thread-compatible.
class SearchTeam {
 public:
  virtual ~SearchTeam() = default;
  // The links to all of them. This process searches as well: it does `work` on a thread of its own. Called once, or
  // never.
  virtual WorkerLinks* start(std::function<void(LeaderLink*)> work) = 0;
  // Returns when the thread of start() has ended, which has been told to. Where it does not, for a run that never ends,
  // the job ends, with `found` on stderr: the failure that was found, if any. May be called again.
  virtual void end(const std::string& found) = 0;
};

}  // namespace rankloom::internal
