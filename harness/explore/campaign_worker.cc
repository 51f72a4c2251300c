#include "harness/explore/campaign_worker.h"

#include <algorithm>
#include <utility>

#include "sim/base/dist_error.h"
#include "sim/base/parker.h"
#include "sim/base/text.h"
#include "sim/schedule/steering.h"

namespace rankloom::internal {
namespace {

constexpr int64_t kLookEvery = 200'000;     // a look for messages is a system call: 1 us of 200
constexpr int64_t kShareEvery = 1'000'000;  // at the most
// The runs that a process made since it told last are lost if it dies.
constexpr int64_t kTellEvery = 20'000'000;
constexpr int64_t kTellShare = 100;  // of the time, one part for telling
constexpr int64_t kCarefulFor = 10 * kTellEvery;

}  // namespace

// The policies of a tree, with a message to the leader for each departure from the default order, before it is made.
class CampaignWorker::TellingPolicies final : public PolicySource {
 public:
  TellingPolicies(ScheduleTree* tree, CampaignWorker* worker) : tree_(*tree), worker_(*worker) {}
  std::unique_ptr<SchedulePolicy> policy() override {
    return std::make_unique<Policy>(tree_.policy(), &worker_, &departures_);
  }

 private:
  class Policy final : public SchedulePolicy {
   public:
    Policy(std::unique_ptr<SchedulePolicy> policy, CampaignWorker* worker, std::vector<Schedule::Switch>* departures)
        : steered_(std::move(policy), departures), worker_(*worker), departures_(*departures) {}
    bool sees_all() const override { return true; }
    int choose(const ChoicePoint& point) override {
      const int chosen = steered_.choose(point);
      if (steered_.failed()) fail(steered_.error());
      if (!departures_.empty()) worker_.tell({.kind = News::Kind::kSwitch, .switches = departures_});
      departures_.clear();
      return chosen;
    }

   private:
    SteeredPolicy steered_;
    CampaignWorker& worker_;
    std::vector<Schedule::Switch>& departures_;
  };

