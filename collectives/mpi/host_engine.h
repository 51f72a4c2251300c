#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/group/group_front.h"
#include "collectives/mpi/host_channel.h"
#include "collectives/mpi/host_report.h"
#include "collectives/mpi/hosted_group.h"
#include "collectives/mpi/wire.h"
#include "rankloom/process_group.h"
#include "rankloom/store.h"
#include "sim/base/lock_order.h"
#include "sim/base/parker.h"
#include "sim/scheduler/deterministic_scheduler.h"
#include "world/world_state.h"

namespace rankloom::internal {

// All that one process of a job does with MPI during a run in which it hosts several ranks, which are fibers: messages
// to the other processes, each about a group, the store, time, or the end of the run. They are carried out on the
// fibers' thread, in steps of its own, in the order in which they came.
// Progress: the fibers' thread itself moves messages while no rank can move; else a thread that looks now and then.
// Stuck: process 0 hears of each that no rank of it can move. When all have said so, as many messages have come as
//   were sent, and a second look finds nothing changed, then nothing can come any more. The run is over, if no task is
//   left anywhere; else time goes on, in all processes to the earliest deadline of any; where there is none, the run is
//   a deadlock. No clock is asked.
// Thread-safety: all methods, but where a comment says who calls.
class HostEngine final : public GroupBackend, public HostChannel {
 public:
  // Collective over `processes`. Process p has the ranks from p * ranks_per_process on.
  // `endless_grace_ns`: how long, in real time, a process that has come to max_steps waits for the others to tell where
  // their ranks are.
  HostEngine(MPI_Comm processes, int world_size, int ranks_per_process, int64_t endless_grace_ns);
  ~HostEngine();
  HostEngine(const HostEngine&) = delete;
  HostEngine& operator=(const HostEngine&) = delete;

  int process() const override { return process_; }
  int processes() const { return processes_; }
  int process_of(int rank) const override { return rank / ranks_per_process_; }
  int first_here() const { return process_ * ranks_per_process_; }
  int ranks_here() const { return std::min(ranks_per_process_, world_size_ - first_here()); }
  WorldState& world() const override { return *world_; }
  RankTold told_of(int rank) const override;

  // Before the run.
  void begin(WorldState* world);
  // After the run: tells the world how the ranks of the others ended, and lets go of MPI. Collective.
  void finish(const std::vector<RunReport::Outcome>& outcomes);
  // After finish(): why the run was aborted, as all processes have it.
  const absl::Status& cause() const { return cause_; }
  // The waits of a run that was stuck, of all processes.
  const StuckRun& stuck_run() const { return stuck_run_; }

  // On the fibers' thread.
  std::shared_ptr<ProcessGroup> make_member(RankState& rank, const std::shared_ptr<const Group>& group,
                                            const GroupOptions& options) override;
  void name_group(const std::shared_ptr<const Group>& group, std::string key) override;

  void tell(int process, WireWriter message) override;
  void tell(const std::vector<int>& processes, WireWriter message) override;

  // The keys are those of process 0. By tasks of the world.
  absl::StatusOr<StoreReply> store_call(const StoreCall& call, absl::Duration own_timeout);
  // Process 0: where the keys are.
  void keep_keys(Store* keys) { keys_ = keys; }

 private:
  using Idle = DeterministicScheduler::Idle;
  struct Sent {
    MPI_Request request;
    std::shared_ptr<const std::string> bytes;
  };
  struct Counts {
    int64_t sent = 0;
    int64_t received = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  struct Heard {
    bool idle = false;
    bool ended = false;         // no task of a rank there is left
    bool in_real_time = false;  // as in Idle
    Counts counts;
    int64_t deadline_ns = 0;
    int64_t weak_deadline_ns = 0;
    bool polls = false;
    int64_t now_ns = 0;
  };

