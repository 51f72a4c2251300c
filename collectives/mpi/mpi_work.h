#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/work/coalesced_work.h"
#include "collectives/work/member_work.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

class MpiMember;

// The work of a call of a group over MPI. A wait moves the calls of the process itself for some time, before it sleeps
// and leaves that to the engine's thread.
class MpiWork : public MemberWork {
 public:
  MpiWork(std::shared_ptr<MpiMember> member, RankState* context, CollectiveCall&& call, int64_t timeout_ns);
  ~MpiWork() override;

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;
  const char* op() const override;
  std::string_view group() const override;
  const Group* open_group() const override;

 protected:
  Site wait_site(CodeSite code) const override;
  // take_back(), of one call, which `take` takes from the member under the engine's lock.
  bool take_back_one(const Withdrawal& why, const absl::Status& ended, absl::FunctionRef<bool()> take);

  const std::shared_ptr<MpiMember> member_;
};

// A collective.
class MpiCollective final : public MpiWork {
 public:
  using MpiWork::MpiWork;

  // WaitsFor: members that are known to have ended. Reports are written under a lock, so nobody is asked.
  void append_ranks(std::vector<int>* ranks) const override;
  // The members that have not come: those of this text are asked.
  std::vector<int> awaited_ranks() const override;
  // Since MPI has it.
  void started(int64_t now_ns) { started_ns_ = now_ns; }

 protected:
  bool take_back(const Withdrawal& why, const absl::Status& ended) override;
  std::string what(bool numbered) const override;
  void ending(bool ok) override { close_own_record(scheduler()->now_ns(), ok, started_ns_); }

 private:
  int64_t started_ns_ = -1;
};

// A send or recv.
class MpiMessage final : public MpiWork {
 public:
  using MpiWork::MpiWork;

  bool sends() const { return call_.op == OpType::kSend; }
  const TensorView& tensor() const { return sends() ? call_.inputs[0] : call_.outputs[0]; }
  int64_t seq() const override { return call_.way.message_seq >= 0 ? call_.way.message_seq : call_.seq; }
  const char* op() const override;
  int source() const override { return source_.load(std::memory_order_acquire); }
  void came_from(int source);
  // WaitsFor: the other side; of a recv_any, every other member.
  void append_ranks(std::vector<int>* ranks) const override;
  // Lines for a Timeout, made of what the others answered: of a recv, the sends to this rank with other tags.
  std::string facts_from(const std::map<int, MpiEngine::Position>& positions) const;
  // "rank 1, group 0, recv from rank 0, tag 3".
  std::string who() const { return MemberWork::who(what(/*numbered=*/false)); }

 protected:
  bool take_back(const Withdrawal& why, const absl::Status& ended) override;
  std::string what(bool numbered) const override;
  const char* lost() const override { return "the message can never arrive"; }
  std::string facts() const override;

 private:
  std::atomic<int> source_{-1};
};

// That of coalesced calls, which waits as the others do.
class MpiCoalesced final : public CoalescedWork {
 public:
  MpiCoalesced(std::shared_ptr<MpiMember> member, RankState* context, CollectiveCall& call, int64_t timeout_ns);

  absl::Status wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) override;

 protected:
  std::string facts() const override;

 private:
  const std::shared_ptr<MpiMember> member_;
};

}  // namespace rankloom::internal
