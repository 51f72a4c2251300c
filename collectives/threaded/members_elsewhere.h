#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/work/ranks_elsewhere.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// The members of a group that run in other processes, as those of this one see them. Ranks are those of the group.
// All methods are called by tasks of the world, which are fibers, with no lock held but where a comment says so.
class MembersElsewhere : public RanksElsewhere {
 public:
  virtual ~MembersElsewhere() = default;

  virtual bool is_here(int rank) const = 0;
  virtual int here() const = 0;  // the number of members that run here

  // All members here have made the collective `seq`: `calls` by rank, null elsewhere; `alike`: these are the same() as
  // each other. Rendezvous::met() follows, in a step of its own.
  virtual void meet(int64_t seq, MemberCalls calls, bool alike) = 0;
  // The kernel has run over these calls of all members.
  virtual void ran(MemberCalls calls) = 0;
  // For reports, under the lock of the rendezvous: whether a member elsewhere is known to have made the collective, and
  // its last calls, where these came with it.
  virtual bool has_come(int64_t seq, int rank) const = 0;
  virtual std::vector<std::string> last_calls(int64_t seq, int rank) const = 0;

  // Member `sender`, of here, sends to one elsewhere. Mailbox::received() follows with the number.
  virtual void send(int64_t number, int sender, const CollectiveCall& call) = 0;
  // The end of a send that came by Mailbox::arrive().
  virtual void received(int sender, int64_t number, const absl::Status& status) = 0;

  // The group fails here, perhaps because it has failed elsewhere.
  virtual void failed(const absl::Status& cause) = 0;
  // All members here have left the group, whose end here is no failure of those elsewhere.
  virtual void left() = 0;
};

}  // namespace rankloom::internal
