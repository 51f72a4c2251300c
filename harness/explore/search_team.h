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
  // The links to all of them. This process searches as well: `work` runs on a thread of its own. Called once, or never.
  virtual WorkerLinks* start(std::function<void(LeaderLink*)> work) = 0;
  // Has the thread of start() end, and returns when that has ended. A thread that does not, for a run that never ends,
  // ends the job, with `found` on stderr: the failure that was found, if any. May be called again.
  virtual void end(const std::string& found) = 0;
};

}  // namespace rankloom::internal