  void must(int code, const char* call);
  void send(int process, std::shared_ptr<const std::string> bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool progress();
  bool progress_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle(int from, std::string bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle_stuck(Kind kind, int from, WireReader* in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A step on the fibers' thread.
  void deliver(absl::AnyInvocable<void()> step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void run_delivered();
  void keep_running();
  void read_group(int from, std::string bytes);
  void thread_main();
  void idle(const Idle& idle);
  bool is_idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void tell_idle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void write_idle(WireWriter* out) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Heard read_idle(WireReader* in);
  void look_for_quiet() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Process 0: nobody moves, but a wait in real time may end. `next_ns`: of the deadlines, from `now_ns` of the world.
  void pass_real_time(int64_t now_ns, int64_t next_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Process 0: the run ends, once all have told where their ranks are.
  void all_end(ErrorKind kind, std::string headline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void send_all(std::string message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The words of all processes to each other before time passes, or a report is written: steps on the fibers' thread.
  struct Gathering {
    int64_t pass_at_ns = 0;  // kNever: a report is written
    std::set<const Task*> due;
    int arrived = 0;  // how many processes have told
    int waits = 0;
    int ranks = 0;
    bool waits_end = false;
    HostReport report;
  };
  HostReport empty_report() const;
  Gathering& gathering(uint64_t number);
  void begin_gathering(uint64_t number, int64_t pass_at_ns);
  void write_store_waits(const std::set<const Task*>& due, WireWriter* out) const;
  void read_store_waits(Gathering& gathering, WireReader* in);
  void read_arrived(int from, uint64_t number, const std::string& bytes);
  void tell_waits(uint64_t number);
  void read_waits_of(int from, uint64_t number, const std::string& bytes);
  void read_ranks_of(uint64_t number, const std::string& bytes);
  void let_time_pass(uint64_t number);
  void tell_all(Kind kind, uint64_t number, std::string_view bytes);
  void endless(ErrorKind kind, const std::string& headline);
  // Of a run that has come to max_steps: another process does not say where its ranks are, which come to no point.
  void end_alone_if_due();
  void aborted_here(const absl::Status& cause);
  void serve_store(int from, uint64_t number, int rank, std::optional<absl::Duration> timeout, std::string call);
  void await_all(const char* what, absl::FunctionRef<bool()> done);
  [[noreturn]] void end_job(const std::string& why);
  std::string key_of(const std::shared_ptr<const Group>& group, const GroupOptions& options);

  OrderedMutex mu_{LockLevel::kMpi};
  WorldState* world_ = nullptr;
  DeterministicScheduler* scheduler_ = nullptr;
  int process_ = 0;
  int processes_ = 1;
  const int world_size_;
  const int ranks_per_process_;
  const int64_t endless_grace_ns_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool crowded_ = false;

  std::list<Sent> sent_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> to_self_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::deque<absl::AnyInvocable<void()>> delivered_ ABSL_GUARDED_BY(mu_);
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;

  // idle
  bool idling_ ABSL_GUARDED_BY(mu_) = false;
  bool tasks_ended_ ABSL_GUARDED_BY(mu_) = false;  // those of ranks here, when this process last began to idle
  Idle idle_ ABSL_GUARDED_BY(mu_);
  std::vector<Heard> heard_ ABSL_GUARDED_BY(mu_);    // process 0: the last kIdle of each
  std::vector<Counts> before_ ABSL_GUARDED_BY(mu_);  // process 0: the counts when the probe began
  std::vector<Heard> probed_ ABSL_GUARDED_BY(mu_);   // process 0: the answers to the probe
  int answers_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t probe_ ABSL_GUARDED_BY(mu_) = 0;  // the number of the last one
  bool probing_ ABSL_GUARDED_BY(mu_) = false;
  bool stuck_ ABSL_GUARDED_BY(mu_) = false;
  ErrorKind end_kind_ ABSL_GUARDED_BY(mu_) = ErrorKind::kDeadlock;  // process 0: of a stuck run
  std::string headline_ ABSL_GUARDED_BY(mu_);
  bool told_ ABSL_GUARDED_BY(mu_) = false;  // process 0 has heard that this one is idle
  Counts told_counts_ ABSL_GUARDED_BY(mu_);
  // Process 0, while a wait in real time may end: real time since which nobody moves, 0: somebody does; how much of it
  // passed before, and has not for the world; and when to ask all again, 0: never.
  int64_t quiet_since_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t quiet_before_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t look_again_ns_ ABSL_GUARDED_BY(mu_) = 0;
  Counts polled_ ABSL_GUARDED_BY(mu_);  // process 0: of all, since when nobody did anything but poll, in real time
  int64_t polling_since_ns_ ABSL_GUARDED_BY(mu_) = 0;
  bool gathering_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t gathering_number_ ABSL_GUARDED_BY(mu_) = 0;  // process 0: of the last one
  // Of the fibers' thread, as all below. One may begin elsewhere before the last one is over here.
  std::map<uint64_t, Gathering> gatherings_;
  std::optional<HostReport> report_;  // of the last waits that ended, for their texts
  StuckRun stuck_run_;
  int64_t endless_since_ns_ = 0;  // real time since which process 0 knows that this one has come to max_steps
  absl::Status endless_;

  // groups: of the fibers' thread
  std::map<std::string, std::shared_ptr<HostedGroup>> groups_;
  std::map<std::string, std::vector<std::pair<int, std::string>>> early_;  // messages for groups that nobody here has
  std::map<const Group*, std::pair<std::shared_ptr<const Group>, std::string>> keys_of_groups_;
  int world_groups_ = 0;
  std::map<std::string, int> groups_of_;

  // the store
  Store* keys_ = nullptr;
  // Of ranks here that wait for an answer, on their stacks. Of the fibers' thread.
  struct StoreWait final : WaitsFor {
    void append_ranks(std::vector<int>* to) const override { to->insert(to->end(), ranks.begin(), ranks.end()); }
    Task* task = nullptr;
    bool done = false;
    absl::StatusOr<StoreReply> reply;
    std::string detail;      // the keys, or the name of a barrier
    std::vector<int> ranks;  // that have not come to the barrier, as process 0 has told
  };
  uint64_t store_number_ = 0;
  std::map<uint64_t, StoreWait*> store_waits_;
  std::map<std::pair<int, uint64_t>, const Task*> served_;  // process 0: the task of each call of another process

  // ends
  std::vector<absl::Status> causes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<int, RunReport::Outcome>> outcomes_ ABSL_GUARDED_BY(mu_);  // of ranks elsewhere, and blamed
  // Of the fibers' thread.
  bool all_over_ = false;  // no task is left anywhere
  Task* keeper_ = nullptr;
  std::vector<bool> has_ended_ ABSL_GUARDED_BY(mu_);
  int ended_ ABSL_GUARDED_BY(mu_) = 0;
  int drained_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> aborted_{false};
  std::atomic<int64_t> aborted_ns_{0};
  int64_t on_abort_ = 0;
  absl::Status cause_;

  std::atomic<bool> driven_{false};  // the fibers' thread, or that of finish(), moves everything itself now
  std::atomic<bool> over_{false};
  Parker parker_;       // of the thread
  Parker idle_parker_;  // of the fibers' thread
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankloom::internal
