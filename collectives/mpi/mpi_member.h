#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rankloom/group.h"

namespace rankloom::internal {

class MpiCollective;
class MpiEngine;
class MpiMessage;

// This process's side of a group whose members are processes, as the engine and the works of its calls see it.
// All is guarded by the engine's lock, but for what is const.
class MpiMember {
 public:
  // `key`: by which all members know the group. `rank`: in the group.
  MpiMember(MpiEngine* engine, std::shared_ptr<const Group> group, std::string key, int rank)
      : engine_(*engine), group_(std::move(group)), key_(std::move(key)), rank_(rank), size_(group_->size()) {}
  virtual ~MpiMember() = default;
  MpiMember(const MpiMember&) = delete;
  MpiMember& operator=(const MpiMember&) = delete;

  MpiEngine& engine() const { return engine_; }
  const std::shared_ptr<const Group>& group() const { return group_; }
  const std::string& key() const { return key_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int global_rank(int rank) const { return group_->global_rank(rank); }

  bool has_communicator() const { return comm_ != MPI_COMM_NULL; }
  void set_communicator(MPI_Comm comm) { comm_ = comm; }
  void free_communicator() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  // Moves what can move. Whether anything did.
  virtual bool progress(int64_t now_ns) = 0;
  // Calls or messages are on their way that others have to do with.
  virtual bool busy() const = 0;
  // The rank has given the call up. False: MPI has its memory now, and the end is near.
  virtual bool take_back(MpiCollective& work) = 0;
  virtual bool take_back(MpiMessage& message) = 0;
  // The receiver of this member's message of that number says what it makes of it. `wanted`: the bytes of a large one
  // are to follow.
  virtual void received(int64_t send, bool wanted, const absl::Status& status) = 0;
  // Ends all that can be taken back, and refuses later calls. The first cause stays. `told`: the others know of it.
  virtual void fail(const absl::Status& cause, bool told) = 0;
  // How many calls this member has made, those that wait behind others included.
  virtual int64_t calls() const = 0;
  // Which of them that is, from 1.
  virtual int64_t call_number(const MpiCollective& work) const = 0;

  // Asks for the group's communicator, which all members make: for others' calls, if not for one of this rank.
  virtual void want() = 0;

  // --- ends
  // This rank makes no more calls: the others are told so in each of theirs, up to this many.
  virtual void close_up_to(int64_t calls) = 0;
  // A member that has ended says that it has sends under these tags to us on their way, or does not know the group.
  virtual void nothing_from(int rank, bool unknown, const std::vector<int32_t>& tags) = 0;
  virtual std::vector<int32_t> sends_to(int rank) const = 0;
  // The members of a call differ, and all have come: the end of that call needs no program's doing.
  virtual bool describing() const = 0;
  // A message that no other one meets, for the notes of the run.
  struct Leftover {
    std::string what;   // "rank 1, group 0, recv from rank 2: was never sent"
    std::string place;  // " [group 0, train.cc:12]"
  };
  // The end of the run, which was aborted or not: recvs that nobody sends to, unless they failed, and sends that were
  // done for their rank before the group had a communicator, which it never got.
  virtual void tell_unmatched(bool aborted, std::vector<Leftover>* leftovers) = 0;
  // After that: takes a message that nobody will receive, and tells it, unless its send failed. False: there is none.
  virtual bool discard(std::vector<Leftover>* leftovers) = 0;

 protected:
  MpiEngine& engine_;
  const std::shared_ptr<const Group> group_;
  const std::string key_;
  const int rank_;
  const int size_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool wanted_ = false;
};

}  // namespace rankloom::internal
