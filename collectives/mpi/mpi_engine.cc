#include "collectives/mpi/mpi_engine.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/mpi/abort_job.h"
#include "collectives/mpi/mpi_calls.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {

int64_t abort_grace_ns = 30'000'000'000;

namespace {

// How often the thread looks: while calls are on their way; a moment after something came; else.
constexpr int64_t kBusyNs = 30'000;
constexpr int64_t kIdleLookNs = 1'000'000;
constexpr int64_t kServingNs = 3'000'000;
constexpr int kTurns = 16;  // between two looks at the clock

}  // namespace

void FinishedWorks::tell() {
  for (auto& [work, status] : works) work->complete(status);
  works.clear();
  if (telling != nullptr) telling->fetch_sub(1, std::memory_order_release);
  if (!abort.ok()) scheduler->abort(abort);
}

MpiEngine::MpiEngine(MPI_Comm processes, bool compares)
    : compares_(compares),
      crowded_(is_crowded(processes)),
      control_(duplicate(processes)),
      base_(duplicate(processes)),
      first_(duplicate(processes)),
      bulk_(duplicate(processes)),
      keys_of_all_(std::make_unique<HashStore>()) {
  MPI_Comm_rank(control_, &rank_);
  MPI_Comm_size(control_, &size_);
  const auto ranks = static_cast<size_t>(size_);
  ended_.resize(ranks);
  outcomes_.resize(ranks);
  causes_.resize(ranks);
}

MpiEngine::~MpiEngine() {
  if (!thread_.joinable()) return;
  over_.store(true);
  wake();
  thread_.join();
}

void MpiEngine::begin(WorldState* world) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  world_ = world;
  finished_.scheduler = &world->scheduler();
  on_abort_ = world->on_abort([this](const absl::Status& cause) { aborted_here(cause); });
  thread_ = std::thread([this] { thread_main(); });
}

// ---- progress

void MpiEngine::thread_main() {
  while (!over_.load()) {
    if (drivers_.load(std::memory_order_relaxed) > 0) {
      parker_.park(monotonic_ns() + kIdleLookNs);
      continue;
    }
    const bool moved = progress();
    if (moved) continue;
    bool soon = false;
    {
      OrderedMutexLock lock(&mu_);
      soon = busy();
    }
    // Unlike Parker::park(), which tries for a moment, a sleep leaves the member to the ranks at once.
    if (parker_.prepare()) parker_.sleep(monotonic_ns() + (soon ? kBusyNs : kIdleLookNs));
  }
}

bool MpiEngine::busy() {
  if (!store_waits_.empty() || !store_calls_.empty() || !sent_.empty() || !making_.empty()) return true;
  if (monotonic_ns() - served_ns_ < kServingNs) return true;
  return std::any_of(members_.begin(), members_.end(), [](const auto& known) { return known.second->busy(); });
}

void MpiEngine::drive(absl::FunctionRef<bool()> done, int64_t limit_ns) {
  drivers_.fetch_add(1, std::memory_order_relaxed);
  const int64_t until_ns = monotonic_ns() + limit_ns;
  for (int i = 1; !done(); ++i) {
    const bool moved = progress();
    if (world_ != nullptr && world_->scheduler().aborted()) break;
    // Also where something moves all the time.
    if (i % kTurns == 0 && monotonic_ns() >= until_ns) break;
    if (!moved && crowded_) sched_yield();
  }
  drivers_.fetch_sub(1, std::memory_order_relaxed);
  if (!done()) wake();
}

bool MpiEngine::progress() {
  FinishedWorks done;
  bool moved = false;
  {
    OrderedMutexLock lock(&mu_);
    moved = progress_locked();
    done = take_finished();
  }
  moved = moved || !done.works.empty();
  done.tell();
  return moved;
}

