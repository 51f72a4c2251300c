#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bridge/torch/device_streams.h"
#include "rankloom/rankloom.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::bridge {

// Functions of Python for the bridge. Set once, when the package is imported; called without the interpreter lock.
struct PythonHooks {
  // Stacks of threads, for a deadlock report.
  std::function<std::string(const std::vector<std::pair<int, uint64_t>>& rank_and_thread)> stacks;
  // Puts the random states of Python's modules aside for one rank and brings out another's.
  std::function<void(int64_t job, int from, int to)> swap_random;
};
PythonHooks& python_hooks();

// How many runs and searches of Python's this process has begun, for RANKLOOM_REPLAY_RUN. A caller that repeats
// a part of the process alone, such as one test, sets it. Thread-safety: all threads.
std::atomic<int>& runs_begun();

struct JobReport {
  RunReport run;
  std::vector<std::string> flight;  // by rank: the last calls, as traces::flight_records() gives them
};

// A world whose ranks are threads of Python. It lives as long as anything of torch's that needs it.
// Thread-safety: all methods.
class Job : public std::enable_shared_from_this<Job> {
 public:
  // `number`: which run of the process this is, from 1. `swap_python_random`: under the baton also numpy's and Python's
  // own random states are the rank's.
  static std::shared_ptr<Job> make(WorldOptions options, int number, bool swap_python_random = false);
  // A run of a search, in the world that the search made. last_report() is not told of it.
  static std::shared_ptr<Job> explored(std::shared_ptr<World> world, bool swap_python_random);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int64_t id() const { return id_; }
  // Which run of the process, from 1; 0: one of a search, which has the number itself.
  int number() const { return number_; }
  World& world() { return *world_; }
  // The store of the job's world, which lives as long as the result.
  std::shared_ptr<rankloom::Store> store() { return {shared_from_this(), &world_->store()}; }
  bool deterministic() { return world_->scheduler().deterministic(); }
  DeviceStreams& device_streams() { return device_streams_; }

  // The calling thread becomes `rank` until detach(), or until it ends.
  void attach(int rank);
  // The calling thread's job, or null; `rank` too if the thread only acts for it (a callback, an adopted thread).
  static std::shared_ptr<Job> current(int* rank);
  // The rank that the calling thread acts for, as one of its job or as a helper of it; null: none.
  static std::shared_ptr<Job> acting(int* rank);
  // The same without the job: {job id, rank}, or {-1, -1}.
  static std::pair<int64_t, int> acts_for();
  // Ends the calling thread's part. `failure`: what the rank's program ended with, unless it is empty.
  static void detach(std::string_view failure);
  // The calling rank failed and will end; the others leave their waits.
  // `text`: "AssertionError: ...", or that of an error which to_torch() made; the run's report has that one's kind.
  void fail(int rank, std::string_view text);
  // Of an error of the core that Python's side of `rank` (-1: unknown) gets as an exception with this text.
  void remember(int rank, const absl::Status& status, std::string text);
  // The calling rank skips its test: so do the others, when they are next in a call.
  void skip(std::string_view reason);
  std::string skip_reason() const;

  // The ranks that are in their own code, with the number of points that each has come to.
  std::map<int, uint64_t> running();
  // Where every rank is that has not left: a line for those in the same state.
  std::string describe();
  // Python's stacks of the ranks' threads.
  std::string stacks() const;

  // {failed, went well}: the calls of `rank` so far that ended in an exception or have done all that they were to do.
  // Neither: timeouts and empty queues, by which a program may poll, and calls that are only begun.
  std::pair<uint64_t, uint64_t> calls(int rank) const {
    return {failed_calls_[static_cast<size_t>(rank)].load(std::memory_order_relaxed),
            good_calls_[static_cast<size_t>(rank)].load(std::memory_order_relaxed)};
  }
  void note_went_well(int rank) { good_calls_[static_cast<size_t>(rank)].fetch_add(1, std::memory_order_relaxed); }
  // Nobody waits for `rank` any longer: with its next error its thread sleeps until the process ends, which would
  // otherwise end it within a call.
  void give_up(int rank) { given_up_[static_cast<size_t>(rank)] = true; }
  // Of an error that is about to become an exception of `rank`'s. `polls`: one by which a program may poll.
  void note_error(int rank, bool polls);

