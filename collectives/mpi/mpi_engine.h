#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/mpi/mpi_member.h"
#include "collectives/mpi/wire.h"
#include "collectives/work/work_state.h"
#include "rankloom/process_group.h"
#include "rankloom/store.h"
#include "sim/base/lock_order.h"
#include "sim/base/parker.h"
#include "world/world_state.h"

namespace rankloom::internal {

// Messages of one turn of an engine: others may send all the time.
inline constexpr int kMostMessages = 64;
// The longest wait for what is on its way at the end.
inline constexpr int64_t kDrainNs = 30'000'000'000;

// How long a rank may go on when the run was aborted: 30 s, then the job ends. Tests have less patience.
extern int64_t abort_grace_ns;

// The end of works that a section under the engine's lock has found, told after it: a callback may call.
struct FinishedWorks {
  std::vector<std::pair<std::shared_ptr<WorkState>, absl::Status>> works;
  absl::Status abort;  // of the run, by another process; an abort tells listeners, which may call
  Scheduler* scheduler = nullptr;
  std::atomic<int>* telling = nullptr;  // counts the threads that are about to tell of works; null: nobody asks
  void tell();
};

// All that one process of a job does with MPI during one run: the calls on their way of its groups, and a channel
// between the processes for what is no call: aborts, ends of ranks, operations of the store, making communicators.
// Progress: a thread that waits for a call moves everything itself, for some time; else the engine's own thread does,
//   which looks at it often while calls are on their way, and now and then while there are none.
// Locks: one, under which every MPI call is made; works are completed without it.
// Thread-safety: all methods, but for begin() and finish().
class MpiEngine {
 public:
  // Collective over `processes`. MPI gives MPI_THREAD_MULTIPLE. `compares`: calls of members, before data move.
  MpiEngine(MPI_Comm processes, bool compares);
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool compares() const { return compares_; }
  WorldState& world() const { return *world_; }
  OrderedMutex& mutex() ABSL_LOCK_RETURNED(mu_) { return mu_; }

  // Before the rank attaches.
  void begin(WorldState* world);
  // The rank's program has ended; `outcomes`: of all ranks, as this process knows them. Waits for all others and for
  // all that is on its way, tells `world` how they ended, and lets go of MPI. Collective.
  void finish(const std::vector<RunReport::Outcome>& outcomes);
  // Notes of messages to this rank that nobody received, and of its own recvs and early sends, after finish().
  const std::vector<std::string>& discarded() const { return discarded_; }
  // Why the run was aborted, as all processes have it, after finish(): the cause of the lowest rank that has one.
  const absl::Status& cause() const { return cause_; }

  // This process's side of a group, made by `make` where it is asked for first. `options`: of init_process_group().
  using MakeMember = absl::FunctionRef<std::shared_ptr<MpiMember>(std::string key)>;
  std::shared_ptr<MpiMember> member_of(const std::shared_ptr<const Group>& group, const GroupOptions& options,
                                       MakeMember make);
  // A group that the members of another have agreed on has this key from now on, which all its members know it by.
  void name_group(const std::shared_ptr<const Group>& group, std::string key) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    keys_[group.get()] = {group, std::move(key)};
  }

  // How long a wait moves calls itself before it sleeps and leaves that to the engine's thread.
  static constexpr int64_t kDriveNs = 2'000'000;
  // Moves all that can move, until `done` or for about `limit_ns` of real time, or until the run is aborted.
  void drive(absl::FunctionRef<bool()> done, int64_t limit_ns);
  // Moves what can move, and completes works. Whether anything did.
  bool progress() ABSL_LOCKS_EXCLUDED(mu_);
  // Something is on its way now that nobody may be waiting for.
  void wake() { parker_.unpark(); }

  // Under the lock: what ended is told when the section ends.
  void finished(std::shared_ptr<WorkState> work, const absl::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    finished_.works.emplace_back(std::move(work), status);
  }
  // A section under the lock.
  template <typename Section>
  auto locked(Section section) ABSL_LOCKS_EXCLUDED(mu_) {
    FinishedWorks done;
    struct Teller {
      FinishedWorks& done;
      ~Teller() { done.tell(); }
    } const teller{done};
    OrderedMutexLock lock(&mu_);
    struct Taker {
      MpiEngine& engine;
      FinishedWorks& done;
      ~Taker() ABSL_NO_THREAD_SAFETY_ANALYSIS { done = engine.take_finished(); }
    } const taker{*this, done};
    return section();
  }

