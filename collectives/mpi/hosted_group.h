#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "collectives/mpi/host_channel.h"
#include "collectives/mpi/wire.h"
#include "collectives/threaded/members_elsewhere.h"
#include "collectives/threaded/threaded_process_group.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"

namespace rankloom::internal {

// A group whose members are ranks of several processes, as one of these sees it: what members here have made all of
// goes to the other processes, and what comes from there goes to the members here.
//
// A collective is a packet of each process to the others, once all its members have made the call. Calls that all
// processes can carry out from what is alike, and one tensor of each, travel so: a barrier, a broadcast, reductions.
// All else travels as the calls of all members with their inputs: each process then has what a group in one process
// has, and runs the same comparison and the same kernel.
// Reductions: in rank order, bit for bit as in one process. Where arithmetic is exact each process adds up its own and
//   all add up these; else the sum goes from process to process, and the last one tells it.
// All is called on the fibers' thread.
class HostedGroup final : public MembersElsewhere, public std::enable_shared_from_this<HostedGroup> {
 public:
  HostedGroup(HostChannel* channel, std::shared_ptr<const Group> group, std::string key);

  void enter(const std::shared_ptr<ThreadedGroupCore>& core) { core_ = core; }
  const std::string& key() const { return key_; }
  bool all_here() const { return processes_.size() == 1; }

  // A message of this group's from another process, from the byte `at` on.
  void hear(int from, const std::string& bytes, size_t at);
  // Which calls members have come to, for a report of all processes.
  void write_arrived(WireWriter* out) const;
  void read_arrived(WireReader* in);

  RankTold told_of(int rank) const override { return channel_.told_of(rank); }
  bool is_here(int rank) const override;
  int here() const override { return static_cast<int>(members_[mine_].size()); }
  void meet(int64_t seq, MemberCalls calls, bool alike) override;
  void ran(MemberCalls calls) override;
  bool has_come(int64_t seq, int rank) const override;
  std::vector<std::string> last_calls(int64_t seq, int rank) const override;
  void send(int64_t number, int sender, const CollectiveCall& call) override;
  void received(int sender, int64_t number, const absl::Status& status) override;
  void failed(const absl::Status& cause) override;
  void left() override { told_failure_ = true; }

 private:
  enum class Kind : uint8_t {
    kCalls,      // seq, form, likeness: of all members there
    kSum,        // seq: what the processes before have added up, or the result
    kLastCalls,  // seq, of members whose calls differ
    kSend,       // number, sender, call, bytes
    kReceived,   // number, status
    kFailed,     // status
  };
  enum class Form : uint8_t { kEach, kAlike };
  // How a reduction is carried out.
  enum class Sum : uint8_t { kNone, kExact, kChain };

  struct Meeting {
    bool here = false;
    Sum sum = Sum::kNone;
    int root_process = -1;             // of a reduce: who gets the result; -1: all
    std::vector<std::string> packets;  // by process of the group; empty: not there yet
    size_t came = 0;
    bool added = false;  // what comes from the processes before is in what this one has told
    std::string before;  // their sum
    std::string result;
    bool describes = false;
    std::vector<std::vector<std::vector<std::string>>> last_calls;  // by process, by member there
    size_t described = 0;
  };

  WireWriter message(Kind kind) const;
  size_t index_of(int process) const;
  Meeting& meeting(int64_t seq);
  Sum sum_of(const CollectiveCall& call) const;
  // Adds up the inputs of the members here, after `before` if that is not empty.
  std::string added_up(MemberCalls calls, std::string_view before) const;
  void advance(int64_t seq);
  void advance_chain(int64_t seq, Meeting& meeting);
  void begin_describing(int64_t seq, Meeting& meeting);
  void finish_alike(int64_t seq, const std::string& data);
  void finish_each(int64_t seq);
  std::shared_ptr<Rendezvous> rendezvous() const;
  void tell_others(WireWriter message) const;

  HostChannel& channel_;
  const std::shared_ptr<const Group> group_;
  const std::string key_;
  std::vector<int> processes_;  // that have members, by their first one
  std::vector<int> others_;
  std::vector<std::vector<int>> members_;  // [process of the group] its members, ascending
  size_t mine_ = 0;
  bool in_order_ = true;  // members of each process follow each other
  std::weak_ptr<ThreadedGroupCore> core_;
  std::map<int64_t, Meeting> meetings_;
  std::map<int64_t, std::set<int>> arrived_;
  bool told_failure_ = false;
};

}  // namespace rankloom::internal
