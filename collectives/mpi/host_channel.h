#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/mpi/wire.h"
#include "collectives/work/ranks_elsewhere.h"
#include "rankloom/group.h"
#include "world/world_state.h"

namespace rankloom::internal {

// The way of a process that hosts ranks to the others, as its groups see it. Messages to one process arrive in order,
// and are heard on its fibers' thread.
class HostChannel {
 public:
  virtual int process() const = 0;
  virtual int process_of(int rank) const = 0;  // of a rank of the world
  bool is_here(int rank) const { return process_of(rank) == process(); }
  virtual WorldState& world() const = 0;
  // Lines on a rank elsewhere, as its process has told them, for the texts of waits that end.
  virtual RankTold told_of(int rank) const = 0;

  enum class Kind : uint8_t {
    kGroup,       // key, what HostedGroup::hear() reads
    kStoreCall,   // number, rank, timeout, call: to process 0
    kStoreReply,  // number, reply
    kAbort,       // the run: status
    kEnded,       // the outcomes of the sender's ranks, and of others that are to blame for them
    kDrained,     // the sender sends nothing more
    kIdle,        // to process 0: counts and deadlines
    kProbe,       // by process 0: number
    kProbed,      // to process 0: number, whether idle, counts and deadlines
    kEndless,     // to process 0: kind of error, headline
    kOver,        // by process 0: no task is left anywhere
    // Words of all to each other before time passes or a report is written; each with the number of its gathering.
    kPass,     // by process 0: until when time is to pass
    kStuck,    // by process 0
    kArrived,  // the calls that ranks have come to, and how ranks have ended
    kWaits,    // if a report is written, or waits end: what ranks wait for
    kRanks,    // what is known of ranks that waits of others are for
  };
  static WireWriter message(Kind kind) {
    WireWriter out;
    out.number(kind);
    return out;
  }
  virtual void tell(int process, WireWriter message) = 0;
  // The same to several.
  virtual void tell(const std::vector<int>& processes, WireWriter message) = 0;

  // A group that a call of all its parent's members has made has this key from now on, which all processes know it by.
  virtual void name_group(const std::shared_ptr<const Group>& group, std::string key) = 0;

 protected:
  ~HostChannel() = default;
};

}  // namespace rankloom::internal
