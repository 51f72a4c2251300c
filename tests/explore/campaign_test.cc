// The leader of a search by several processes, and its messages, with workers that this test plays.

#include "harness/explore/campaign.h"

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "harness/explore/baseline.h"
#include "harness/explore/campaign_identity.h"
#include "harness/explore/campaign_messages.h"
#include "rankloom/explore.h"
#include "sim/base/parker.h"
#include "sim/schedule/early_changes.h"
#include "sim/schedule/schedule_tree.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Order = CampaignOrder;
using News = CampaignNews;

const CampaignIdentity kUs = {.program = "prog 1", .options = "world_size 2", .first_run = "abc"};

// Workers that answer each order at once.
class PlayedWorkers : public WorkerLinks {
 public:
  explicit PlayedWorkers(int count) : count_(count) {
    for (int i = 0; i < count; ++i) says(i, {.kind = News::Kind::kHello, .identity = kUs});
  }

  int count() const override { return count_; }
  void send(int worker, std::string_view message) override {
    absl::StatusOr<Order> order = Order::decode(message);
    ASSERT_TRUE(order.ok()) << order.status();
    if (order->kind == Order::Kind::kSeeds || order->kind == Order::Kind::kPart) given[worker].push_back(*order);
    hears(worker, *order);
  }
  std::optional<Event> receive(int64_t) override {
    if (events.empty()) return std::nullopt;
    Event event = std::move(events.front());
    events.pop_front();
    return event;
  }
  bool replace(int worker) override {
    if (spare == 0) return false;
    --spare;
    says(worker, {.kind = News::Kind::kHello, .identity = kUs});
    return true;
  }

  virtual void hears(int worker, const Order& order) = 0;
  void says(int worker, const News& news) { events.push_back({.worker = worker, .message = news.encode()}); }
  void dies(int worker, const std::string& how, bool by_others) {
    events.push_back({.worker = worker, .ended = how, .by_others = by_others});
  }
  // All runs of the order went well.
  void makes(int worker, const Order& order) {
    says(worker, {.kind = News::Kind::kSeeds,
                  .work = order.work,
                  .state = News::State::kDone,
                  .run = order.end,
                  .ns = 1'000'000 * (order.end - order.first)});
  }

  std::deque<Event> events;
  std::map<int, std::vector<Order>> given;
  int spare = 100;

 private:
  const int count_;
};

