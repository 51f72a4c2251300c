#include "harness/mpi/mpi_team.h"

#include <unistd.h>

#include <cstdio>
#include <deque>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/mpi/mpi_world.h"
#include "sim/base/lock_order.h"
#include "sim/base/task.h"

namespace rankloom::internal {

int64_t grace_of_runs_ns = 30'000'000'000;

std::string grace_text() { return absl::FormatDuration(absl::Nanoseconds(grace_of_runs_ns)); }

// The channel of the search whose runs this thread makes.
thread_local MpiChannel* searching = nullptr;

// A rank that calls exit() on a fiber has the objects of its thread destroyed first, and its run would go wrong in
// another way. Made on the thread after those of its fibers, so that it is destroyed before. A process that a run has
// forked is none of the job's.
struct EndsJobAtExit {
  ~EndsJobAtExit() {
    if (searching != nullptr && getpid() == process)
      searching->end_job("exit() was called while explore() runs, want it after that");
  }
  const pid_t process = getpid();
};

// The thread of process 0 that searches, and the messages between the two.
class MpiTeam::OwnThread final : private LeaderLink {
 public:
  // `leader`: of the thread that leads, unparked when there is something to take().
  OwnThread(std::function<void(LeaderLink*)> work, MpiChannel* channel, Parker* leader)
      : channel_(*channel), leader_(*leader), thread_([this, work = std::move(work)] {
          work(this);
          {
            OrderedMutexLock lock(&mu_);
            ended_ = true;
          }
          leader_.unpark();
        }) {}
  ~OwnThread() override { thread_.join(); }

  // --- for the thread that leads

  void give(std::string_view order) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      OrderedMutexLock lock(&mu_);
      orders_.emplace_back(order);
    }
    parker_.unpark();
  }
  std::optional<std::string> take() ABSL_LOCKS_EXCLUDED(mu_) {
    OrderedMutexLock lock(&mu_);
    return take_first(&news_);
  }
  // False: the thread has not ended at that time.
  bool end(int64_t end_ns) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      OrderedMutexLock lock(&mu_);
      over_ = true;
    }
    parker_.unpark();
    for (;;) {
      {
        OrderedMutexLock lock(&mu_);
        if (ended_) return true;
      }
      if (monotonic_ns() >= end_ns) return false;
      leader_.park(end_ns);
    }
  }

 private:
  static std::optional<std::string> take_first(std::deque<std::string>* queue) {
    if (queue->empty()) return std::nullopt;
    std::string first = std::move(queue->front());
    queue->pop_front();
    return first;
  }

  // --- LeaderLink, for the thread that searches

  bool send(std::string_view message) override {
    // The first message, a greeting, comes before any run.
    if (std::exchange(greeted_, true)) thread_local const EndsJobAtExit at_exit;
    searching = &channel_;
    {
      OrderedMutexLock lock(&mu_);
      if (over_) return false;
      news_.emplace_back(message);
    }
    leader_.unpark();
    return true;
  }
  std::optional<std::string> receive(bool wait) override {
    for (;;) {
      {
        OrderedMutexLock lock(&mu_);
        std::optional<std::string> order = take_first(&orders_);
        if (order.has_value() || over_ || !wait) return order;
      }
      parker_.park(Deadline::kNever);
    }
  }
  bool gone() const override {
    OrderedMutexLock lock(&mu_);
    return over_;
  }
  void left() override { searching = nullptr; }

  MpiChannel& channel_;
  Parker& leader_;
  Parker parker_;
  bool greeted_ = false;  // of the thread that searches
  mutable OrderedMutex mu_{LockLevel::kMpi};
  std::deque<std::string> orders_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> news_ ABSL_GUARDED_BY(mu_);
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // the last: it uses all others
};

MpiTeam::MpiTeam(MpiChannel* channel) : channel_(*channel), gone_(static_cast<size_t>(channel->size())) {}

MpiTeam::~MpiTeam() { end({}); }

WorkerLinks* MpiTeam::start(std::function<void(LeaderLink*)> work) {
  own_ = std::make_unique<OwnThread>(std::move(work), &channel_, &parker_);
  return this;
}

void MpiTeam::end(const std::string& found) {
  if (own_ == nullptr) return;
  if (!own_->end(monotonic_ns() + grace_of_runs_ns)) {
    if (!found.empty()) std::fprintf(stderr, "%s\n", found.c_str());
    channel_.end_job(absl::StrCat("explore: its run has not ended ", grace_text(), " after the search was over"));
  }
  own_.reset();
}

void MpiTeam::send(int worker, std::string_view message) {
  if (worker == 0) return own_->give(message);
  channel_.send(worker, MpiChannel::Kind::kOrder, message);
}

std::optional<WorkerLinks::Event> MpiTeam::receive(int64_t ns) {
  const int64_t now = monotonic_ns();
  const int64_t end_ns = ns > Deadline::kNever - now ? Deadline::kNever : now + ns;
  for (;;) {
    if (std::optional<std::string> own = own_->take(); own.has_value()) {
      naps_.message_came();
      return Event{.worker = 0, .message = *std::move(own)};
    }
    if (std::optional<MpiChannel::Message> message = channel_.receive(); message.has_value()) {
      naps_.message_came();
      return Event{.worker = message->from, .message = std::move(message->bytes)};
    }
    if (ns == 0 || monotonic_ns() >= end_ns) return std::nullopt;
    naps_.nap(&parker_, end_ns);
  }
}

void MpiTeam::tell_report(std::string_view report, const std::string& text) {
  for (int process = 1; process < channel_.size(); ++process) channel_.send(process, MpiChannel::Kind::kReport, report);
  gone_[0] = true;
  const int64_t end_ns = monotonic_ns() + grace_of_runs_ns;
  naps_.message_came();
  while (absl::c_linear_search(gone_, false)) {
    if (const std::optional<MpiChannel::Message> message = channel_.receive(); message.has_value()) {
      if (message->kind == MpiChannel::Kind::kBye) gone_[static_cast<size_t>(message->from)] = true;
      continue;
    }
    if (monotonic_ns() >= end_ns) {
      std::vector<std::string> missing;
      for (int process = 0; process < channel_.size(); ++process) {
        if (!gone_[static_cast<size_t>(process)]) missing.push_back(channel_.name(process));
      }
      std::fprintf(stderr, "%s\n", text.c_str());
      channel_.end_job(absl::StrCat("explore: a run has not ended ", grace_text(),
                                    " after the search was over: that of ", absl::StrJoin(missing, ", ")));
    }
    naps_.nap(&parker_, end_ns);
  }
}

// --- the other processes

bool MpiLeader::send(std::string_view message) {
  thread_local const EndsJobAtExit at_exit;
  searching = &channel_;
  if (gone()) return false;
  channel_.send(0, MpiChannel::Kind::kNews, message);
  return true;
}

std::optional<std::string> MpiLeader::receive(bool wait) {
  naps_.message_came();
  while (!report_.has_value()) {
    if (std::optional<MpiChannel::Message> message = channel_.receive(); message.has_value()) {
      if (message->kind == MpiChannel::Kind::kOrder) return std::move(message->bytes);
      report_ = std::move(message->bytes);
    } else if (wait) {
      naps_.nap(&parker_, Deadline::kNever);
    } else {
      break;
    }
  }
  return std::nullopt;
}

void MpiLeader::left() { searching = nullptr; }

std::string MpiLeader::report() {
  while (receive(/*wait=*/true).has_value()) {
  }
  return *report_;
}

}  // namespace rankloom::internal
