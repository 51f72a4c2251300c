#include "collectives/mpi/host_engine.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/mpi/abort_job.h"
#include "collectives/mpi/mpi_calls.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_store.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/deadlock_report.h"

namespace rankloom::internal {
namespace {

// How often the thread looks for messages while ranks run.
constexpr int64_t kLookNs = 500'000;
// How long the fibers' thread looks without a pause when no rank can move, and how long its pauses are then.
constexpr int64_t kSpinNs = 2'000'000;
constexpr int64_t kPauseNs = 50'000;
// So long a process whose ranks only poll looks for messages before they ask again; so much time passes for them.
constexpr int64_t kPollNs = 300'000;
constexpr int64_t kPassNs = 1'000'000;
// Real time that passes for all at once while a wait in real time may end.
constexpr int64_t kRealPassNs = 5'000'000;
// A process that has been idle for so long says so: most waits are shorter, and end by a message.
constexpr int64_t kIdleNs = 100'000;
// Ranks of other processes that a process asks about, for its texts.
constexpr size_t kMostAsked = 64;

}  // namespace

HostEngine::HostEngine(MPI_Comm processes, int world_size, int ranks_per_process, int64_t endless_grace_ns)
    : world_size_(world_size),
      ranks_per_process_(ranks_per_process),
      endless_grace_ns_(endless_grace_ns),
      comm_(duplicate(processes)),
      crowded_(is_crowded(processes)) {
  MPI_Comm_rank(comm_, &process_);
  MPI_Comm_size(comm_, &processes_);
  const auto all = static_cast<size_t>(processes_);
  heard_.resize(all);
  probed_.resize(all);
  before_.resize(all);
  causes_.resize(all);
  has_ended_.resize(all);
}

HostEngine::~HostEngine() {
  if (!thread_.joinable()) return;
  over_.store(true);
  parker_.unpark();
  thread_.join();
}

void HostEngine::begin(WorldState* world) {
  world_ = world;
  scheduler_ = static_cast<DeterministicScheduler*>(&world->scheduler());
  scheduler_->host_only(first_here(), ranks_here());
  scheduler_->set_idler([this](const Idle& now) { idle(now); });
  scheduler_->set_endless([this](ErrorKind kind, const std::string& headline) { endless(kind, headline); });
  scheduler_->set_wait_lines([this](const std::vector<Task*>& waiting) {
    return report_.has_value() ? report_->lines(waiting) : empty_report().lines(waiting);
  });
  on_abort_ = world->on_abort([this](const absl::Status& cause) { aborted_here(cause); });
  scheduler_->spawn({.rank = -1, .kind = TaskKind::kHelper}, [this] { keep_running(); });
  thread_ = std::thread([this] { thread_main(); });
}

// Ranks elsewhere may need the store that is here, or messages that ranks here have sent.
void HostEngine::keep_running() {
  keeper_ = Task::current();
  while (!all_over_ && !scheduler_->aborted()) scheduler_->park(Site{.what = "ranks of other processes"}, Deadline{});
  keeper_ = nullptr;
}

// ---- messages

void HostEngine::must(int code, const char* call) {
  if (code != MPI_SUCCESS) end_job(absl::StrCat("messages between the processes: ", message_of(mpi_error(code, call))));
}

void HostEngine::end_job(const std::string& why) {
  std::fprintf(stderr, "rankloom: process %d ends the job: %s\n", process_, why.c_str());
  abort_job();
}

void HostEngine::tell(int process, WireWriter message) { tell(std::vector<int>{process}, std::move(message)); }

void HostEngine::tell(const std::vector<int>& processes, WireWriter message) {
  const auto bytes = std::make_shared<const std::string>(message.take());
  OrderedMutexLock lock(&mu_);
  if (comm_ == MPI_COMM_NULL) return;  // after finish(): the world's end is each process's own
  for (const int process : processes) {
    ++counts_.sent;
    send(process, bytes);
  }
}

void HostEngine::send(int process, std::shared_ptr<const std::string> bytes) {
  if (process == process_) {
    to_self_.push_back(*bytes);
    return;
  }
  if (bytes->size() > INT_MAX) {
    end_job(absl::StrCat("messages between the processes: one to process ", process, " has ", bytes->size(),
                         " bytes, want less than 2^31"));
  }
  Sent& sent = sent_.emplace_back(Sent{.request = MPI_REQUEST_NULL, .bytes = std::move(bytes)});
  must(MPI_Isend(sent.bytes->data(), static_cast<int>(sent.bytes->size()), MPI_BYTE, process, 0, comm_, &sent.request),
       "MPI_Isend");
}

bool HostEngine::progress() {
  OrderedMutexLock lock(&mu_);
  return progress_locked();
}

bool HostEngine::progress_locked() {
  bool moved = false;
  if (look_again_ns_ != 0 && monotonic_ns() >= look_again_ns_) {
    look_again_ns_ = 0;
    look_for_quiet();
  }
  while (!to_self_.empty()) {
    std::string bytes = std::move(to_self_.front());
    to_self_.pop_front();
    handle(process_, std::move(bytes));
    moved = true;
  }
  for (int taken = 0; taken < kMostMessages; ++taken) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    must(MPI_Improbe(MPI_ANY_SOURCE, 0, comm_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) break;
    int size = 0;
    must(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    std::string bytes(static_cast<size_t>(size), '\0');
    must(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    handle(status.MPI_SOURCE, std::move(bytes));
    moved = true;
  }
  if (!sent_.empty()) {
    sent_.remove_if([this](Sent& sent) {
      int done = 0;
      must(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
  }
  return moved;
}

void HostEngine::deliver(absl::AnyInvocable<void()> step) {
  delivered_.push_back(std::move(step));
  told_ = false;
  if (delivering_) return;
  delivering_ = scheduler_->post_from_outside({.rank = -1, .kind = TaskKind::kCompletion}, Site{.what = "mpi"},
                                              [this] { run_delivered(); });
  // The run has ended here: what comes now is of messages that nobody receives any more.
  if (!delivering_) delivered_.clear();
}

void HostEngine::run_delivered() {
  for (;;) {
    absl::AnyInvocable<void()> step;
    {
      OrderedMutexLock lock(&mu_);
      if (delivered_.empty()) {
        delivering_ = false;
        return;
      }
      step = std::move(delivered_.front());
      delivered_.pop_front();
    }
    step();
  }
}

void HostEngine::handle(int from, std::string bytes) {
  WireReader in(bytes);
  const auto kind = in.number<Kind>();
  switch (kind) {
    case Kind::kGroup:
      ++counts_.received;
      return deliver([this, from, bytes = std::move(bytes)]() mutable { read_group(from, std::move(bytes)); });
    case Kind::kStoreCall: {
      ++counts_.received;
      const auto number = in.number<uint64_t>();
      const auto rank = in.number<int>();
      std::optional<absl::Duration> timeout;
      if (in.number<bool>()) timeout = in.number<absl::Duration>();
      return deliver([this, from, number, rank, timeout, call = in.text()]() mutable {
        serve_store(from, number, rank, timeout, std::move(call));
      });
    }
    case Kind::kStoreReply:
      ++counts_.received;
      return deliver([this, bytes = std::move(bytes)] {
        WireReader in(std::string_view(bytes).substr(sizeof(Kind)));
        const auto at = store_waits_.find(in.number<uint64_t>());
        if (at == store_waits_.end()) return;  // the rank waits no longer
        StoreWait& wait = *at->second;
        wait.reply = read_reply(&in);
        wait.done = true;
        Scheduler::wake(*wait.task);
      });
    case Kind::kOver:
      return deliver([this] {
        all_over_ = true;
        if (keeper_ != nullptr) Scheduler::wake(*keeper_);
        // A thread that a rank has left behind came too late with a call: nobody is there any more.
        if (scheduler_->tasks() > 1) scheduler_->abort(world_ended());
      });
    case Kind::kAbort: {
      const absl::Status cause = read_status(&in);
      causes_[static_cast<size_t>(from)] = cause;
      if (aborted_.exchange(true)) return;
      aborted_ns_.store(monotonic_ns());
      return deliver([this, cause] { scheduler_->abort(cause); });
    }
    case Kind::kEnded: {
      for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) {
        const auto rank = in.number<int>();
        RunReport::Outcome outcome = read_outcome(rank, &in);
        if (from != process_) outcomes_.emplace_back(rank, std::move(outcome));  // the world knows its own
      }
      has_ended_[static_cast<size_t>(from)] = true;
      ++ended_;
      return;
    }
    case Kind::kDrained:
      ++drained_;
      return;
    default:
      return handle_stuck(kind, from, &in);
  }
}

void HostEngine::thread_main() {
  while (!over_.load()) {
    if (!driven_.load(std::memory_order_relaxed)) progress();
    if (parker_.prepare()) parker_.sleep(monotonic_ns() + kLookNs);
  }
}

// ---- when no rank can move

// On the fibers' thread, which has nothing else to do.
void HostEngine::idle(const Idle& now) {
  driven_.store(true, std::memory_order_relaxed);
  const int64_t begun_ns = monotonic_ns();
  // Tasks that stand for ranks elsewhere are none of this process's.
  const bool ended = now.tasks == (keeper_ != nullptr ? 1 : 0) + static_cast<int>(served_.size());
  {
    OrderedMutexLock lock(&mu_);
    idling_ = !now.beside || ended;
    tasks_ended_ = ended;
    idle_ = now;
    told_ = told_ && now.polls && counts_ == told_counts_;
  }
  for (int64_t quiet_since_ns = begun_ns;;) {
    bool moved = false;
    const int64_t now_ns = monotonic_ns();
    {
      OrderedMutexLock lock(&mu_);
      moved = progress_locked();
      if (delivering_ || scheduler_->asked()) break;
      if (endless_since_ns_ != 0 && now_ns - endless_since_ns_ >= endless_grace_ns_) break;
      if (!told_ && is_idle() && (ended || now.polls || now_ns - begun_ns >= kIdleNs)) {
        told_ = true;
        tell_idle();
        progress_locked();
      }
      if (delivering_ || scheduler_->asked()) break;
    }
    if (now.polls && now_ns - begun_ns >= kPollNs) break;
    if (moved) quiet_since_ns = now_ns;
    if (now_ns - quiet_since_ns < kSpinNs) {
      if (crowded_) sched_yield();
    } else if (idle_parker_.prepare()) {
      idle_parker_.sleep(now_ns + kPauseNs);
    }
  }
  {
    OrderedMutexLock lock(&mu_);
    idling_ = false;
    if (delivering_) told_ = false;
    driven_.store(false, std::memory_order_relaxed);
  }
}

bool HostEngine::is_idle() const {
  return idling_ && !gathering_ && !delivering_ && to_self_.empty() && !scheduler_->asked();
}

void HostEngine::write_idle(WireWriter* out) const {
  out->number(is_idle()).number(tasks_ended_).number(counts_).number(idle_.deadline_ns).number(idle_.weak_deadline_ns);
  out->number(idle_.polls).number(idle_.now_ns).number(idle_.in_real_time);
}

HostEngine::Heard HostEngine::read_idle(WireReader* in) {
  Heard heard;
  heard.idle = in->number<bool>();
  heard.ended = in->number<bool>();
  heard.counts = in->number<Counts>();
  heard.deadline_ns = in->number<int64_t>();
  heard.weak_deadline_ns = in->number<int64_t>();
  heard.polls = in->number<bool>();
  heard.now_ns = in->number<int64_t>();
  heard.in_real_time = in->number<bool>();
  return heard;
}

void HostEngine::tell_idle() {
  told_counts_ = counts_;
  WireWriter out = message(Kind::kIdle);
  write_idle(&out);
  send(0, std::make_shared<const std::string>(out.take()));
}

void HostEngine::handle_stuck(Kind kind, int from, WireReader* in) {
  switch (kind) {
    case Kind::kIdle:
      heard_[static_cast<size_t>(from)] = read_idle(in);
      // Somebody has moved: what passed before counts all the same.
      if (quiet_since_ns_ != 0)
        quiet_before_ns_ += std::min(monotonic_ns() - std::exchange(quiet_since_ns_, 0), kRealPassNs);
      return look_for_quiet();
    case Kind::kProbe: {
      WireWriter out = message(Kind::kProbed);
      out.number(in->number<uint64_t>());
      write_idle(&out);
      if (!is_idle()) told_ = false;
      return send(0, std::make_shared<const std::string>(out.take()));
    }
    case Kind::kProbed: {
      if (in->number<uint64_t>() != probe_ || !probing_) return;
      // Later than any kIdle of that process that has come.
      heard_[static_cast<size_t>(from)] = probed_[static_cast<size_t>(from)] = read_idle(in);
      if (++answers_ < processes_) return;
      probing_ = false;
      return decide();
    }
    case Kind::kEndless: {
      const auto kind = in->number<ErrorKind>();
      if (!stuck_) all_end(kind, in->text());
      return;
    }
    case Kind::kPass:
    case Kind::kStuck: {
      gathering_ = true;
      const auto number = in->number<uint64_t>();
      const int64_t at_ns = kind == Kind::kPass ? in->number<int64_t>() : Deadline::kNever;
      return deliver([=, this] { begin_gathering(number, at_ns); });
    }
    // Bytes of a view: the steps outlive it.
    case Kind::kArrived:
      return deliver(
          [this, from, number = in->number<uint64_t>(), bytes = in->text()] { read_arrived(from, number, bytes); });
    case Kind::kWaits:
      return deliver(
          [this, from, number = in->number<uint64_t>(), bytes = in->text()] { read_waits_of(from, number, bytes); });
    case Kind::kRanks:
      return deliver([this, number = in->number<uint64_t>(), bytes = in->text()] { read_ranks_of(number, bytes); });
    default:
      end_job(absl::StrCat("messages between the processes: one of process ", from, " is of kind ",
                           static_cast<int>(kind)));
  }
}

// Process 0: all have said that no rank of theirs can move, and nothing was on its way then.
void HostEngine::look_for_quiet() {
  if (probing_ || stuck_) return;
  Counts all;
  for (const Heard& heard : heard_) {
    if (!heard.idle) return;
    all.sent += heard.counts.sent;
    all.received += heard.counts.received;
  }
  if (all.sent != all.received) return;
  probing_ = true;
  answers_ = 0;
  for (size_t process = 0; process < heard_.size(); ++process) before_[process] = heard_[process].counts;
  WireWriter out = message(Kind::kProbe);
  out.number(++probe_);
  const auto bytes = std::make_shared<const std::string>(out.take());
  for (int process = 0; process < processes_; ++process) send(process, bytes);
}

// All are as they were: nobody has moved since, and nobody will.
void HostEngine::decide() {
  int64_t own_ns = Deadline::kNever;
  int64_t weak_ns = Deadline::kNever;
  int64_t latest_ns = 0;
  bool polls = false;
  bool in_real_time = false;
  bool same = true;
  bool ended = true;
  Counts all;
  for (size_t process = 0; process < heard_.size(); ++process) {
    const Heard& now = probed_[process];
    same = same && now.idle && now.counts == before_[process];
    ended = ended && now.ended;
    own_ns = std::min(own_ns, now.deadline_ns);
    weak_ns = std::min(weak_ns, now.weak_deadline_ns);
    latest_ns = std::max(latest_ns, now.now_ns);
    polls = polls || now.polls;
    in_real_time = in_real_time || now.in_real_time;
    all.sent += now.counts.sent;
    all.received += now.counts.received;
  }
  if (!same) return look_for_quiet();  // all may have said so again meanwhile
  if (in_real_time && !ended) return pass_real_time(latest_ns, std::min(own_ns, weak_ns));
  quiet_since_ns_ = quiet_before_ns_ = 0;
  for (Heard& heard : heard_) heard.idle = false;
  if (ended) {
    stuck_ = true;  // nothing is looked for any more
    return send_all(message(Kind::kOver).take());
  }
  // Nobody sleeps, but a task may poll until some time has passed.
  if (own_ns == Deadline::kNever && polls) {
    const int64_t real_ns = monotonic_ns();
    if (all != polled_ || polling_since_ns_ == 0) polling_since_ns_ = real_ns;
    polled_ = all;
    if (real_ns - polling_since_ns_ < absl::ToInt64Nanoseconds(world_->options().stuck_after)) {
      own_ns = latest_ns + kPassNs;
      weak_ns = Deadline::kNever;
    }
  } else {
    polling_since_ns_ = 0;
  }
  if (own_ns == Deadline::kNever) {
    if (!polls) return all_end(ErrorKind::kDeadlock, kNoRankCanMove);
    return all_end(ErrorKind::kTimeout, absl::StrCat("stuck for ", absl::FormatDuration(world_->options().stuck_after),
                                                     " of real time: all that can run only poll"));
  }
  WireWriter out = message(Kind::kPass);
  out.number(++gathering_number_).number(std::min(own_ns, weak_ns));
  send_all(out.take());
}

void HostEngine::pass_real_time(int64_t now_ns, int64_t next_ns) {
  const int64_t real_ns = monotonic_ns();
  if (quiet_since_ns_ == 0) quiet_since_ns_ = real_ns;
  const int64_t left_ns = next_ns == Deadline::kNever ? kRealPassNs : std::max<int64_t>(next_ns - now_ns, 0);
  const int64_t look_at_ns = quiet_since_ns_ - quiet_before_ns_ + std::min(left_ns, kRealPassNs);
  if (real_ns < look_at_ns) {
    look_again_ns_ = look_at_ns;
    return;
  }
  const int64_t passed_ns = std::min(real_ns - quiet_since_ns_ + quiet_before_ns_, left_ns);
  quiet_since_ns_ = real_ns;  // what it takes to tell all counts, too
  quiet_before_ns_ = 0;
  for (Heard& heard : heard_) heard.idle = false;
  WireWriter out = message(Kind::kPass);
  out.number(++gathering_number_).number(now_ns + passed_ns);
  send_all(out.take());
}

void HostEngine::all_end(ErrorKind kind, std::string headline) {
  stuck_ = true;
  end_kind_ = kind;
  headline_ = std::move(headline);
  WireWriter out = message(Kind::kStuck);
  out.number(++gathering_number_);
  send_all(out.take());
}

void HostEngine::send_all(std::string message) {
  const auto bytes = std::make_shared<const std::string>(std::move(message));
  for (int process = 0; process < processes_; ++process) send(process, bytes);
}

// ---- what all tell each other before time passes or a report is written

HostReport HostEngine::empty_report() const {
  return HostReport(world_, {.first = first_here(), .count = ranks_here()}, process_, processes_);
}

HostEngine::Gathering& HostEngine::gathering(uint64_t number) {
  return gatherings_.try_emplace(number, Gathering{.due = {}, .report = empty_report()}).first->second;
}

void HostEngine::tell_all(Kind kind, uint64_t number, std::string_view bytes) {
  WireWriter out = message(kind);
  out.number(number).text(bytes);
  OrderedMutexLock lock(&mu_);
  send_all(out.take());
}

void HostEngine::begin_gathering(uint64_t number, int64_t pass_at_ns) {
  Gathering& gathering = this->gathering(number);
  gathering.pass_at_ns = pass_at_ns;
  const std::vector<Task*> due = pass_at_ns != Deadline::kNever ? scheduler_->due_by(pass_at_ns) : std::vector<Task*>();
  gathering.due.insert(due.begin(), due.end());
  WireWriter body;
  body.number(pass_at_ns == Deadline::kNever || !due.empty());
  body.number(static_cast<uint32_t>(groups_.size()));
  for (const auto& [key, group] : groups_) {
    WireWriter calls;
    group->write_arrived(&calls);
    body.text(key).text(calls.bytes());
  }
  // Ranks that have ended, for those that wait for them.
  std::map<std::string, std::vector<int>> ended;
  for (int rank = first_here(); rank < first_here() + ranks_here(); ++rank) {
    if (std::string how = world_->ended_text(rank); !how.empty()) ended[std::move(how)].push_back(rank);
  }
  body.number(static_cast<uint32_t>(ended.size()));
  for (const auto& [how, ranks] : ended) {
    body.number(how == "returned").text(how).number(static_cast<uint32_t>(ranks.size()));
    for (const int rank : ranks) body.number(rank);
  }
  write_store_waits(gathering.due, &body);
  tell_all(Kind::kArrived, number, body.bytes());
}

// Process 0: what the calls of others on the store wait for.
void HostEngine::write_store_waits(const std::set<const Task*>& due, WireWriter* out) const {
  WireWriter waits;
  uint32_t told = 0;
  for (const auto& [call, task] : served_) {
    if (task->state != Task::State::kParked) continue;
    std::vector<int> ranks;
    if (task->site.waits_for != nullptr) task->site.waits_for->append_ranks(&ranks);
    waits.number(call.first).number(call.second).number(due.contains(task)).text(task->site.detail);
    waits.number(static_cast<uint32_t>(ranks.size()));
    for (const int rank : ranks) waits.number(rank);
    ++told;
  }
  out->number(told).text(waits.bytes());
}

void HostEngine::read_store_waits(Gathering& gathering, WireReader* in) {
  auto left = in->number<uint32_t>();
  const std::string bytes = in->text();
  for (WireReader waits(bytes); left > 0 && waits.ok(); --left) {
    const auto process = waits.number<int>();
    const auto at = store_waits_.find(waits.number<uint64_t>());
    const bool is_due = waits.number<bool>();
    std::string detail = waits.text();
    std::vector<int> ranks;
    for (auto more = waits.number<uint32_t>(); more > 0 && waits.ok(); --more) ranks.push_back(waits.number<int>());
    if (process != process_ || at == store_waits_.end()) continue;
    StoreWait& wait = *at->second;
    if (is_due) gathering.due.insert(wait.task);
    wait.detail = std::move(detail);
    wait.ranks = std::move(ranks);
    wait.task->site.detail = wait.detail;
    wait.task->site.waits_for = &wait;
  }
}

// Which calls the ranks of another process have come to, and which of its ranks have ended.
void HostEngine::read_arrived(int from, uint64_t number, const std::string& bytes) {
  Gathering& gathering = this->gathering(number);
  WireReader in(bytes);
  gathering.waits_end = in.number<bool>() || gathering.waits_end;
  for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) {
    const std::string key = in.text();
    const std::string calls = in.text();
    WireReader of_group(calls);
    if (const auto at = groups_.find(key); at != groups_.end() && from != process_) at->second->read_arrived(&of_group);
  }
  for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) {
    using State = RunReport::Outcome::State;
    RunReport::Outcome how;
    how.state = in.number<bool>() ? State::kReturned : State::kStopped;
    how.text = in.text();
    for (auto ranks = in.number<uint32_t>(); ranks > 0 && in.ok(); --ranks) {
      const auto rank = in.number<int>();
      if (from != process_) world_->ended_elsewhere(rank, how);
    }
  }
  read_store_waits(gathering, &in);
  if (++gathering.arrived < processes_) return;
  if (gathering.waits_end) return tell_waits(number);
  let_time_pass(number);
}

void HostEngine::tell_waits(uint64_t number) {
  const Gathering& gathering = this->gathering(number);
  const bool ends = gathering.pass_at_ns == Deadline::kNever;
  DeterministicScheduler::Stopped here = scheduler_->stopped_here();
  ToldWaits told;
  if (ends) {
    told.cause = cause_of(here.waiting);
    told.moving = std::move(here.moving);
  }
  // A report tells of ranks that have ended, a Timeout of those that have not.
  std::vector<int> awaited;
  for (const Task* task : here.waiting) {
    if (task->site.waits_for != nullptr && (ends || gathering.due.contains(task)))
      task->site.waits_for->append_ranks(&awaited);
  }
  std::set<int> asked(awaited.begin(), awaited.end());
  std::erase_if(asked, [&](int rank) { return is_here(rank) || world_->ended_text(rank).empty() == ends; });
  told.asked.assign(asked.begin(), std::next(asked.begin(), static_cast<int>(std::min(asked.size(), kMostAsked))));
  // Waits that end together are not among those that one of them finds.
  std::erase_if(here.waiting, [&](const Task* task) { return gathering.due.contains(task); });
  RankFacts facts{.ended = [this](int rank) { return world_->ended_text(rank); }, .last_calls = nullptr};
  WaitTable table(facts);
  for (const Task* task : here.waiting) table.add(wait_part(*task));
  told.parts = table.parts();
  WireWriter body;
  write_waits(told, &body);
  tell_all(Kind::kWaits, number, body.bytes());
}

void HostEngine::read_waits_of(int from, uint64_t number, const std::string& bytes) {
  Gathering& gathering = this->gathering(number);
  WireReader in(bytes);
  gathering.report.add_waits(from, read_waits(&in));
  if (++gathering.waits < processes_) return;
  WireWriter body;
  gathering.report.write_ranks(&body);
  tell_all(Kind::kRanks, number, body.bytes());
}

// With the last process time passes, or process 0 ends the run.
void HostEngine::read_ranks_of(uint64_t number, const std::string& bytes) {
  Gathering& gathering = this->gathering(number);
  WireReader in(bytes);
  gathering.report.read_ranks(&in);
  if (++gathering.ranks < processes_) return;
  report_.emplace(std::move(gathering.report));
  if (gathering.pass_at_ns != Deadline::kNever) return let_time_pass(number);
  ErrorKind kind = ErrorKind::kDeadlock;
  std::string headline;
  {
    OrderedMutexLock lock(&mu_);
    kind = end_kind_;
    headline = headline_;
  }
  stuck_run_ = {};
  const absl::Status cause = report_->end(kind, headline, &stuck_run_);
  gatherings_.erase(number);
  if (process_ == 0) scheduler_->abort(cause);
}

void HostEngine::let_time_pass(uint64_t number) {
  const int64_t at_ns = gathering(number).pass_at_ns;
  gatherings_.erase(number);
  {
    OrderedMutexLock lock(&mu_);
    gathering_ = false;
  }
  scheduler_->let_time_pass(at_ns);
}

RankTold HostEngine::told_of(int rank) const { return report_.has_value() ? report_->told_of(rank) : RankTold(); }

// ---- max_steps

void HostEngine::endless(ErrorKind kind, const std::string& headline) {
  if (endless_since_ns_ == 0) {
    endless_since_ns_ = monotonic_ns();
    endless_ = make_error(kind, headline);
    WireWriter out = message(Kind::kEndless);
    out.number(kind).text(headline);
    OrderedMutexLock lock(&mu_);
    send(0, std::make_shared<const std::string>(out.take()));
  }
  end_alone_if_due();
}

void HostEngine::end_alone_if_due() {
  if (endless_since_ns_ == 0 || monotonic_ns() - endless_since_ns_ < endless_grace_ns_ || scheduler_->aborted()) return;
  OrderedMutexLock lock(&mu_);
  endless_since_ns_ = Deadline::kNever;
  deliver([this] {
    const DeterministicScheduler::Stopped here = scheduler_->stopped_here();
    scheduler_->abort(
        make_error(error_kind(endless_), message_of(endless_), here.moving, empty_report().lines(here.waiting)));
  });
}

// ---- groups

std::string HostEngine::key_of(const std::shared_ptr<const Group>& group, const GroupOptions& options) {
  const auto at = keys_of_groups_.find(group.get());
  if (at != keys_of_groups_.end()) return at->second.second;
  // Ranks ask for their groups in one order, so that the first here to ask for the n-th finds those before it named.
  std::string key;
  if (options.ranks.empty()) {
    key = absl::StrCat("all ", world_groups_++);
  } else {
    const std::string of = absl::StrCat(absl::StrJoin(options.ranks, ","), " ", options.name);
    key = absl::StrCat("some ", groups_of_[of]++, " ", of);
  }
  keys_of_groups_[group.get()] = {group, key};
  return key;
}

void HostEngine::name_group(const std::shared_ptr<const Group>& group, std::string key) {
  keys_of_groups_[group.get()] = {group, std::move(key)};
}

std::shared_ptr<ProcessGroup> HostEngine::make_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                                      const GroupOptions& options) {
  const std::string key = key_of(group, options);
  std::shared_ptr<HostedGroup>& hosted = groups_[key];
  if (hosted == nullptr) hosted = std::make_shared<HostedGroup>(this, group, key);
  if (hosted->all_here()) return make_threaded_member(rank, group, options);
  std::shared_ptr<ProcessGroup> member = make_threaded_member(rank, group, options, [&] {
    auto core = make_kept<ThreadedGroupCore>(world_, group, hosted);
    hosted->enter(core);
    return core;
  });
  // Messages that came before anybody here had asked for the group.
  if (const auto early = early_.extract(key); !early.empty()) {
    OrderedMutexLock lock(&mu_);
    for (auto& [from, bytes] : early.mapped()) {
      deliver([this, from = from, bytes = std::move(bytes)]() mutable { read_group(from, std::move(bytes)); });
    }
  }
  return member;
}

void HostEngine::read_group(int from, std::string bytes) {
  WireReader in(bytes);
  in.number<Kind>();
  const std::string key = in.text();
  const auto at = groups_.find(key);
  if (at == groups_.end()) {
    early_[key].emplace_back(from, std::move(bytes));
    return;
  }
  at->second->hear(from, bytes, sizeof(Kind) + sizeof(uint64_t) + key.size());
}

// ---- the store

absl::StatusOr<StoreReply> HostEngine::store_call(const StoreCall& call, absl::Duration own_timeout) {
  if (call.op == StoreCall::Op::kWatchKey) return refused_watch(call);
  if (absl::Status fit = fits(call); !fit.ok()) return fit;
  // Unset: the world's, which keeps no stuck run from being a deadlock.
  std::optional<absl::Duration> timeout = call.timeout;
  if (!timeout.has_value() && own_timeout != world_->options().timeout) timeout = own_timeout;
  if (process_ == 0) {
    StoreCall mine = call;
    mine.timeout = timeout;
    return keys_->execute(mine);
  }
  Task* const self = Task::current();
  if (self == nullptr || self->scheduler != scheduler_) {
    return make_error(ErrorKind::kStoreError, "MpiStore: ", sv(call.name()),
                      ": called by a thread of no rank, want a rank's: its process waits for process 0");
  }
  const StoreBarrier* const barrier = call.way.barrier;
  StoreWait wait;
  wait.task = self;
  wait.reply = StoreReply();
  if (barrier != nullptr) {
    wait.detail = quote(barrier->name);
  } else if (!call.keys.empty()) {
    wait.detail = absl::StrCat(call.keys.size() == 1 ? "key " : "keys ", quote_list(call.keys));
  }
  const uint64_t number = ++store_number_;
  store_waits_[number] = &wait;
  WireWriter out = message(Kind::kStoreCall);
  out.number(number).number(self->info.rank).number(timeout.has_value());
  if (timeout.has_value()) out.number(*timeout);
  out.text(written_call(call));
  tell(0, std::move(out));
  while (!wait.done && !scheduler_->aborted()) {
    scheduler_->park(Site{.what = barrier != nullptr ? "store_barrier" : call.name(),
                          .code = call.code,
                          .detail = wait.detail,
                          .waits_for = &wait},
                     Deadline{});
  }
  store_waits_.erase(number);
  if (!wait.done) return scheduler_->abort_cause();
  return std::move(wait.reply);
}

// As a task of its own, which may wait.
void HostEngine::serve_store(int from, uint64_t number, int rank, std::optional<absl::Duration> timeout,
                             std::string call) {
  scheduler_->spawn({.rank = rank, .kind = TaskKind::kHelper}, [this, from, number, timeout, call = std::move(call)] {
    WireWriter out = message(Kind::kStoreReply);
    out.number(number);
    const auto served = served_.try_emplace({from, number}, Task::current()).first;
    const absl::StatusOr<StoreReply> reply = execute_written(*keys_, call, timeout);
    served_.erase(served);
    write_reply(reply, &out);
    tell(from, std::move(out));
  });
}

// ---- ends

void HostEngine::aborted_here(const absl::Status& cause) {
  if (aborted_.exchange(true)) return;
  aborted_ns_.store(monotonic_ns());
  WireWriter out = message(Kind::kAbort);
  write_status(cause, &out);
  const auto bytes = std::make_shared<const std::string>(out.take());
  OrderedMutexLock lock(&mu_);
  causes_[static_cast<size_t>(process_)] = cause;
  for (int process = 0; process < processes_; ++process) {
    if (process != process_) send(process, bytes);
  }
}

void HostEngine::await_all(const char* what, absl::FunctionRef<bool()> done) {
  const int64_t begun_ns = monotonic_ns();
  for (;;) {
    std::vector<int> missing;
    bool drains = false;
    {
      OrderedMutexLock lock(&mu_);
      const bool moved = progress_locked();
      if (done()) return;
      if (moved) continue;
      drains = drained_ > 0;
      for (int process = 0; process < processes_; ++process) {
        if (!has_ended_[static_cast<size_t>(process)]) missing.push_back(process);
      }
    }
    sched_yield();  // this thread has nothing else to do
    const int64_t since_ns = aborted_.load() ? aborted_ns_.load() : drains ? begun_ns : 0;
    if (since_ns == 0 || monotonic_ns() - since_ns < std::max(abort_grace_ns, int64_t{1})) continue;
    std::string cause;
    {
      OrderedMutexLock lock(&mu_);
      cause = abort_text(causes_);
    }
    end_job(absl::StrCat(
        what, missing.empty() ? "" : absl::StrCat("; still running: process ", absl::StrJoin(missing, ", ")), cause));
  }
}

void HostEngine::finish(const std::vector<RunReport::Outcome>& outcomes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  driven_.store(true);  // this thread moves everything now
  over_.store(true);
  parker_.unpark();
  thread_.join();
  {
    OrderedMutexLock lock(&mu_);
    delivered_.clear();
    WireWriter out = message(Kind::kEnded);
    uint32_t told = 0;
    WireWriter body;
    for (int rank = 0; rank < world_size_; ++rank) {
      const RunReport::Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      if (!is_here(rank) && outcome.state != RunReport::Outcome::State::kFailed) continue;
      body.number(rank);
      write_outcome(outcome, &body);
      ++told;
    }
    out.number(told);
    const auto bytes = std::make_shared<const std::string>(absl::StrCat(out.bytes(), body.bytes()));
    for (int process = 0; process < processes_; ++process) send(process, bytes);
  }
  {
    OrderedMutexLock lock(&mu_);
    look_again_ns_ = 0;
    stuck_ = true;  // nothing is looked for any more: no message comes after the last
  }
  const std::string late = absl::StrCat(
      "a rank has not ended ", absl::FormatDuration(absl::Nanoseconds(abort_grace_ns)), " after the run was aborted");
  await_all(late.c_str(), [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_ == processes_; });
  {
    OrderedMutexLock lock(&mu_);
    const auto bytes = std::make_shared<const std::string>(message(Kind::kDrained).take());
    for (int process = 0; process < processes_; ++process) send(process, bytes);
  }
  await_all("messages on their way at the end do not come to an end",
            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return drained_ == processes_ && sent_.empty(); });
  world_->forget_on_abort(on_abort_);
  // A rank that has failed for what another one did says whose doing it was, though that one may have returned.
  std::stable_sort(outcomes_.begin(), outcomes_.end(), [](const auto& a, const auto& b) {
    return a.second.state != RunReport::Outcome::State::kFailed && b.second.state == RunReport::Outcome::State::kFailed;
  });
  for (auto& [rank, outcome] : outcomes_) world_->ended_elsewhere(rank, std::move(outcome));
  cause_ = first_cause(causes_);
  must(MPI_Barrier(comm_), "MPI_Barrier");
  const OrderedMutexLock lock(&mu_);
  MPI_Comm_free(&comm_);
}

}  // namespace rankloom::internal