  // To be called when a scheduling point of `rank` is over: the random state becomes that rank's.
  void after_point(int rank) {
    if (swaps_random_ && random_owner_.load(std::memory_order_relaxed) != rank) swap_random(rank);
  }

  // The same of a call that has done all that it was to do.
  void after_call(int rank) {
    note_went_well(rank);
    after_point(rank);
  }

  // A member's handle on a group. Members that make equal groups for the same time meet.
  std::shared_ptr<ProcessGroup> make_group(int rank, const std::string& name, std::vector<int> ranks);

  // The job's ranks of `rank`'s default group, of which new_group() names some; until then, and of the whole world,
  // they are those numbers.
  void set_default_ranks(int rank, std::vector<int> ranks);
  std::vector<int> ranks_of(int rank, absl::Span<const int64_t> in_default) const;

  // Notes that `rank` has come to the monitored barrier called `name`.
  void arrive(const std::string& name, int rank);
  // The ranks that have come there.
  std::set<int> arrived(const std::string& name) const;

  // After the last rank has left. Waits for helpers that outlast their ranks.
  JobReport report();
  std::vector<std::string> flight();

 private:
  struct RandomState;
  Job(WorldOptions options, int number, bool swap_python_random);
  Job(std::shared_ptr<World> world, int number, bool swap_python_random);
  static std::shared_ptr<Job> entered(Job* made);
  void swap_random(int rank);
  void leave(int rank, std::string_view failure);
  std::exception_ptr failure_of(int rank, const std::string& text);
  std::optional<absl::Status> remembered(int rank, std::string_view text) const;

  const int64_t id_;
  const bool swap_python_random_;
  const int number_;
  const std::shared_ptr<World> world_;
  DeviceStreams device_streams_;
  const bool swaps_random_;

  std::vector<std::atomic<uint64_t>> failed_calls_, good_calls_;  // by rank
  std::vector<std::atomic<bool>> given_up_;                       // by rank

  mutable std::mutex mu_;
  std::map<int, uint64_t> threads_;  // rank -> Python's thread identity
  std::map<std::string, std::set<int>> arrived_;
  std::map<int, std::vector<int>> default_ranks_;  // by rank
  std::optional<std::string> skip_reason_;
  int running_ = 0;                         // ranks that have attached and not begun to leave
  int attached_ = 0;                        // ranks that have attached and not left
  std::vector<std::exception_ptr> failed_;  // by rank: what fail() was told
  struct Told {
    std::string text;
    absl::Status status;
  };
  std::vector<std::deque<Told>> told_;  // by rank, and last of no known rank: the last errors that became exceptions

  std::mutex report_mu_;  // held while a report is made: the last rank's thread and the job's owner may ask at once

  std::atomic<int> random_owner_{-1};      // the baton holder writes
  std::atomic<bool> random_over_ = false;  // all ranks have left
  // By rank, and last the state that was there before.
  std::vector<std::shared_ptr<const RandomState>> random_;
};

// The report of the job whose last rank left last, or of the last run of a search.
std::optional<JobReport> last_report();
void set_last_report(JobReport report);

// Throws the torch exception for an error of the core: DistStoreError for stores, DistBackendError for the rest.
// `job`: may be null.
[[noreturn]] void throw_to_torch(const DistError& error, Job* job, CodeSite code = {});
std::exception_ptr to_torch(const DistError& error, Job* job, CodeSite code = {});
// In a handler of what the core threw: the same, and a crash by plan as Python's RankCrashedError, which programs that
// catch an Exception do not catch. `rank`: of the caller, whose random state it is again.
[[noreturn]] void rethrow_to_torch(Job* job, int rank, CodeSite code = {});

}  // namespace rankloom::bridge