bool MpiEngine::progress_locked() {
  bool moved = receive_messages();
  const int64_t now_ns = monotonic_ns();
  for (const auto& [key, member] : members_) {
    if (member->busy()) moved = member->progress(now_ns) || moved;
  }
  if (!store_calls_.empty()) moved = serve_store() || moved;
  pass_on_abort();
  if (!sent_.empty()) {
    sent_.remove_if([this](Sent& sent) {
      int done = 0;
      must(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
  }
  return moved;
}

void MpiEngine::append_untold(const Group& group,
                              std::vector<std::shared_ptr<WorkState>>* works) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto add = [&](const std::shared_ptr<WorkState>& work) {
    if (work != nullptr && work->open_group() == &group && !work->is_over()) works->push_back(work);
  };
  for (const auto& [work, status] : finished_.works) add(work);
  for (const std::weak_ptr<WorkState>& work : being_told_) add(work.lock());
}

// ---- messages of engines

void MpiEngine::must(int code, const char* call) {
  if (code != MPI_SUCCESS) end_job(absl::StrCat("messages between the processes: ", message_of(mpi_error(code, call))));
}

void MpiEngine::tell(int rank, WireWriter message) {
  if (rank == rank_) {
    to_self_.push_back(message.take());
    return;
  }
  Sent& sent = sent_.emplace_back(Sent{.request = MPI_REQUEST_NULL, .bytes = message.take()});
  if (sent.bytes.size() > INT_MAX) {
    end_job(absl::StrCat("messages between the processes: one to rank ", rank, " has ", sent.bytes.size(),
                         " bytes, want less than 2^31"));
  }
  must(MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, rank, 0, control_, &sent.request),
       "MPI_Isend");
}

void MpiEngine::tell_all(const WireWriter& message) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) tell(rank, message);
  }
}