  ScheduleTree& tree_;
  CampaignWorker& worker_;
  std::vector<Schedule::Switch> departures_;
};

void CampaignWorker::serve(const CampaignIdentity& identity) {
  tell({.kind = News::Kind::kHello, .identity = identity, .objects = origin_.made});
  while (!stopped_) {
    if (next_.empty()) {
      const std::optional<std::string> message = leader_.receive(/*wait=*/true);
      if (!message.has_value()) return;
      absl::StatusOr<CampaignOrder> order = CampaignOrder::decode(*message);
      if (!order.ok()) fatal(message_of(order.status()));
      heed(*std::move(order));
      continue;
    }
    CampaignOrder order = std::move(next_.front());
    next_.pop_front();
    if (order.kind == CampaignOrder::Kind::kPart) {
      search_part(std::move(order));
    } else {
      make_drawn_runs(order);
    }
  }
}

void CampaignWorker::heed(CampaignOrder order) {
  switch (order.kind) {
    case CampaignOrder::Kind::kPart:
    case CampaignOrder::Kind::kSeeds:
      next_.push_back(std::move(order));
      break;
    case CampaignOrder::Kind::kShare:
      share_ = true;
      break;
    case CampaignOrder::Kind::kPause:
      paused_ = true;
      limit_ = std::min(limit_, order.first);
      break;
    case CampaignOrder::Kind::kStop:
      stopped_ = true;
      limit_ = 0;
      break;
  }
}

void CampaignWorker::look_for_orders() {
  const int64_t now = monotonic_ns();
  if (now - looked_ns_ < kLookEvery) return;
  looked_ns_ = now;
  while (const std::optional<std::string> message = leader_.receive(/*wait=*/false)) {
    absl::StatusOr<CampaignOrder> order = CampaignOrder::decode(*message);
    if (!order.ok()) fatal(message_of(order.status()));
    heed(*std::move(order));
  }
  if (!leader_.gone()) return;
  stopped_ = true;
  limit_ = 0;
}

void CampaignWorker::tell(const News& news) {
  if (leader_.send(news.encode())) return;
  stopped_ = true;
  limit_ = 0;
}

Outcome CampaignWorker::run_of(const std::shared_ptr<ScheduleTree>& tree, bool careful, int64_t run) {
  if (!careful) return runs_.run_explored(tree->hooks(), tree);
  tell({.kind = News::Kind::kRun, .run = run});
  // One object that owns both, for as long as the run's world lives.
  const auto owner = std::make_shared<std::pair<std::shared_ptr<ScheduleTree>, TellingPolicies>>(
      tree, TellingPolicies(tree.get(), this));
  RunHooks hooks = tree->hooks();
  hooks.policies = &owner->second;
  return runs_.run_explored(hooks, owner);
}

void CampaignWorker::search_part(CampaignOrder order) {
  paused_ = share_ = false;
  told_ = {.at_ns = monotonic_ns(), .every_ns = kTellEvery};
  const int64_t began_ns = told_.at_ns;
  const auto tree = std::make_shared<ScheduleTree>(std::move(order.part));
  tree->record().begin_search(origin_);
  int64_t runs = 0;
  while (tree->more() && runs < order.runs && !paused_ && !stopped_) {
    const Outcome outcome = run_of(tree, order.careful, runs);
    ++runs;
    if (outcome.failed()) return tell_part(order, tree, News::State::kFailed, runs, {}, &outcome);
    tree->advance();
    if (!tree->more()) break;
    if (runs == 1 && order.fresh)
      tell({.kind = News::Kind::kOpened, .work = order.work, .opened = tree->step_at_floor()});
    look_for_orders();
    const int64_t now = monotonic_ns();
    if (order.careful && now - began_ns > kCarefulFor) {
      order.careful = false;
      tell({.kind = News::Kind::kRun, .run = -1});
    }
    if (share_ && now - shared_ns_ > kShareEvery) {
      if (std::vector<GivenNode> given = tree->give(); !given.empty()) {
        share_ = false;
        shared_ns_ = now;
        tell_part(order, tree, News::State::kGoing, runs, std::move(given));
      }
    } else if (now - told_.at_ns > told_.every_ns) {
      tell_part(order, tree, News::State::kGoing, runs);
    }
  }
  tell_part(order, tree, tree->more() ? News::State::kPaused : News::State::kDone, runs);
}

void CampaignWorker::tell_part(const CampaignOrder& order, const std::shared_ptr<ScheduleTree>& tree, News::State state,
                               int64_t runs, std::vector<GivenNode> given, const Outcome* failed) {
  const int64_t began = monotonic_ns();
  News news = News::of_part(tree.get(), state);
  news.work = order.work;
  if (runs > 0 && failed == nullptr && given.empty() && tree->floor() > 0) news.opened = tree->step_at_floor();
  news.given = std::move(given);
  const int64_t schedules = tree->schedules() + (failed != nullptr ? 1 : 0);
  news.runs = runs - std::exchange(told_.runs, runs);
  news.schedules = schedules - std::exchange(told_.schedules, schedules);
  news.repeated = tree->repeated() - std::exchange(told_.repeated, tree->repeated());
  if (failed != nullptr) {
    news.failure = News::Failure{
        .trace = failed->report.trace.serialize(), .headline = failed->headline(), .failures = failed->failures};
  }
  tell(news);
  told_.at_ns = monotonic_ns();
  told_.every_ns = std::max(kTellEvery, kTellShare * (told_.at_ns - began));
}

void CampaignWorker::make_drawn_runs(const CampaignOrder& order) {
  News news{.kind = News::Kind::kSeeds, .work = order.work, .state = News::State::kDone};
  const int64_t began = monotonic_ns();
  int64_t next = order.first;
  while (next < std::min(order.end, limit_)) {
    if (order.careful) tell({.kind = News::Kind::kRun, .run = next});
    const Outcome outcome = runs_.run_drawn(next++);
    if (outcome.failed()) {
      news.state = News::State::kFailed;
      news.failure = News::Failure{.trace = {}, .headline = outcome.headline(), .failures = outcome.failures};
      break;
    }
    look_for_orders();
  }
  if (news.state == News::State::kDone && next < order.end) news.state = News::State::kPaused;
  news.run = next;
  news.ns = monotonic_ns() - began;
  tell(news);
}

}  // namespace rankloom::internal
