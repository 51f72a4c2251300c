#include "collectives/mpi/mpi_work.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Moves the calls of the process for some time, until `work` is done.
void drive_for(const WorkState& work, MpiMember& member, absl::Duration timeout) {
  constexpr int64_t kLimit = MpiEngine::kDriveNs;
  const int64_t limit = timeout < absl::Nanoseconds(kLimit) ? absl::ToInt64Nanoseconds(timeout) : kLimit;
  if (!work.is_over() && !work.world_ref().ended()) member.engine().drive([&work] { return work.is_over(); }, limit);
}

}  // namespace

MpiWork::MpiWork(std::shared_ptr<MpiMember> member, RankState* context, CollectiveCall&& call, int64_t timeout_ns)
    : MemberWork(context, std::move(call), timeout_ns), member_(std::move(member)) {}

MpiWork::~MpiWork() = default;

const char* MpiWork::op() const { return op_row(call_.op).name; }
std::string_view MpiWork::group() const { return member_->group()->name(); }
const Group* MpiWork::open_group() const { return member_->group().get(); }

Site MpiWork::wait_site(CodeSite code) const {
  return Site{.what = op(), .code = code, .group = group(), .seq = seq(), .detail = call_.label, .waits_for = this};
}

absl::Status MpiWork::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  drive_for(*this, *member_, timeout_is_default ? call_.timeout : timeout);
  return MemberWork::wait(timeout, timeout_is_default, code);
}

bool MpiWork::take_back_one(const Withdrawal& why, const absl::Status& ended, absl::FunctionRef<bool()> take) {
  MpiEngine& engine = member_->engine();
  const bool taken = engine.locked([&] {
    if (is_over()) return false;
    const bool took = take();
    if (why.why == Withdrawal::Why::kFailure) member_->fail(why.cause, /*told=*/false);
    return took;
  });
  if (taken) {
    complete(ended);
    return true;
  }
  // MPI has the rank's memory, and all members have come.
  while (!is_over()) engine.drive([this] { return is_over(); }, MpiEngine::kDriveNs);
  return false;
}

namespace {

// Global ranks.
std::vector<int> others_of(const MpiMember& member) {
  std::vector<int> others;
  for (int r = 0; r < member.size(); ++r) {
    if (r != member.rank()) others.push_back(member.global_rank(r));
  }
  return others;
}

}  // namespace

void MpiCollective::append_ranks(std::vector<int>* ranks) const {
  const std::vector<int> gone = member_->engine().ended_of(others_of(*member_));
  ranks->insert(ranks->end(), gone.begin(), gone.end());
}

std::vector<int> MpiCollective::awaited_ranks() const {
  std::vector<int> ranks;
  const int64_t number = member_->engine().locked([this] { return member_->call_number(*this); });
  for (const auto& [rank, position] : member_->engine().ask(member_->key(), others_of(*member_))) {
    if (!position.answered || position.calls < number) ranks.push_back(rank);
  }
  return ranks;
}

std::string MpiCollective::what(bool /*numbered*/) const { return absl::StrCat(op(), " seq ", call_.seq); }

bool MpiCollective::take_back(const Withdrawal& why, const absl::Status& ended) {
  return take_back_one(why, ended, [this] { return member_->take_back(*this); });
}

const char* MpiMessage::op() const { return call_name(call_); }

void MpiMessage::came_from(int source) {
  source_.store(source, std::memory_order_release);
  if (call_.peer == CollectiveCall::kAnySource) rank_state_->recorder().set_peer(call_.way.record_id, source);
}

void MpiMessage::append_ranks(std::vector<int>* ranks) const {
  if (call_.peer >= 0) return ranks->push_back(member_->global_rank(call_.peer));
  const std::vector<int> others = others_of(*member_);
  ranks->insert(ranks->end(), others.begin(), others.end());
  std::sort(ranks->begin(), ranks->end());
}

std::string MpiMessage::what(bool numbered) const {
  const std::string number = numbered && seq() >= 0 ? absl::StrCat(" seq ", seq()) : "";
  const std::string tag = call_.tag != 0 ? absl::StrCat(", tag ", call_.tag) : "";
  if (call_.peer < 0) return absl::StrCat(op(), number, tag);
  return absl::StrCat(op(), number, sends() ? " to" : " from", " rank ", member_->group()->global_rank(call_.peer),
                      tag);
}

std::string MpiMessage::facts() const {
  return sends() ? "" : facts_from(member_->engine().ask(member_->key(), awaited_ranks()));
}

std::string MpiMessage::facts_from(const std::map<int, MpiEngine::Position>& positions) const {
  std::string text;
  for (const int rank : awaited_ranks()) {
    const auto at = positions.find(rank);
    if (sends() || at == positions.end()) continue;
    const MpiEngine::Position& position = at->second;
    const std::set<int32_t> tags(position.sends.begin(), position.sends.end());
    if (tags.empty() || tags.contains(call_.tag)) continue;
    absl::StrAppend(&text, "\n  rank ", rank, " has sends to this rank on their way with tag ",
                    absl::StrJoin(tags, ", "), ", and this ", op(), " is for tag ", call_.tag);
  }
  return text;
}

bool MpiMessage::take_back(const Withdrawal& why, const absl::Status& ended) {
  return take_back_one(why, ended, [this] { return member_->take_back(*this); });
}

MpiCoalesced::MpiCoalesced(std::shared_ptr<MpiMember> member, RankState* context, CollectiveCall& call,
                           int64_t timeout_ns)
    : CoalescedWork(context, member->group(), call, timeout_ns), member_(std::move(member)) {}

absl::Status MpiCoalesced::wait(absl::Duration timeout, bool timeout_is_default, CodeSite code) {
  drive_for(*this, *member_, timeout_is_default ? call_.timeout : timeout);
  return CoalescedWork::wait(timeout, timeout_is_default, code);
}

std::string MpiCoalesced::facts() const {
  std::vector<const MpiMessage*> recvs;
  std::set<int> ranks;  // asked once: one that does not answer takes a second
  for (const std::shared_ptr<MemberWork>& message : messages()) {
    const auto& recv = static_cast<const MpiMessage&>(*message);
    if (recv.sends() || recv.is_over()) continue;
    recvs.push_back(&recv);
    for (const int rank : recv.awaited_ranks()) ranks.insert(rank);
  }
  if (recvs.empty()) return "";
  const std::map<int, MpiEngine::Position> positions =
      member_->engine().ask(member_->key(), std::vector<int>(ranks.begin(), ranks.end()));
  std::string text;
  for (const MpiMessage* const recv : recvs) text += recv->facts_from(positions);
  return text;
}

}  // namespace rankloom::internal