bool MpiEngine::receive_messages() {
  bool moved = false;
  while (!to_self_.empty()) {
    const std::string bytes = std::move(to_self_.front());
    to_self_.pop_front();
    handle(rank_, bytes);
    moved = true;
  }
  for (int taken = 0; taken < kMostMessages; ++taken) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    must(MPI_Improbe(MPI_ANY_SOURCE, 0, control_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return moved;
    int size = 0;
    must(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    std::string bytes(static_cast<size_t>(size), '\0');
    must(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    handle(status.MPI_SOURCE, bytes);
    moved = true;
  }
  return moved;
}

void MpiEngine::handle(int from, std::string_view bytes) {
  WireReader in(bytes);
  const auto kind = in.number<Kind>();
  switch (kind) {
    case Kind::kGroupFailed:
    case Kind::kAsk:
    case Kind::kAnswer:
    case Kind::kStuck:
    case Kind::kNothing:
    case Kind::kReceived:
      handle_group(kind, from, &in);
      break;
    case Kind::kWant:
    case Kind::kMake:
    case Kind::kMade:
      handle_communicators(kind, &in);
      break;
    case Kind::kStoreCall:
    case Kind::kStoreReply:
      served_ns_ = monotonic_ns();
      handle_store(kind, from, &in);
      break;
    case Kind::kAbort:
    case Kind::kEnded:
    case Kind::kBlamed:
    case Kind::kDrain:
    case Kind::kDrained:
      handle_end(kind, from, &in);
      break;
  }
  if (in.ok()) return;
  end_job(absl::StrCat("messages between the processes: one of rank ", from, " ends early, at ", bytes.size(),
                       " bytes, kind ", static_cast<int>(kind)));
}

MpiMember* MpiEngine::known(const std::string& key) {
  const auto at = members_.find(key);
  return at != members_.end() ? at->second.get() : nullptr;
}

void MpiEngine::handle_group(Kind kind, int from, WireReader* in) {
  switch (kind) {
    case Kind::kGroupFailed: {
      MpiMember* const member = known(in->text());
      const absl::Status cause = read_status(in);
      if (member != nullptr) member->fail(cause, /*told=*/true);
      return;
    }
    case Kind::kAsk: {
      const auto number = in->number<uint64_t>();
      const MpiMember* const member = known(in->text());
      WireWriter answer = message(Kind::kAnswer);
      answer.number(number).number<int64_t>(member != nullptr ? member->calls() : -1);
      write_ints(member != nullptr ? member->sends_to(from) : std::vector<int32_t>(), &answer);
      return tell(from, std::move(answer));
    }
    case Kind::kAnswer: {
      const auto number = in->number<uint64_t>();
      const auto calls = in->number<int64_t>();
      std::vector<int32_t> sends = read_ints(in);
      if (const auto question = answers_.find(number); question != answers_.end())
        question->second[from] = {.calls = calls, .sends = std::move(sends), .answered = true};
      return;
    }
    case Kind::kStuck: {
      const std::string key = in->text();
      const auto call = in->number<int64_t>();
      MpiMember* const member = known(key);
      // Others may need this member for the communicator only: it comes though its rank makes no call, or has ended.
      if (member != nullptr) member->want();
      const bool ended = ended_[static_cast<size_t>(rank_)];
      if (member != nullptr && ended) member->close_up_to(call);
      WireWriter nothing = message(Kind::kNothing);
      nothing.text(key).number(member == nullptr && ended);
      write_ints(member != nullptr ? member->sends_to(from) : std::vector<int32_t>(), &nothing);
      return tell(from, std::move(nothing));
    }
    case Kind::kReceived: {
      MpiMember* const member = known(in->text());
      const auto send = in->number<int64_t>();
      const bool wanted = in->number<bool>();
      if (member != nullptr) member->received(send, wanted, read_status(in));
      return;
    }
    default: {  // kNothing
      MpiMember* const member = known(in->text());
      const bool unknown = in->number<bool>();
      const std::vector<int32_t> tags = read_ints(in);
      if (member != nullptr) member->nothing_from(from, unknown, tags);
      return;
    }
  }
}

void MpiEngine::tell_received(const MpiMember& member, int rank, int64_t send, bool wanted,
                              const absl::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  WireWriter received = message(Kind::kReceived);
  received.text(member.key()).number(send).number(wanted);
  write_status(status, &received);
  tell(rank, std::move(received));
}

void MpiEngine::tell_stuck(const MpiMember& member, int rank, int64_t call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  WireWriter stuck = message(Kind::kStuck);
  stuck.text(member.key()).number(call);
  tell(rank, std::move(stuck));
}

void MpiEngine::tell_group_failed(const MpiMember& member, const absl::Status& cause) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  WireWriter failed = message(Kind::kGroupFailed);
  failed.text(member.key());
  write_status(cause, &failed);
  for (int other = 0; other < member.size(); ++other) {
    if (other != member.rank()) tell(member.global_rank(other), failed);
  }
}

std::map<int, MpiEngine::Position> MpiEngine::ask(const std::string& key, const std::vector<int>& ranks) {
  const uint64_t number = locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const uint64_t asked = ++asked_;
    WireWriter question = message(Kind::kAsk);
    question.number(asked).text(key);
    for (const int rank : ranks) {
      answers_[asked][rank] = {};
      tell(rank, question);
    }
    return asked;
  });
  const auto all = [this, number] {
    OrderedMutexLock lock(&mu_);
    const std::map<int, Position>& mine = answers_[number];
    return std::all_of(mine.begin(), mine.end(), [](const auto& answer) { return answer.second.answered; });
  };
  // A run that was aborted is no reason not to ask.
  for (const int64_t until_ns = monotonic_ns() + 1'000'000'000; !all() && monotonic_ns() < until_ns;) {
    if (!progress()) sched_yield();
  }
  OrderedMutexLock lock(&mu_);
  std::map<int, Position> mine = std::move(answers_[number]);
  answers_.erase(number);
  return mine;
}

