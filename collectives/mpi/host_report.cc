#include "collectives/mpi/host_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/work/wait_text.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// Ranks of a line that may speak for all: the first one speaks, unless it has for another line.
constexpr size_t kMostSpeakers = 3;
// The calls of a rank that speaks.
constexpr int kLastCalls = 5;

void write_part(const WaitPart& part, WireWriter* out) {
  const StuckRun::Wait& wait = part.wait;
  write_ints(wait.ranks, out);
  out->number(wait.kind).text(wait.what).text(wait.group).text(wait.detail).number(wait.seq);
  write_code(wait.code, out);
  write_ints(wait.waits_for, out);
  out->text(wait.remark).text(part.hint);
}
WaitPart read_part(WireReader* in) {
  WaitPart part;
  StuckRun::Wait& wait = part.wait;
  wait.ranks = read_ints(in);
  wait.kind = in->number<TaskKind>();
  wait.what = in->text();
  wait.group = in->text();
  wait.detail = in->text();
  wait.seq = in->number<int64_t>();
  wait.code = read_code(in);
  wait.waits_for = read_ints(in);
  wait.remark = in->text();
  part.hint = in->text();
  return part;
}

}  // namespace

void write_waits(const ToldWaits& waits, WireWriter* out) {
  write_status(waits.cause, out);
  out->text(waits.moving).number(static_cast<uint32_t>(waits.parts.size()));
  for (const WaitPart& part : waits.parts) write_part(part, out);
  write_ints(waits.asked, out);
}

ToldWaits read_waits(WireReader* in) {
  ToldWaits waits;
  waits.cause = read_status(in);
  waits.moving = in->text();
  for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) waits.parts.push_back(read_part(in));
  waits.asked = read_ints(in);
  return waits;
}

absl::Status cause_of(const std::vector<Task*>& waiting) {
  for (const Task* task : waiting) {
    if (task->site.waits_for == nullptr) continue;
    if (absl::Status cause = task->site.waits_for->explain(); !cause.ok()) return cause;
  }
  return absl::OkStatus();
}

HostReport::HostReport(WorldState* world, RanksHere here, int process, int processes)
    : world_(*world), here_(here), process_(process), waits_(static_cast<size_t>(processes)) {}

void HostReport::write_ranks(WireWriter* out) const {
  std::set<int> told;
  for (const ToldWaits& waits : waits_) told.insert(waits.asked.begin(), waits.asked.end());
  for (const WaitPart& part : waits(process_).parts) {
    const std::vector<int>& ranks = part.wait.ranks;
    for (size_t i = 0; i < std::min(ranks.size(), kMostSpeakers); ++i) told.insert(ranks[i]);
  }
  std::erase_if(told, [this](int rank) { return !here_.has(rank); });
  out->number(static_cast<uint32_t>(told.size()));
  for (const int rank : told) {
    const RankTold one = internal::told_of(world_, rank);
    out->number(rank).text(one.lines).number(one.calls);
    write_texts(world_.context(rank).recorder().last_calls(kLastCalls), out);
  }
}

void HostReport::read_ranks(WireReader* in) {
  for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) {
    Rank& rank = ranks_[in->number<int>()];
    rank.told.lines = in->text();
    rank.told.calls = in->number<bool>();
    rank.last_calls = read_texts(in);
  }
}

RankFacts HostReport::facts(const absl::Status& cause) const {
  RankFacts facts{.ended = [this](int rank) { return world_.ended_text(rank); }, .last_calls = nullptr};
  // A Mismatch lists them itself.
  if (!cause.ok() && error_kind(cause) == ErrorKind::kMismatch) return facts;
  facts.last_calls = [this](int rank) {
    if (here_.has(rank)) return world_.context(rank).recorder().last_calls(kLastCalls);
    const auto at = ranks_.find(rank);
    return at != ranks_.end() ? at->second.last_calls : std::vector<std::string>();
  };
  return facts;
}

absl::Status HostReport::end(ErrorKind kind, const std::string& headline, StuckRun* stuck) const {
  absl::Status cause;
  std::string moving;
  for (const ToldWaits& waits : waits_) {
    if (cause.ok()) cause = waits.cause;
    moving += waits.moving;
  }
  const RankFacts facts = this->facts(cause);
  WaitTable table(facts);
  for (const ToldWaits& waits : waits_) {
    for (const WaitPart& part : waits.parts) table.add(part);
  }
  const std::string lines = absl::StrCat(headline, moving, table.text(stuck));
  if (cause.ok()) return make_error(kind, lines);
  return make_error(error_kind(cause), message_of(cause), "\n", lines);
}

std::string HostReport::lines(const std::vector<Task*>& waiting) const {
  const absl::Status cause = cause_of(waiting);
  const RankFacts facts = this->facts(cause);
  std::vector<WaitPart> parts;
  for (size_t process = 0; process < waits_.size(); ++process) {
    if (process == static_cast<size_t>(process_)) continue;
    parts.insert(parts.end(), waits_[process].parts.begin(), waits_[process].parts.end());
  }
  for (const Task* task : waiting) {
    // A task that stands for a rank of another process, which tells of it itself, unless its wait is at its end.
    const bool stands_for = !here_.has(task->info.rank);
    if (task->info.rank < 0 || (stands_for && task != Task::current())) continue;
    parts.push_back(wait_part(*task));
    if (stands_for) parts.back().wait.kind = TaskKind::kRank;
  }
  // As in one process: ranks first, then their helpers.
  std::stable_sort(parts.begin(), parts.end(), [](const WaitPart& a, const WaitPart& b) {
    const auto place = [](const WaitPart& part) {
      return std::pair(part.wait.kind != TaskKind::kRank, part.wait.ranks.front());
    };
    return place(a) < place(b);
  });
  WaitTable table(facts);
  for (WaitPart& part : parts) table.add(std::move(part));
  return absl::StrCat(cause.ok() ? "" : absl::StrCat("\n", message_of(cause)), table.text(nullptr));
}

RankTold HostReport::told_of(int rank) const {
  const auto at = ranks_.find(rank);
  return at != ranks_.end() ? at->second.told : RankTold();
}

}  // namespace rankloom::internal