  // The answer of a process about a group: how many calls of the group have begun there; -1: the process does not know
  // the group.
  struct Position {
    int64_t calls = -1;
    std::vector<int32_t> sends;  // tags of the rank's unfinished sends to the one that asks
    bool answered = false;
  };
  // Asks these ranks, and waits for their answers a second at most. By threads that hold no lock; several may ask.
  std::map<int, Position> ask(const std::string& key, const std::vector<int>& ranks);
  // Those of the ranks that have ended, as far as this process knows.
  std::vector<int> ended_of(const std::vector<int>& ranks);
  // Whether the rank has ended while the run goes well: after an abort nobody need be told. Under the lock.
  bool has_ended(int rank) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return aborted_by_.load() < 0 && ended_[static_cast<size_t>(rank)];
  }

  // The keys are those of rank 0's process.
  absl::StatusOr<StoreReply> store_call(const StoreCall& call, absl::Duration own_timeout);

  // For groups, under the lock.
  // Works whose end is known but not told of yet, by this thread or another: an end is told without the lock.
  void append_untold(const Group& group, std::vector<std::shared_ptr<WorkState>>* works) const;
  void want_communicator(const MpiMember& member);
  // This process's call of a group, or a message, waits for others that have ended: they are asked to say so there.
  void tell_stuck(const MpiMember& member, int rank, int64_t call);
  void tell_group_failed(const MpiMember& member, const absl::Status& cause);
  // To the sender of a message: what has become of it.
  void tell_received(const MpiMember& member, int rank, int64_t send, bool wanted, const absl::Status& status);
  // Over which large messages go, beside the groups.
  MPI_Comm bulk() const { return bulk_; }
  int next_bulk_tag() ABSL_NO_THREAD_SAFETY_ANALYSIS { return bulk_tag_ = (bulk_tag_ + 1) & 0x3fff; }

 private:
  enum class Kind : uint8_t {
    kAbort,        // the run: kind, text
    kEnded,        // the sender's program: outcome
    kBlamed,       // a rank, by whose doing the sender's program has failed; that rank's outcome
    kGroupFailed,  // key, kind, text
    kAsk,          // number, key
    kAnswer,       // number, calls
    kStuck,        // key, call
    kNothing,    // key, whether the group is not known; how many sends to the receiver are on their way, and their tags
    kReceived,   // key, the number of a send, whether its bytes are wanted, status
    kWant,       // key, ranks: to rank 0, which makes communicators one at a time
    kMake,       // key: to all members
    kMade,       // key: to rank 0
    kStoreCall,  // number, call
    kStoreReply,  // number, reply
    kDrain,       // keys, calls: what is to be brought to an end
    kDrained,
  };

  struct Sent {
    MPI_Request request;
    std::string bytes;
  };
  struct Wanted {
    std::vector<int> ranks;
    size_t came = 0;
  };
  struct PendingStoreCall {
    int from;
    uint64_t number;
    std::string call;
    int64_t deadline_ns;
    absl::Duration timeout;
  };

  FinishedWorks take_finished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    FinishedWorks taken;
    taken.scheduler = finished_.scheduler;
    if (finished_.works.empty() && finished_.abort.ok()) return taken;
    taken.works.swap(finished_.works);
    if (telling_.load(std::memory_order_acquire) == 0) being_told_.clear();
    for (const auto& [work, status] : taken.works) being_told_.push_back(work);
    // A work that ended before an abort, by a Mismatch perhaps, is told of first, also where another thread does that.
    if (telling_.load(std::memory_order_acquire) == 0) taken.abort = std::exchange(finished_.abort, absl::OkStatus());
    if (!taken.works.empty()) {
      telling_.fetch_add(1, std::memory_order_relaxed);
      taken.telling = &telling_;
    }
    return taken;
  }
  static WireWriter message(Kind kind) {
    WireWriter out;
    out.number(kind);
    return out;
  }
  // An error of MPI between the engines leaves nobody to tell: the job ends.
  void must(int code, const char* call);
  void tell(int rank, WireWriter message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void tell_all(const WireWriter& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool progress_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool receive_messages() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle(int from, std::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle_group(Kind kind, int from, WireReader* in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle_communicators(Kind kind, WireReader* in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle_end(Kind kind, int from, WireReader* in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void handle_store(Kind kind, int from, WireReader* in) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void make_next_communicator() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  MpiMember* known(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool serve_store() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void answer_store(int from, uint64_t number, const absl::StatusOr<StoreReply>& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void aborted_here(const absl::Status& cause);
  void pass_on_abort() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void merge_outcomes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void tell_outcomes(const std::vector<RunReport::Outcome>& outcomes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void drain(std::vector<MpiMember::Leftover>* leftovers);
  bool busy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void thread_main();
  // Until `done`, which is asked under the lock; ends the job with `what` after `limit_ns`.
  void await_all(const char* what, int64_t limit_ns, absl::FunctionRef<bool()> done);
  [[noreturn]] void end_job(const std::string& why);
  std::string key_of(const Group& group, const GroupOptions& options) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  OrderedMutex mu_{LockLevel::kMpi};
  WorldState* world_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  const bool compares_;
  bool crowded_ = false;              // more processes than cores on this machine: whoever waits gives the core away
  MPI_Comm control_ = MPI_COMM_NULL;  // messages of the engines
  MPI_Comm base_ = MPI_COMM_NULL;     // communicators of groups are made from it
  MPI_Comm first_ = MPI_COMM_NULL;    // that of the first group of all ranks
  MPI_Comm bulk_ = MPI_COMM_NULL;
  int bulk_tag_ ABSL_GUARDED_BY(mu_) = 0;

  FinishedWorks finished_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> telling_{0};
  std::vector<std::weak_ptr<WorkState>> being_told_ ABSL_GUARDED_BY(mu_);  // by threads that `telling_` counts
  std::list<Sent> sent_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> to_self_ ABSL_GUARDED_BY(mu_);

  std::map<std::string, std::shared_ptr<MpiMember>> members_ ABSL_GUARDED_BY(mu_);
  std::map<const Group*, std::pair<std::shared_ptr<const Group>, std::string>> keys_ ABSL_GUARDED_BY(mu_);
  int world_groups_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, int> groups_of_ ABSL_GUARDED_BY(mu_);

  // rank 0: communicators that members want
  std::map<std::string, Wanted> wanted_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> ready_ ABSL_GUARDED_BY(mu_);
  std::string making_ ABSL_GUARDED_BY(mu_);
  size_t made_ ABSL_GUARDED_BY(mu_) = 0;
  int made_tag_ ABSL_GUARDED_BY(mu_) = 0;

  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::map<int, Position>> answers_ ABSL_GUARDED_BY(mu_);  // of each ask() that waits, by number

  // The store: rank 0 has the keys.
  std::unique_ptr<HashStore> keys_of_all_;
  std::list<PendingStoreCall> store_calls_ ABSL_GUARDED_BY(mu_);
  uint64_t store_number_ ABSL_GUARDED_BY(mu_) = 0;
  // Of this rank's calls on their way.
  struct StoreWait {
    std::shared_ptr<WorkState> work;
    absl::StatusOr<StoreReply>* reply;
  };
  std::map<uint64_t, StoreWait> store_waits_ ABSL_GUARDED_BY(mu_);
  int64_t served_ns_ ABSL_GUARDED_BY(mu_) = 0;

  // ends
  std::vector<bool> ended_ ABSL_GUARDED_BY(mu_);
  std::vector<RunReport::Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> causes_ ABSL_GUARDED_BY(mu_);
  struct Blamed {
    int by = -1;
    RunReport::Outcome outcome;
  };
  std::map<int, Blamed> blamed_ ABSL_GUARDED_BY(mu_);
  absl::Status held_abort_ ABSL_GUARDED_BY(mu_);  // by another process, not passed on yet
  int ended_count_ ABSL_GUARDED_BY(mu_) = 0;
  int draining_ ABSL_GUARDED_BY(mu_) = 0;  // processes that have said what is to be drained
  int drained_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, int64_t> most_calls_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> aborted_by_{-1};
  int64_t on_abort_ = 0;
  std::atomic<int64_t> aborted_ns_{0};
  std::vector<std::string> discarded_;
  absl::Status cause_;

  std::atomic<int> drivers_{0};  // threads that move everything themselves now
  std::atomic<bool> over_{false};
  Parker parker_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankloom::internal