std::vector<int> MpiEngine::ended_of(const std::vector<int>& ranks) {
  OrderedMutexLock lock(&mu_);
  std::vector<int> gone;
  for (const int rank : ranks) {
    if (ended_[static_cast<size_t>(rank)]) gone.push_back(rank);
  }
  return gone;
}

// ---- communicators
//
// MPI has no nonblocking call that makes one for some processes, and blocking ones in different orders would wait for
// each other. So rank 0 has them made one at a time, each when all its members want it.

void MpiEngine::want_communicator(const MpiMember& member) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  WireWriter want = message(Kind::kWant);
  want.text(member.key()).number(member.size());
  for (int other = 0; other < member.size(); ++other) want.number(member.global_rank(other));
  tell(0, std::move(want));
}

void MpiEngine::handle_communicators(Kind kind, WireReader* in) {
  const std::string key = in->text();
  if (kind == Kind::kWant) {
    // Processes go on to their end once they know that all are through, and would not come to make it.
    if (draining_ == size_) return;
    Wanted& wanted = wanted_[key];
    const int size = in->number<int>();
    wanted.ranks.clear();
    for (int i = 0; i < size; ++i) wanted.ranks.push_back(in->number<int>());
    if (++wanted.came < wanted.ranks.size()) return;
    ready_.push_back(key);
    if (making_.empty()) make_next_communicator();
    return;
  }
  if (kind == Kind::kMade) {
    if (--made_ > 0) return;
    wanted_.erase(making_);
    making_.clear();
    return make_next_communicator();
  }
  const int tag = in->number<int>();
  MpiMember* const member = known(key);
  if (member == nullptr) end_job(absl::StrCat("a communicator is made for a group that is not known here: ", key));
  std::vector<int> ranks;
  for (int other = 0; other < member->size(); ++other) ranks.push_back(member->global_rank(other));
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_group(base_, &all);
  MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
  const absl::Status status = mpi_status(MPI_Comm_create_group(base_, some, tag, &made), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  if (status.ok()) {
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    member->set_communicator(made);
  } else {
    member->fail(status, /*told=*/false);
  }
  tell(0, message(Kind::kMade).text(key));
}

void MpiEngine::make_next_communicator() {
  if (ready_.empty()) return;
  making_ = std::move(ready_.front());
  ready_.pop_front();
  const Wanted& wanted = wanted_[making_];
  made_ = wanted.ranks.size();
  made_tag_ = (made_tag_ + 1) & 0x3fff;
  for (const int rank : wanted.ranks) {
    WireWriter make = message(Kind::kMake);
    make.text(making_).number(made_tag_);
    tell(rank, std::move(make));
  }
}

std::string MpiEngine::key_of(const Group& group, const GroupOptions& options) {
  if (const auto at = keys_.find(&group); at != keys_.end()) return at->second.second;
  if (options.ranks.empty()) return absl::StrCat("all ", world_groups_++);
  const std::string of = absl::StrCat(absl::StrJoin(options.ranks, ","), " ", options.name);
  return absl::StrCat("some ", groups_of_[of]++, " ", of);
}

std::shared_ptr<MpiMember> MpiEngine::member_of(const std::shared_ptr<const Group>& group, const GroupOptions& options,
                                                MakeMember make) {
  return locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const std::string key = key_of(*group, options);
    std::shared_ptr<MpiMember>& member = members_[key];
    if (member == nullptr) {
      member = make(key);
      if (key == "all 0" && size_ > 1) member->set_communicator(std::exchange(first_, MPI_COMM_NULL));
    }
    return member;
  });
}

// ---- ends

void MpiEngine::aborted_here(const absl::Status& cause) {
  int none = -1;
  if (!aborted_by_.compare_exchange_strong(none, rank_)) return;
  aborted_ns_.store(monotonic_ns());
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    causes_[static_cast<size_t>(rank_)] = cause;
    WireWriter abort = message(Kind::kAbort);
    write_status(cause, &abort);
    tell_all(abort);
  });
  wake();
}

