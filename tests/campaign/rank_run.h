#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"
#include "tests/campaign/call_of.h"
#include "tests/campaign/rank_words.h"
#include "tests/campaign/run_job.h"

namespace rankloom {

// One rank of a job: makes the acts in which it has a part, and logs what it sees.
class RankRun {
 public:
  // `arrivals`: of all ranks; null: nobody counts.
  RankRun(const Plan& plan, RankContext& rank, RankLog* log, Beside* beside, std::shared_ptr<Arrivals> arrivals);

  void run();

 private:
  // Calls that the rank has made and not waited for.
  struct Open {
    Open() = default;
    explicit Open(std::shared_ptr<Tensors> memory) : tensors(std::move(memory)) {}

    std::shared_ptr<Tensors> tensors;
    std::vector<Work> works;
    std::function<std::string()> read;  // once all is done
    bool streamed = false;
    std::shared_ptr<std::string> snapshot;  // what a kernel behind the call saw
    std::optional<Stream::Event> event;     // behind the call
    int event_way = 0;
    std::optional<std::string> at_event;  // the outputs then
    bool has_result = false;              // Work::result() has the outputs
  };
  using GroupKey = std::pair<int, int>;

  int me() const { return rank_.rank(); }
  void see(int act, std::string saw);
  bool step(const Act& act, const Partition& where);  // false: the rank leaves
  void call(const Act& act, const Partition& where);
  void collective(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks, int member);
  void coalesced(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks, int member);
  void message(const Act& act, ProcessGroup& pg, int member);
  void any_source(const Act& act, ProcessGroup& pg, int member);
  void ring(const Act& act, ProcessGroup& pg, int member);
  void crossed(const Act& act, ProcessGroup& pg, int member);
  void two_groups(const Act& act, const Partition& where);
  void keep(const Act& act, Open open);
  void finish(int act, WaitWay way);
  void finish_streams(Open& open);
  void stands_alone(const Act& act, ProcessGroup& pg);
  void wait(WaitWay way, Open& open);
  void wait(Work& work, WaitWay way, const Open& open);
  void monitored(const Act& act, ProcessGroup& pg, const std::vector<int>& ranks);
  void make_groups(const Act& act, const Partition& where);
  void refused(const Act& act, ProcessGroup& pg, int member);
  void sleep(const Act& act);
  void meet(const Act& act);
  void store_timeout(const Act& act);
  void shared_count(const Act& act);
  void helper(const Act& act);
  void other_call(const Act& act, ProcessGroup& pg, int member);
  ProcessGroup& group(const Act& act) { return *groups_.at({act.group, act.dim}); }
  GroupOptions group_options() const;
  SimStream& stream(int i);

  const Plan& plan_;
  const Job& job_;
  RankContext& rank_;
  RankLog& log_;
  Beside& beside_;
  Memory& memory_;  // of beside_
  Prng shadow_;     // of the rank's generator
  uint64_t state_;
  const std::shared_ptr<Arrivals> arrivals_;
  std::map<GroupKey, std::shared_ptr<ProcessGroup>> groups_;
  std::map<int, Open> open_;
  std::unique_ptr<SimStream> streams_[2];
};

}  // namespace rankloom
