#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "harness/explore/campaign_links.h"
#include "harness/explore/campaign_messages.h"
#include "sim/schedule/schedule_trunk.h"

namespace rankloom::internal {

// The leader of a search by several processes. It makes no runs: it hands out work, takes some of it back for those
// that have none, and adds up what the workers tell.
//
// Only runs that a worker has told of count: if a worker dies, another one makes those since then again. So each
// schedule counts once. A search is finished when all parts are.
// A worker that dies in a run of its own doing does so again: its work is done once more, with care, and the run in
// which the next one dies is the failure. After a signal that mostly comes from others, such as SIGKILL, that takes
// three deaths in the same run.
// Thread-safety: thread-compatible. Blocking, until the budget is spent and all runs have ended, or for the grace time.
class Campaign {
 public:
  struct Failure {
    int64_t run = 0;                                // drawn: its number, from 0
    std::string died = {};                          // how its process ended; empty: the run ended
    CampaignNews::Failure seen = {};                // if so
    std::vector<Schedule::Switch> departures = {};  // explored, died: from the default order, up to then
  };
  struct Budget {
    int64_t runs = 0;
    int64_t end_ns = 0;   // on the monotonic clock: no more runs are begun
    int64_t last_ns = 0;  // of the whole search: a run that goes on for the grace time after that is given up
  };
  // All that was told so far.
  struct Explored {
    int64_t runs = 0;
    int64_t schedules = 0;
    int64_t repeated = 0;
    int64_t open = 0;
    bool finished = false;
    bool saw_any = false;
    std::vector<std::string> uncovered = {};
    std::optional<Failure> failure = {};
  };
  struct Drawn {
    std::vector<int64_t> runs = {};  // [strategy]; run i is one of strategy i % runs.size()
    std::optional<Failure> failure = {};

    int64_t all_runs() const;
  };

  // `workers`: nobody has received anything from them. They outlive this, as do their processes.
  // `grace_ns`: how long a run may go on when the budget's time is over.
  Campaign(WorkerLinks* workers, CampaignIdentity identity, int64_t grace_ns = 10'000'000'000);
  ~Campaign();
  Campaign(const Campaign&) = delete;
  Campaign& operator=(const Campaign&) = delete;

  // Until every worker has said which program it runs: error() is that of one that does not fit, however soon the
  // others would be done. For workers that are not copies of this process. `end_ns`: of the budget; the first run of a
  // worker, too, may go on for the grace time after that.
  void await_greetings(int64_t end_ns);
  // Each is called once, and tells of progress some times a second. explore() comes to its end, to that of the budget,
  // or to the first failure that any worker finds; draw(), whoever finds a failure, to the one with the lowest number.
  Explored explore(const Budget& budget, absl::FunctionRef<void(const Explored&)> told);
  Drawn draw(int strategies, const Budget& budget, absl::FunctionRef<void(const Drawn&)> told);

  // Workers that do not fit, or do not come to an end, or none is left. Results from before stand.
  const absl::Status& error() const { return error_; }
  // A line for each worker that died, and whose work others have done.
  const std::vector<std::string>& deaths() const { return deaths_; }

 private:
  using News = CampaignNews;
  using Order = CampaignOrder;
  // A part of the tree, or some drawn runs.
  struct Work {
    int64_t number = 0;
    bool careful = false;
    TreePart rest = {};  // of a part: what is left, if begun
    bool begun = false;
    int64_t runs = 0;  // those that a worker may make and has not told of
    int64_t first = 0;
    int64_t end = 0;
    // Of careful work, in which run a process died, and how often.
    int64_t died_in = -1;
    int died = 0;
  };
  struct Worker {
    bool alive = true;
    bool greeted = false;
    bool asked_to_share = false;
    int silent_deaths = 0;  // before it had greeted
    std::deque<Work> works = {};
    int64_t open = 0;
    int64_t now = -1;  // careful work: the run
    std::vector<Schedule::Switch> departures = {};
  };

  static bool has_work(const Worker& worker) { return !worker.works.empty(); }
  void handle(const WorkerLinks::Event& event);
  void greet(int number, const News& news);
  void add_uncovered(std::string what);
  void heard_part(int number, News news);
  void heard_seeds(int number, News news);
  void died(int number, const WorkerLinks::Event& event);
  // A worker has died in a run that it told of before. True: the run is to blame.
  static bool blames_run(const Worker& worker, bool by_others, Work* work);
  void found(Failure failure);
  // Runs go on although the budget's time has long been over: an error, which names those for which `waits` holds.
  bool overdue(int64_t end_ns, absl::FunctionRef<bool(const Worker&)> waits);
  // A worker tells what cannot be: an error.
  void misfit(int number, std::string_view what);

  void deal_parts();
  void deal_seeds();
  void send_part(int number, Work work);
  void ask_to_share();
  std::optional<Work> next_part();
  std::optional<Work> next_seeds();
  void send(int number, const Order& order) { workers_.send(number, order.encode()); }
  void send_all(const Order& order);
  bool anyone_works(int64_t before = Order::kAll) const;
  void wait_for_news(int64_t end_ns);

  WorkerLinks& workers_;
  const CampaignIdentity identity_;
  const int64_t grace_ns_;
  std::vector<Worker> states_;
  absl::Status error_;
  std::vector<std::string> deaths_;
  std::deque<Work> returned_;  // work that was begun and is nobody's

  // --- explore()

  bool exploring_ = false;
  std::optional<ScheduleTrunk> trunk_;
  int64_t runs_left_ = 0;
  bool rooted_asked_ = false;
  bool completions_write_ = false;
  std::optional<uint64_t> objects_;  // as the workers have greeted
  bool objects_alike_ = true;
  bool older_objects_ = false;
  Explored explored_;

  // --- draw()

  int64_t next_seed_ = 0;
  int64_t seeds_end_ = 0;  // the budget's, or that of the failure with the lowest number
  int64_t seed_works_ = 0;
  int64_t drawn_runs_ = 0;
  int64_t drawn_ns_ = 0;
  Drawn drawn_;
};

}  // namespace rankloom::internal