// Members whose calls differ all get their Mismatch, though the first to have it may have ended the run meanwhile.
void MpiEngine::pass_on_abort() {
  if (held_abort_.ok()) return;
  const auto describing = [](const auto& known) { return known.second->describing(); };
  if (std::any_of(members_.begin(), members_.end(), describing)) return;
  finished_.abort = std::exchange(held_abort_, absl::OkStatus());
}

void MpiEngine::handle_end(Kind kind, int from, WireReader* in) {
  const auto sender = static_cast<size_t>(from);
  switch (kind) {
    case Kind::kAbort: {
      causes_[sender] = read_status(in);
      int none = -1;
      if (!aborted_by_.compare_exchange_strong(none, from)) return;
      aborted_ns_.store(monotonic_ns());
      held_abort_ = causes_[sender];
      return pass_on_abort();
    }
    case Kind::kBlamed: {
      const auto rank = in->number<int>();
      RunReport::Outcome outcome = read_outcome(rank, in);
      Blamed& blamed = blamed_[rank];
      if (blamed.by < 0 || from < blamed.by) blamed = {.by = from, .outcome = std::move(outcome)};
      return;
    }
    case Kind::kEnded: {
      RunReport::Outcome& outcome = outcomes_[sender];
      outcome = read_outcome(from, in);
      if (!ended_[sender]) ++ended_count_;
      ended_[sender] = true;
      if (from != rank_) world_->ended_elsewhere(from, outcome);
      return;
    }
    case Kind::kDrain: {
      const auto groups = in->number<int>();
      for (int i = 0; i < groups && in->ok(); ++i) {
        int64_t& most = most_calls_[in->text()];
        most = std::max(most, in->number<int64_t>());
      }
      ++draining_;
      return;
    }
    default:
      ++drained_;
      return;
  }
}

void MpiEngine::await_all(const char* what, int64_t limit_ns, absl::FunctionRef<bool()> done) {
  const int64_t begun_ns = monotonic_ns();
  for (int turn = 1;; turn = turn % kTurns + 1) {
    std::vector<int> missing;
    std::string cause;
    if (locked([&] { return done(); })) return;
    if (progress() && turn < kTurns) continue;
    const int64_t now_ns = monotonic_ns();
    const int64_t since_ns = limit_ns > 0 ? begun_ns : aborted_ns_.load();
    if (since_ns != 0 && now_ns - since_ns > std::max(limit_ns, abort_grace_ns)) {
      locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        for (int rank = 0; rank < size_; ++rank) {
          if (!ended_[static_cast<size_t>(rank)]) missing.push_back(rank);
        }
        cause = abort_text(causes_);
      });
      end_job(absl::StrCat(what, missing.empty() ? "" : absl::StrCat("; still running: ", short_ranks_text(missing)),
                           cause));
    }
    sched_yield();  // this thread has nothing else to do
  }
}

void MpiEngine::end_job(const std::string& why) {
  std::fprintf(stderr, "rankloom: rank %d ends the job: %s\n", rank_, why.c_str());
  abort_job();
}

// A rank that has failed for what another one did says whose doing it was, though that one may have returned.
void MpiEngine::merge_outcomes() {
  for (auto& [rank, blamed] : blamed_) {
    RunReport::Outcome& own = outcomes_[static_cast<size_t>(rank)];
    if (own.state == RunReport::Outcome::State::kFailed) continue;
    own = std::move(blamed.outcome);
    world_->ended_elsewhere(rank, own);
  }
}

