#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "harness/explore/baseline.h"
#include "harness/explore/campaign_links.h"
#include "harness/explore/campaign_messages.h"
#include "sim/schedule/run_hooks.h"
#include "sim/schedule/schedule_tree.h"

namespace rankloom::internal {

// The runs of a search, as each of its processes makes them.
class CampaignRuns {
 public:
  virtual ~CampaignRuns() = default;
  virtual Outcome run_explored(const RunHooks& hooks, std::shared_ptr<const void> owner) const = 0;
  // A run of a strategy that draws from seeds, from 0.
  virtual Outcome run_drawn(int64_t number) const = 0;
};

// A process that searches what the leader of a campaign hands out.
class CampaignWorker {
 public:
  // `origin`: of the search.
  CampaignWorker(const CampaignRuns& runs, const StepRecord::Origin& origin, LeaderLink* leader)
      : runs_(runs), origin_(origin), leader_(*leader) {}

  // Until the leader says that there is no more to do, or is gone.
  void serve(const CampaignIdentity& identity);

 private:
  using News = CampaignNews;
  class TellingPolicies;
  // How much of the part that is being searched the leader knows.
  struct Told {
    int64_t schedules = 0;
    int64_t repeated = 0;
    int64_t runs = 0;
    int64_t at_ns = 0;     // the time of the last message
    int64_t every_ns = 0;  // from one message to the next
  };

  void search_part(CampaignOrder order);
  Outcome run_of(const std::shared_ptr<ScheduleTree>& tree, bool careful, int64_t run);
  // `given`: choices that are left to others from now on.
  void tell_part(const CampaignOrder& order, const std::shared_ptr<ScheduleTree>& tree, News::State state, int64_t runs,
                 std::vector<GivenNode> given = {}, const Outcome* failed = nullptr);
  void make_drawn_runs(const CampaignOrder& order);
  void tell(const News& news);
  // Looks for orders once in a while.
  void look_for_orders();
  void heed(CampaignOrder order);

  const CampaignRuns& runs_;
  const StepRecord::Origin origin_;
  LeaderLink& leader_;
  std::deque<CampaignOrder> next_;  // work to come
  bool stopped_ = false;
  bool paused_ = false;                  // the part
  bool share_ = false;                   // some of the part
  int64_t limit_ = CampaignOrder::kAll;  // of drawn runs
  int64_t looked_ns_ = 0;
  int64_t shared_ns_ = 0;
  Told told_;
};

}  // namespace rankloom::internal