int64_t in_a_minute() { return monotonic_ns() + 60'000'000'000; }

Campaign::Drawn draw_with(Campaign* campaign, int64_t runs) {
  return campaign->draw(/*strategies=*/3, {.runs = runs, .end_ns = in_a_minute(), .last_ns = in_a_minute()},
                        [](const Campaign::Drawn&) {});
}

class WellBehaved : public PlayedWorkers {
 public:
  using PlayedWorkers::PlayedWorkers;
  void hears(int worker, const Order& order) override {
    if (order.kind == Order::Kind::kSeeds) makes(worker, order);
  }
};

TEST(CampaignTest, DealsOutEachDrawnRunOnce) {
  WellBehaved workers(3);
  Campaign campaign(&workers, kUs);
  const Campaign::Drawn drawn = draw_with(&campaign, 10'000);
  EXPECT_THAT(drawn.runs, ElementsAre(3'334, 3'333, 3'333));
  EXPECT_FALSE(drawn.failure.has_value());
  std::vector<int> dealt(10'000);
  for (const auto& [worker, orders] : workers.given) {
    for (const Order& order : orders) {
      for (int64_t run = order.first; run < order.end; ++run) ++dealt[static_cast<size_t>(run)];
    }
  }
  EXPECT_THAT(dealt, testing::Each(1));
  EXPECT_EQ(workers.given[0].front().end - workers.given[0].front().first, 1) << "nobody knows yet how long one takes";
  EXPECT_TRUE(campaign.error().ok());
}

// Fails in the runs 500 and 700, and hears of 700 first.
class FailsTwice : public PlayedWorkers {
 public:
  using PlayedWorkers::PlayedWorkers;
  void hears(int worker, const Order& order) override {
    if (order.kind != Order::Kind::kSeeds) return;
    if (order.first <= 500 && order.end > 500) {
      late_ = order;
      late_worker_ = worker;
    } else if (order.first <= 700 && order.end > 700) {
      fails(worker, order, 700);
      fails(late_worker_, late_, 500);
    } else {
      makes(worker, order);
    }
  }

 private:
  void fails(int worker, const Order& order, int64_t run) {
    says(worker, {.kind = News::Kind::kSeeds,
                  .work = order.work,
                  .state = News::State::kFailed,
                  .run = run + 1,
                  .failure = News::Failure{.trace = {}, .headline = "no luck", .failures = {"a", "b"}}});
  }
  Order late_;
  int late_worker_ = -1;
};

TEST(CampaignTest, ReportsTheFailureWithTheLowestNumber) {
  FailsTwice workers(2);
  Campaign campaign(&workers, kUs);
  const Campaign::Drawn drawn = draw_with(&campaign, 100'000);
  ASSERT_TRUE(drawn.failure.has_value());
  EXPECT_EQ(drawn.failure->run, 500);
  EXPECT_EQ(drawn.failure->seen.headline, "no luck");
  EXPECT_THAT(drawn.failure->seen.failures, ElementsAre("a", "b"));
}

// The first worker that gets run 20 dies; whoever makes it then, with care, does too: `times` in all.
class DiesInRun20 : public PlayedWorkers {
 public:
  DiesInRun20(int count, int times, bool by_others) : PlayedWorkers(count), times_(times), by_others_(by_others) {}
  void hears(int worker, const Order& order) override {
    if (order.kind != Order::Kind::kSeeds) return;
    if (order.first > 20 || order.end <= 20 || died == times_) return makes(worker, order);
    ++died;
    if (order.careful) {
      for (int64_t run = order.first; run <= 20; ++run) says(worker, {.kind = News::Kind::kRun, .run = run});
    }
    dies(worker, by_others_ ? "signal 9 (Killed)" : "signal 11 (Segmentation fault)", by_others_);
  }
  int died = 0;

 private:
  const int times_;
  const bool by_others_;
};

TEST(CampaignTest, AWorkerThatDiesOnceIsMadeUpFor) {
  for (const bool by_others : {false, true}) {
    DiesInRun20 workers(2, 1, by_others);
    Campaign campaign(&workers, kUs);
    const Campaign::Drawn drawn = draw_with(&campaign, 300);
    EXPECT_FALSE(drawn.failure.has_value());
    EXPECT_EQ(drawn.all_runs(), 300);
    ASSERT_EQ(campaign.deaths().size(), 1u);
    EXPECT_THAT(campaign.deaths()[0],
                testing::MatchesRegex("process [12] ended with signal .*; its work was given to others"));
  }
}

TEST(CampaignTest, ARunInWhichEveryWorkerDiesIsTheFailure) {
  struct Case {
    bool by_others;
    int deaths;
    const char* how;
  };
  for (const Case& c : {Case{false, 2, "signal 11 (Segmentation fault)"}, Case{true, 4, "signal 9 (Killed)"}}) {
    DiesInRun20 workers(2, 1'000, c.by_others);
    Campaign campaign(&workers, kUs);
    const Campaign::Drawn drawn = draw_with(&campaign, 300);
    ASSERT_TRUE(drawn.failure.has_value());
    EXPECT_EQ(drawn.failure->run, 20);
    EXPECT_EQ(drawn.failure->died, c.how);
    EXPECT_EQ(workers.died, c.deaths);
  }
}

// Says something else than the leader when it greets.
class Stranger : public PlayedWorkers {
 public:
  explicit Stranger(const CampaignIdentity& identity) : PlayedWorkers(1) {
    events.clear();
    says(0, {.kind = News::Kind::kHello, .identity = identity});
  }
  void hears(int, const Order&) override {}
};

TEST(CampaignTest, RefusesAProcessThatDoesNotFit) {
  struct Case {
    CampaignIdentity identity;
    const char* text;
  };
  const Case cases[] = {
      {{"prog 2", "world_size 2", "abc"},
       "explore: process 1 runs another program: prog 2, want prog 1, as the process that leads"},
      {{"prog 1", "world_size 3", "abc"},
       "explore: process 1 has other options: world_size 3, want world_size 2, as the process that leads"},
      {{"prog 1", "world_size 2", "abd"},
       "explore: process 1 makes another first run: abd, want abc, as the process that leads"},
  };
  for (const Case& c : cases) {
    Stranger workers(c.identity);
    Campaign campaign(&workers, kUs);
    const Campaign::Explored explored = campaign.explore(
        {.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()}, [](const Campaign::Explored&) {});
    EXPECT_FALSE(explored.finished);
    EXPECT_EQ(std::string(campaign.error().message()), c.text);
  }
}

class Mumbles : public PlayedWorkers {
 public:
  Mumbles() : PlayedWorkers(1) { events.push_back({.worker = 0, .message = "\x01\x02gibberish"}); }
  void hears(int, const Order&) override {}
};

TEST(CampaignTest, RefusesAMessageThatMakesNoSense) {
  Mumbles workers;
  Campaign campaign(&workers, kUs);
  EXPECT_EQ(draw_with(&campaign, 10).all_runs(), 0);
  EXPECT_EQ(std::string(campaign.error().message()), "explore: of process 1, a message of 11 bytes makes no sense");
}

class AllDie : public PlayedWorkers {
 public:
  AllDie() : PlayedWorkers(2) { spare = 0; }
  void hears(int worker, const Order& order) override {
    if (order.kind == Order::Kind::kPart || order.kind == Order::Kind::kSeeds) dies(worker, "exit code 3", false);
  }
};

TEST(CampaignTest, EndsWhenNoProcessIsLeft) {
  AllDie workers;
  Campaign campaign(&workers, kUs);
  const Campaign::Explored explored = campaign.explore({.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()},
                                                       [](const Campaign::Explored&) {});
  EXPECT_FALSE(explored.finished);
  EXPECT_THAT(std::string(campaign.error().message()),
              StartsWith("explore: no process is left to search, and none can be started: "));
  EXPECT_THAT(std::string(campaign.error().message()), HasSubstr("ended with exit code 3"));
}

// Has the whole tree, and never says that it is done; then dies, and another one says so.
class DiesWithTheTree : public PlayedWorkers {
 public:
  DiesWithTheTree() : PlayedWorkers(1) {}
  void hears(int worker, const Order& order) override {
    if (order.kind != Order::Kind::kPart) return;
    if (++parts == 1) {
      says(worker, {.kind = News::Kind::kPart,
                    .work = order.work,
                    .rest = {.path = {{.chosen = 3, .step = 5}}, .floor = 0, .new_from = 5},
                    .runs = 7,
                    .schedules = 6,
                    .repeated = 1,
                    .open = 2,
                    .uncovered = {"a device"}});
      dies(worker, "signal 9 (Killed)", true);
      return;
    }
    again = order;
    says(worker, {.kind = News::Kind::kPart,
                  .work = order.work,
                  .state = News::State::kDone,
                  .runs = 2,
                  .schedules = 2,
                  .uncovered = {"a device", "a clock"},
                  .saw_any = true});
  }
  int parts = 0;
  Order again;
};

TEST(CampaignTest, APartGoesOnWhereItsLastProcessTold) {
  DiesWithTheTree workers;
  Campaign campaign(&workers, kUs);
  const Campaign::Explored explored = campaign.explore(
      {.runs = 1'000, .end_ns = in_a_minute(), .last_ns = in_a_minute()}, [](const Campaign::Explored&) {});
  EXPECT_TRUE(explored.finished);
  EXPECT_EQ(explored.runs, 9);
  EXPECT_EQ(explored.schedules, 8);
  EXPECT_EQ(explored.repeated, 1);
  EXPECT_THAT(explored.uncovered, ElementsAre("a clock", "a device"));
  EXPECT_TRUE(explored.saw_any);
  EXPECT_EQ(workers.parts, 2);
  EXPECT_TRUE(workers.again.careful);
  ASSERT_EQ(workers.again.part.path.size(), 1u);
  EXPECT_EQ(workers.again.part.path[0].chosen, 3);
  EXPECT_EQ(workers.again.part.new_from, 5);
  EXPECT_THAT(campaign.deaths(), ElementsAre("process 1 ended with signal 9 (Killed); its work was given to others"));
}

TEST(CampaignTest, IsNotFinishedWhenTheRunsAreSpent) {
  class Slow : public PlayedWorkers {
   public:
    Slow() : PlayedWorkers(2) {}
    void hears(int worker, const Order& order) override {
      if (order.kind != Order::Kind::kPart) return;
      says(worker, {.kind = News::Kind::kPart,
                    .work = order.work,
                    .state = News::State::kPaused,
                    .rest = {.path = {{.chosen = 1}}},
                    .runs = order.runs,
                    .schedules = order.runs});
    }
  } workers;
  Campaign campaign(&workers, kUs);
  const Campaign::Explored explored = campaign.explore({.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()},
                                                       [](const Campaign::Explored&) {});
  EXPECT_FALSE(explored.finished);
  EXPECT_EQ(explored.runs, 100);
  EXPECT_TRUE(campaign.error().ok());
}

// Never says that its first work is done.
class NeverEnds : public PlayedWorkers {
 public:
  NeverEnds() : PlayedWorkers(2) {}
  void hears(int worker, const Order& order) override {
    if (worker == 1 && order.kind == Order::Kind::kSeeds) makes(worker, order);
  }
};

TEST(CampaignTest, DoesNotWaitForARunWithoutEnd) {
  const std::string text =
      "explore: a run has not ended 5ms after max_time was over: that of process 1; WorldOptions::stall_is_fatal ends "
      "a "
      "run in which a rank comes to no scheduling point for so long, and the search names it";
  const int64_t soon = monotonic_ns() + 1'000'000;
  {
    NeverEnds workers;
    Campaign campaign(&workers, kUs, /*grace_ns=*/5'000'000);
    const Campaign::Explored explored =
        campaign.explore({.runs = 100, .end_ns = soon, .last_ns = soon}, [](const Campaign::Explored&) {});
    EXPECT_FALSE(explored.finished);
    EXPECT_EQ(std::string(campaign.error().message()), text);
  }
  NeverEnds workers;
  Campaign campaign(&workers, kUs, /*grace_ns=*/5'000'000);
  const int64_t end_ns = monotonic_ns() + 1'000'000;
  const Campaign::Drawn drawn =
      campaign.draw(1, {.runs = 100, .end_ns = end_ns, .last_ns = end_ns}, [](const Campaign::Drawn&) {});
  EXPECT_LT(drawn.all_runs(), 100);
  EXPECT_EQ(std::string(campaign.error().message()), text);
}

// The search of all orders ends before max_time: what it waits for then may take as long as the rest.
TEST(CampaignTest, WaitsForARunUntilTheWholeTimeIsOver) {
  NeverEnds workers;
  Campaign campaign(&workers, kUs, /*grace_ns=*/5'000'000);
  const int64_t now = monotonic_ns();
  const int64_t last = now + 60'000'000;
  campaign.explore({.runs = 100, .end_ns = now + 1'000'000, .last_ns = last}, [](const Campaign::Explored&) {});
  EXPECT_GE(monotonic_ns(), last + 5'000'000);
  EXPECT_THAT(std::string(campaign.error().message()), StartsWith("explore: a run has not ended 5ms after max_time"));
}

class Named : public WellBehaved {
 public:
  using WellBehaved::WellBehaved;
  std::string name(int worker) const override { return absl::StrCat("process ", worker, " on node", worker); }
};

TEST(CampaignTest, AwaitsGreetingsAndNamesWorkersAsTheirLinksDo) {
  Named workers(3);
  workers.events.back() = {
      .worker = 2, .message = News{.kind = News::Kind::kHello, .identity = {"prog 2", "world_size 2", "abc"}}.encode()};
  Campaign campaign(&workers, kUs);
  campaign.await_greetings(in_a_minute());
  EXPECT_EQ(std::string(campaign.error().message()),
            "explore: process 2 on node2 runs another program: prog 2, want prog 1, as the process that leads");
}

// Of worker 1 nothing is heard.
class SilentSecond : public Named {
 public:
  SilentSecond() : Named(3) { events.erase(events.begin() + 1); }
};

TEST(CampaignTest, NamesAProcessWhoseFirstRunDoesNotEnd) {
  SilentSecond workers;
  Campaign campaign(&workers, kUs, /*grace_ns=*/5'000'000);
  const int64_t soon = monotonic_ns() + 1'000'000;
  campaign.await_greetings(soon);
  EXPECT_GE(monotonic_ns(), soon + 5'000'000);
  EXPECT_THAT(std::string(campaign.error().message()),
              StartsWith("explore: a run has not ended 5ms after max_time was over: that of process 1 on node1; "));
}

// Says of its first drawn runs what cannot be.
class Liar : public PlayedWorkers {
 public:
  explicit Liar(std::function<News(const Order&)> lie) : PlayedWorkers(1), lie_(std::move(lie)) {}
  void hears(int worker, const Order& order) override {
    if (order.kind != Order::Kind::kSeeds && order.kind != Order::Kind::kPart) return;
    News news = lie_(order);
    news.work = order.work;
    says(worker, news);
  }

 private:
  const std::function<News(const Order&)> lie_;
};

TEST(CampaignTest, RefusesNumbersOfDrawnRunsThatWereNotHandedOut) {
  struct Case {
    News lie;
    const char* text;
  };
  const News::Failure failure{.trace = {}, .headline = "no luck", .failures = {}};
  const Case cases[] = {
      {{.kind = News::Kind::kSeeds, .state = News::State::kDone, .run = 1'000'000'000'000},
       "the runs from 0 to before 1000000000000, want them to before 1 at most"},
      {{.kind = News::Kind::kSeeds, .state = News::State::kPaused, .run = -1},
       "the runs from 0 to before -1, want them to before 1 at most"},
      {{.kind = News::Kind::kSeeds, .state = News::State::kFailed, .run = 0, .failure = failure},
       "the runs from 0 to before 0, want them to before 1 at most"},
      {{.kind = News::Kind::kRun, .run = 7}, "run 7, want one of 0 to before 1"},
  };
  for (const Case& c : cases) {
    Liar workers([&c](const Order&) { return c.lie; });
    Campaign campaign(&workers, kUs);
    const Campaign::Drawn drawn = draw_with(&campaign, 10);
    EXPECT_EQ(drawn.all_runs(), 0);
    EXPECT_FALSE(drawn.failure.has_value());
    EXPECT_EQ(std::string(campaign.error().message()), absl::StrCat("explore: process 1 tells of ", c.text));
  }
}

TEST(CampaignTest, RefusesMoreRunsOfAPartThanWereHandedOut) {
  Liar workers([](const Order& order) {
    return News{.kind = News::Kind::kPart, .state = News::State::kDone, .runs = order.runs + 1, .schedules = 1};
  });
  Campaign campaign(&workers, kUs);
  const Campaign::Explored explored = campaign.explore({.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()},
                                                       [](const Campaign::Explored&) {});
  EXPECT_FALSE(explored.finished);
  EXPECT_EQ(std::string(campaign.error().message()), "explore: process 1 tells of 51 runs, want at most 50");
}

// Gives a choice of two away, and then says that its own part is done: each part within one message.
class GivesAndIsDone : public PlayedWorkers {
 public:
  explicit GivesAndIsDone(News done) : PlayedWorkers(1), done_(std::move(done)) { done_.kind = News::Kind::kPart; }
  void hears(int worker, const Order& order) override {
    if (order.kind != Order::Kind::kPart) return;
    News news = done_;
    news.work = order.work;
    if (given[worker].size() == 1) {
      News gives{.kind = News::Kind::kPart,
                 .work = order.work,
                 .given = {{.node = {.kind = ChoiceKind::kAnySource, .size = 2}, .chosen = {}}},
                 .rest = {.path = {{.chosen = 1, .step = 2}}}};
      says(worker, gives);
    }
    news.state = News::State::kDone;
    says(worker, news);
  }

 private:
  News done_;
};

// A part that has ended before it told of anything tells of an early change with its end.
TEST(CampaignTest, PassesOnThatCompletionsWriteFromAPartThatIsDone) {
  for (const bool write : {false, true}) {
    GivesAndIsDone workers({.completions_write = write});
    Campaign campaign(&workers, kUs);
    const Campaign::Explored explored = campaign.explore(
        {.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()}, [](const Campaign::Explored&) {});
    EXPECT_TRUE(explored.finished) << campaign.error();
    ASSERT_EQ(workers.given[0].size(), 2u);
    EXPECT_FALSE(workers.given[0][0].part.completions_write);
    EXPECT_EQ(workers.given[0][1].part.completions_write, write);
  }
}

// Objects that users made before are named by the count since then.
TEST(CampaignTest, DoesNotCoverObjectsThatProcessesMadeInOtherNumbers) {
  struct Case {
    bool used;
    uint64_t second_made;
    bool covered;
  };
  for (const Case& c : {Case{true, 3, true}, Case{false, 4, true}, Case{true, 4, false}}) {
    class Two : public PlayedWorkers {
     public:
      explicit Two(const Case& c) : PlayedWorkers(2), used_(c.used) {
        events.clear();
        says(0, {.kind = News::Kind::kHello, .identity = kUs, .objects = 3});
        says(1, {.kind = News::Kind::kHello, .identity = kUs, .objects = c.second_made});
      }
      void hears(int worker, const Order& order) override {
        if (order.kind != Order::Kind::kPart) return;
        says(worker, {.kind = News::Kind::kPart,
                      .work = order.work,
                      .state = News::State::kDone,
                      .runs = 1,
                      .schedules = 1,
                      .older_objects = used_});
      }

     private:
      const bool used_;
    } workers(c);
    Campaign campaign(&workers, kUs);
    campaign.await_greetings(in_a_minute());
    const Campaign::Explored explored = campaign.explore(
        {.runs = 100, .end_ns = in_a_minute(), .last_ns = in_a_minute()}, [](const Campaign::Explored&) {});
    EXPECT_TRUE(explored.finished);
    if (c.covered) {
      EXPECT_THAT(explored.uncovered, testing::IsEmpty());
    } else {
      EXPECT_THAT(explored.uncovered,
                  ElementsAre("objects that were made before explore(), which other processes made in other numbers"));
    }
  }
}

// --- messages

TEST(CampaignMessagesTest, ArriveAsTheyWere) {
  const TriedTask tried{.id = 3, .one_way = true, .ops = {{StepRecord::What::kSettle, ~uint64_t{0}}}};
  const TreeNode node{.kind = ChoiceKind::kFault,
                      .size = 2,
                      .chosen = 1,
                      .step = 300,
                      .chose_within = true,
                      .candidates = {0, 1, 200},
                      .todo = {200},
                      .tried = {tried},
                      .asleep = {tried, tried}};
  const Order order{.kind = Order::Kind::kPart,
                    .work = 5,
                    .careful = true,
                    .fresh = true,
                    .runs = int64_t{1} << 40,
                    .part = {.path = {node, node}, .floor = 1, .new_from = 7, .rooted = 1, .completions_write = true}};
  const absl::StatusOr<Order> same = Order::decode(order.encode());
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->encode(), order.encode());
  EXPECT_EQ(same->part.path[1].asleep[1].ops[0].object, ~uint64_t{0});
  EXPECT_EQ(same->part.floor, 1u);
  EXPECT_EQ(same->runs, int64_t{1} << 40);

  const News news{.kind = News::Kind::kPart,
                  .work = -1,
                  .state = News::State::kFailed,
                  .opened = tried,
                  .given = {{.node = node, .chosen = tried}},
                  .rest = order.part,
                  .wishes = {{.node = 4, .any_of = {1, 2}}},
                  .uncovered = {"", "a\nb"},
                  .older_objects = true,
                  .completions_write = true,
                  .failure = News::Failure{.trace = std::string("\0x", 2), .headline = "h", .failures = {"f"}}};
  const absl::StatusOr<News> told = News::decode(news.encode());
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->encode(), news.encode());
  EXPECT_EQ(told->failure->trace.size(), 2u);
  EXPECT_EQ(told->wishes, news.wishes);
  EXPECT_TRUE(told->older_objects && told->completions_write);
}

TEST(CampaignMessagesTest, NumbersThatNoSearchComesToAreRefused) {
  const auto part = [](const TreePart& part) {
    return Order::decode(Order{.kind = Order::Kind::kPart, .part = part}.encode()).ok();
  };
  EXPECT_TRUE(part({.path = {{.step = 2}, {.step = 2}, {.step = 5}}, .floor = 3, .new_from = 5}));
  EXPECT_FALSE(part({.path = {{.step = 2}}, .floor = 2}));
  EXPECT_FALSE(part({.path = {{.step = 2}}, .floor = ~size_t{0}}));
  EXPECT_FALSE(part({.path = {{.step = -2}}}));
  EXPECT_FALSE(part({.path = {{.step = 2}, {.step = 1}}}));
  EXPECT_FALSE(part({.path = {{.chosen = -1}}}));
  EXPECT_FALSE(part({.path = {{.kind = ChoiceKind::kFault, .size = 2, .chosen = 2}}}));
  EXPECT_FALSE(part({.path = {{.kind = static_cast<ChoiceKind>(9)}}}));
  EXPECT_FALSE(part({.path = {{.candidates = {0, -7}}}}));
  EXPECT_FALSE(part({.new_from = -1}));
  EXPECT_FALSE(part({.rooted = 2}));
  const auto news = [](const News& news) { return News::decode(news.encode()).ok(); };
  EXPECT_TRUE(news({.kind = News::Kind::kPart, .rest = {.path = {{.step = 2}}, .floor = 2}}));
  EXPECT_FALSE(news({.kind = News::Kind::kPart, .rest = {.path = {{.step = -2}}}}));
  EXPECT_FALSE(news({.kind = News::Kind::kPart, .given = {{.node = {.step = -1}, .chosen = {}}}}));
  EXPECT_FALSE(news({.kind = News::Kind::kSeeds, .run = -2}));
  EXPECT_FALSE(news({.kind = News::Kind::kSeeds, .ns = -1}));
}

// A part that ends before it has told of anything has no rest that could tell.
TEST(CampaignMessagesTest, APartTellsOfAnEarlyChangeHoweverItStands) {
  for (const News::State state :
       {News::State::kGoing, News::State::kPaused, News::State::kDone, News::State::kFailed}) {
    ScheduleTree tree{TreePart{}};
    EXPECT_FALSE(News::of_part(&tree, state).completions_write);
    early_changes_found.fetch_add(1);
    EXPECT_TRUE(News::of_part(&tree, state).completions_write);
  }
}

TEST(CampaignMessagesTest, CutOrLongerOnesAreRefused) {
  const std::string bytes = News{.kind = News::Kind::kHello, .identity = kUs}.encode();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(News::decode(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(News::decode(bytes + "x").ok());
  EXPECT_FALSE(Order::decode("\x7f").ok());
  // A length that is a lie.
  std::string lie = News{.kind = News::Kind::kHello}.encode();
  lie[lie.size() - 4] = '\x7f';
  EXPECT_FALSE(News::decode(lie).ok());
}

// --- whether processes search for the same

TEST(CampaignIdentityTest, HasAllThatDrawnRunsAndChecksDependOn) {
  const auto program = [](RankContext&) {};
  const auto run = [](const std::shared_ptr<World>&, Program, std::vector<std::string>*, absl::FunctionRef<void()>) {
    return RunReport();
  };
  const auto text = [&](ExploreOptions options) {
    if (!options.world.seed.has_value()) options.world.seed = 1;
    return campaign_identity(options,
                             Baseline(options.checks, options.world, options.world.world_size, 1, program, run))
        .options;
  };
  using Change = std::function<void(ExploreOptions&)>;
  const std::vector<Change> changes = {[](auto& o) { o.first_seed = 2; },
                                       [](auto& o) { o.world.seed = 2; },
                                       [](auto& o) { o.world.world_size = 3; },
                                       [](auto& o) { o.max_steps = o.world.max_steps = 7; },
                                       [](auto& o) { o.world.faults = FaultPlan::seeded(1, 0.5); },
                                       [](auto& o) { o.vary_faults = false; },
                                       [](auto& o) { o.strategies.pop_back(); },
                                       [](auto& o) { o.checks.results = false; },
                                       [](auto& o) { o.checks.groups = false; },
                                       [](auto& o) { o.checks.store_keys = false; },
                                       [](auto& o) { o.checks.store_values = true; },
                                       [](auto& o) { o.checks.leaks = false; },
                                       [](auto& o) { o.checks.keys_left = true; }};
  std::set<std::string> texts = {text({})};
  for (const Change& change : changes) {
    ExploreOptions options;
    change(options);
    EXPECT_TRUE(texts.insert(text(options)).second) << text(options);
  }
}

}  // namespace
}  // namespace rankloom