namespace {

// Messages that are alike share a note, under the first.
std::vector<std::string> notes_of(const std::vector<MpiMember::Leftover>& leftovers) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < leftovers.size(); ++i) {
    const auto alike = [&](const MpiMember::Leftover& other) { return other.what == leftovers[i].what; };
    if (std::any_of(leftovers.begin(), leftovers.begin() + static_cast<std::ptrdiff_t>(i), alike)) continue;
    const auto more = std::count_if(leftovers.begin(), leftovers.end(), alike) - 1;
    const std::string others =
        more > 0 ? absl::StrCat(", nor ", more == 1 ? "was the one" : absl::StrCat("were the ", more), " after it")
                 : "";
    notes.push_back(absl::StrCat(leftovers[i].what, others, leftovers[i].place));
  }
  return notes;
}

}  // namespace

void MpiEngine::tell_outcomes(const std::vector<RunReport::Outcome>& outcomes) {
  const auto own = static_cast<size_t>(rank_);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (rank == own || outcomes[rank].state != RunReport::Outcome::State::kFailed) continue;
    WireWriter blamed = message(Kind::kBlamed);
    blamed.number(static_cast<int>(rank));
    write_outcome(outcomes[rank], &blamed);
    tell_all(blamed);
    to_self_.push_back(blamed.take());
  }
  WireWriter ended = message(Kind::kEnded);
  write_outcome(outcomes[own], &ended);
  tell_all(ended);
  ended_[own] = true;
  outcomes_[own] = outcomes[own];
  ++ended_count_;
}

// Nobody makes calls any more. All processes bring to an end what any of them has begun.
void MpiEngine::drain(std::vector<MpiMember::Leftover>* leftovers) {
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [key, member] : members_) member->tell_unmatched(aborted_by_.load() >= 0, leftovers);
    const absl::Status over = make_error(ErrorKind::kAborted, "the run has ended");
    for (const auto& [key, member] : members_) member->fail(over, /*told=*/true);
    WireWriter drain = message(Kind::kDrain);
    int groups = 0;
    for (const auto& [key, member] : members_) groups += member->has_communicator() ? 1 : 0;
    drain.number(groups);
    for (const auto& [key, member] : members_) {
      if (member->has_communicator()) drain.text(key).number(member->calls());
    }
    tell_all(drain);
    to_self_.push_back(drain.take());
  });
  await_all("calls on their way at the end do not come to an end", kDrainNs,
            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return draining_ == size_; });
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [key, member] : members_) {
      if (member->has_communicator()) member->close_up_to(most_calls_[key]);
    }
  });
  const auto quiet = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    bool busy = !sent_.empty() || !to_self_.empty() || !making_.empty();
    for (const auto& [key, member] : members_) {
      if (!member->has_communicator()) continue;
      while (member->discard(leftovers)) {
      }
      busy = busy || member->busy();
    }
    return !busy;
  };
  await_all("calls on their way at the end do not come to an end", kDrainNs, quiet);
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { tell_all(message(Kind::kDrained)), ++drained_; });
  await_all("messages on their way at the end do not come to an end", kDrainNs,
            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return quiet() && drained_ == size_; });
}

void MpiEngine::finish(const std::vector<RunReport::Outcome>& outcomes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  drivers_.fetch_add(1);  // from here on this thread moves everything
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { tell_outcomes(outcomes); });
  const std::string late = absl::StrCat(
      "a rank has not ended ", absl::FormatDuration(absl::Nanoseconds(abort_grace_ns)), " after the run was aborted");
  await_all(late.c_str(), 0, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_count_ == size_; });
  std::vector<MpiMember::Leftover> leftovers;
  drain(&leftovers);
  over_.store(true);
  wake();
  thread_.join();
  world_->forget_on_abort(on_abort_);
  // No other thread is left.
  merge_outcomes();
  discarded_ = notes_of(leftovers);
  cause_ = first_cause(causes_);
  must(MPI_Barrier(control_), "MPI_Barrier");
  for (const auto& [key, member] : members_) member->free_communicator();
  for (MPI_Comm* comm : {&control_, &base_, &first_, &bulk_}) {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

}  // namespace rankloom::internal
