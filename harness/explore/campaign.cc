#include "harness/explore/campaign.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "sim/base/dist_error.h"
#include "sim/base/parker.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr int64_t kShowEvery = 100'000'000;  // of progress
constexpr int64_t kMostRuns = 1'000'000;     // that a worker makes before it asks for more
constexpr int64_t kSeedsFor = 20'000'000;    // how long the drawn runs that are handed out at once take
constexpr int64_t kShortRun = 1'000'000;     // of such runs a worker has more ahead
constexpr int kTimesKilled = 3;
constexpr int kSilentDeaths = 3;

}  // namespace

int64_t Campaign::Drawn::all_runs() const { return std::accumulate(runs.begin(), runs.end(), int64_t{0}); }

Campaign::Campaign(WorkerLinks* workers, CampaignIdentity identity, int64_t grace_ns)
    : workers_(*workers),
      identity_(std::move(identity)),
      grace_ns_(grace_ns),
      states_(static_cast<size_t>(workers->count())) {}

Campaign::~Campaign() { send_all({.kind = Order::Kind::kStop}); }

void Campaign::send_all(const Order& order) {
  for (int i = 0; i < workers_.count(); ++i) {
    if (states_[static_cast<size_t>(i)].alive) send(i, order);
  }
}

bool Campaign::anyone_works(int64_t before) const {
  return absl::c_any_of(states_, [before](const Worker& worker) {
    return absl::c_any_of(worker.works, [before](const Work& work) { return work.first < before; });
  });
}

void Campaign::wait_for_news(int64_t end_ns) {
  const int64_t now = monotonic_ns();
  int64_t ns = std::max<int64_t>(0, std::min(now + kShowEvery, end_ns) - now);
  if (now >= end_ns) ns = kShowEvery;  // only those that still make a run are waited for
  for (std::optional<WorkerLinks::Event> event = workers_.receive(ns); event.has_value(); event = workers_.receive(0)) {
    handle(*event);
  }
}

void Campaign::await_greetings(int64_t end_ns) {
  const auto silent = [](const Worker& worker) { return worker.alive && !worker.greeted; };
  while (error_.ok() && absl::c_any_of(states_, silent) && !overdue(end_ns, silent)) wait_for_news(end_ns);
}

void Campaign::handle(const WorkerLinks::Event& event) {
  if (!event.ended.empty()) return died(event.worker, event);
  absl::StatusOr<News> news = News::decode(event.message);
  if (!news.ok()) {
    error_ = invalid_argument("explore: of ", workers_.name(event.worker), ", ", message_of(news.status()));
    return;
  }
  Worker& worker = states_[static_cast<size_t>(event.worker)];
  switch (news->kind) {
    case News::Kind::kHello:
      greet(event.worker, *news);
      break;
    case News::Kind::kRun:
      if (!exploring_ && news->run >= 0 && !worker.works.empty() &&
          (news->run < worker.works.front().first || news->run >= worker.works.front().end)) {
        return misfit(event.worker, absl::StrCat("run ", news->run, ", want one of ", worker.works.front().first,
                                                 " to before ", worker.works.front().end));
      }
      worker.now = news->run;
      worker.departures.clear();
      break;
    case News::Kind::kSwitch:
      absl::c_copy(news->switches, std::back_inserter(worker.departures));
      break;
    case News::Kind::kSeeds:
      heard_seeds(event.worker, *std::move(news));
      break;
    case News::Kind::kOpened:
    case News::Kind::kPart:
      heard_part(event.worker, *std::move(news));
      break;
  }
}

void Campaign::misfit(int number, std::string_view what) {
  error_ = invalid_argument("explore: ", workers_.name(number), " tells of ", sv(what));
}

void Campaign::greet(int number, const News& news) {
  const CampaignIdentity& theirs = news.identity;
  Worker& worker = states_[static_cast<size_t>(number)];
  worker.greeted = true;
  worker.silent_deaths = 0;
  objects_alike_ = objects_alike_ && objects_.value_or(news.objects) == news.objects;
  objects_ = news.objects;
  const auto differs = [&](std::string_view what, const std::string& have, const std::string& want) {
    if (have != want && error_.ok())
      error_ = invalid_argument("explore: ", workers_.name(number), " ", sv(what), ": ", have, ", want ", want,
                                ", as the process that leads");
  };
  differs("runs another program", theirs.program, identity_.program);
  differs("has other options", theirs.options, identity_.options);
  differs("makes another first run", theirs.first_run, identity_.first_run);
}

// --- workers that die

bool Campaign::blames_run(const Worker& worker, bool by_others, Work* work) {
  if (!work->careful || worker.now < 0) return false;
  work->died = work->died_in == worker.now ? work->died + 1 : 1;
  work->died_in = worker.now;
  return !by_others || work->died >= kTimesKilled;
}

void Campaign::died(int number, const WorkerLinks::Event& event) {
  Worker dead = std::exchange(states_[static_cast<size_t>(number)], {.alive = false});
  bool blamed = false;
  for (size_t i = dead.works.size(); i-- > 0;) {
    Work& work = dead.works[i];
    if (exploring_) runs_left_ += std::exchange(work.runs, 0);
    if (i == 0 && blames_run(dead, event.by_others, &work)) {
      found({.run = dead.now, .died = event.ended, .departures = std::move(dead.departures)});
      blamed = true;
      // The drawn runs before it may fail as well.
      work.end = std::min(work.end, dead.now);
      if (exploring_ || work.first >= work.end) continue;
    }
    work.careful = work.careful || i == 0;
    returned_.push_front(std::move(work));
  }
  if (!blamed) {
    deaths_.push_back(absl::StrCat(workers_.name(number), " ended with ", event.ended,
                                   dead.works.empty() ? "" : "; its work was given to others"));
  }
  Worker& worker = states_[static_cast<size_t>(number)];
  worker.silent_deaths = dead.greeted ? 0 : dead.silent_deaths + 1;
  worker.alive = worker.silent_deaths < kSilentDeaths && workers_.replace(number);
  if (!worker.alive && absl::c_none_of(states_, [](const Worker& other) { return other.alive; }) && error_.ok())
    error_ =
        make_error(ErrorKind::kAborted, absl::StrCat("explore: no process is left to search, and none can be started: ",
                                                     workers_.name(number), " ended with ", event.ended));
}

bool Campaign::overdue(int64_t end_ns, absl::FunctionRef<bool(const Worker&)> waits) {
  if (monotonic_ns() - grace_ns_ < end_ns) return false;
  std::vector<std::string> names;
  for (int i = 0; i < workers_.count(); ++i) {
    if (waits(states_[static_cast<size_t>(i)])) names.push_back(workers_.name(i));
  }
  error_ = make_error(
      ErrorKind::kTimeout,
      absl::StrCat(
          "explore: a run has not ended ", absl::FormatDuration(absl::Nanoseconds(grace_ns_)),
          " after max_time was over: that of ", absl::StrJoin(names, ", "),
          "; WorldOptions::stall_is_fatal ends a run in which a rank comes to no scheduling point for so long, "
          "and the search names it"));
  return true;
}

void Campaign::found(Failure failure) {
  if (exploring_) {
    if (!explored_.failure.has_value()) explored_.failure = std::move(failure);
    return;
  }
  if (drawn_.failure.has_value() && drawn_.failure->run <= failure.run) return;
  seeds_end_ = failure.run;
  drawn_.failure = std::move(failure);
  send_all({.kind = Order::Kind::kPause, .first = seeds_end_});
}

// --- the tree of all schedules

Campaign::Explored Campaign::explore(const Budget& budget, absl::FunctionRef<void(const Explored&)> told) {
  exploring_ = true;
  runs_left_ = budget.runs;
  for (int rooted = 0; rooted == 0 || (rooted == 1 && rooted_asked_); ++rooted) {
    trunk_.emplace(rooted);
    explored_.finished = false;
    bool paused = false;
    while (error_.ok() && !explored_.failure.has_value() && !trunk_->finished()) {
      if (!paused && monotonic_ns() >= budget.end_ns) {
        paused = true;
        send_all({.kind = Order::Kind::kPause, .first = Order::kAll});
      }
      if (!paused) deal_parts();
      if ((paused || runs_left_ == 0) && !anyone_works()) break;
      if (paused && overdue(budget.last_ns, has_work)) break;
      wait_for_news(budget.end_ns);
      explored_.open = trunk_->open() + static_cast<int64_t>(returned_.size());
      for (const Worker& worker : states_) explored_.open += has_work(worker) ? worker.open : 0;
      told(explored_);
    }
    explored_.finished = trunk_->finished() && error_.ok() && !explored_.failure.has_value();
    if (!explored_.finished) break;
  }
  if (explored_.finished) explored_.open = 0;
  if (older_objects_ && !objects_alike_)
    add_uncovered("objects that were made before explore(), which other processes made in other numbers");
  exploring_ = false;
  returned_.clear();
  trunk_.reset();
  return explored_;
}

std::optional<Campaign::Work> Campaign::next_part() {
  if (!returned_.empty()) {
    Work work = std::move(returned_.front());
    returned_.pop_front();
    return work;
  }
  const int64_t number = trunk_->take();
  if (number < 0) return std::nullopt;
  return Work{.number = number};
}

void Campaign::deal_parts() {
  bool idle = false;
  for (int i = 0; i < workers_.count(); ++i) {
    const Worker& worker = states_[static_cast<size_t>(i)];
    if (!worker.alive || !worker.greeted || !worker.works.empty() || runs_left_ == 0) continue;
    std::optional<Work> work = next_part();
    if (work.has_value()) {
      send_part(i, *std::move(work));
    } else {
      idle = true;
    }
  }
  if (idle) ask_to_share();
}

void Campaign::send_part(int number, Work work) {
  Worker& worker = states_[static_cast<size_t>(number)];
  work.runs = std::clamp<int64_t>(runs_left_ / (2 * workers_.count()), 1, kMostRuns);
  runs_left_ -= work.runs;
  Order order{.kind = Order::Kind::kPart,
              .work = work.number,
              .careful = work.careful,
              .fresh = trunk_->fresh(work.number),
              .runs = work.runs,
              .part = work.begun ? trunk_->part(work.number, work.rest) : trunk_->part(work.number)};
  order.part.completions_write = completions_write_;
  worker.asked_to_share = false;
  worker.open = 1;
  worker.now = -1;
  worker.departures.clear();
  worker.works.push_back(std::move(work));
  send(number, order);
}

void Campaign::ask_to_share() {
  // As many as wait, of those that know of most.
  size_t waiting = 0;
  std::vector<int> busy;
  for (int i = 0; i < workers_.count(); ++i) {
    const Worker& worker = states_[static_cast<size_t>(i)];
    if (!worker.alive || !worker.greeted) continue;
    if (worker.works.empty()) {
      ++waiting;
    } else if (worker.asked_to_share) {
      waiting -= waiting > 0 ? 1 : 0;
    } else {
      busy.push_back(i);
    }
  }
  absl::c_stable_sort(busy, [this](int a, int b) {
    return states_[static_cast<size_t>(a)].open > states_[static_cast<size_t>(b)].open;
  });
  for (size_t i = 0; i < std::min(waiting, busy.size()); ++i) {
    states_[static_cast<size_t>(busy[i])].asked_to_share = true;
    send(busy[i], {.kind = Order::Kind::kShare});
  }
}

void Campaign::add_uncovered(std::string what) {
  const auto at = absl::c_lower_bound(explored_.uncovered, what);
  if (at == explored_.uncovered.end() || *at != what) explored_.uncovered.insert(at, std::move(what));
}

void Campaign::heard_part(int number, News news) {
  Worker& worker = states_[static_cast<size_t>(number)];
  if (!exploring_ || worker.works.empty() || worker.works.front().number != news.work) return;
  Work& work = worker.works.front();
  if (news.runs < 0 || news.runs > work.runs)
    return misfit(number, absl::StrCat(news.runs, " runs, want at most ", work.runs));
  if (news.schedules < 0 || news.repeated < 0 || news.schedules + news.repeated > news.runs)
    return misfit(number, absl::StrCat(news.schedules, " schedules and ", news.repeated, " runs that repeat others in ",
                                       news.runs, " runs"));
  if (!news.given.empty()) worker.asked_to_share = false;
  bool fits = trunk_->give(work.number, std::move(news.given));
  if (news.opened.id >= 0) fits = fits && trunk_->opened(work.number, std::move(news.opened));
  for (const TreeWish& wish : news.wishes) fits = fits && trunk_->wish(work.number, wish);
  if (!fits) {
    error_ = invalid_argument("explore: ", workers_.name(number),
                              " tells of choices that no run has made: the program is not deterministic");
    return;
  }
  if (news.kind == News::Kind::kOpened) return;
  work.runs -= news.runs;
  worker.open = news.open;
  explored_.runs += news.runs;
  explored_.schedules += news.schedules;
  explored_.repeated += news.repeated;
  explored_.saw_any |= news.saw_any;
  rooted_asked_ |= news.rooted_asked;
  completions_write_ |= news.completions_write;
  older_objects_ |= news.older_objects;
  for (std::string& what : news.uncovered) add_uncovered(std::move(what));
  if (news.state == News::State::kGoing || news.state == News::State::kPaused) {
    work.rest = std::move(news.rest);
    work.begun = true;
  }
  if (news.state == News::State::kGoing) {
    // A death from here on is one in another run.
    worker.now = -1;
    work.died_in = -1;
    work.died = 0;
    return;
  }
  runs_left_ += std::exchange(work.runs, 0);
  Work ended = std::move(work);
  worker.works.pop_front();
  worker.asked_to_share = false;
  worker.now = -1;
  if (news.state == News::State::kDone) trunk_->finish(ended.number);
  if (news.state == News::State::kPaused) {
    ended.careful = false;
    returned_.push_back(std::move(ended));
  }
  if (news.failure.has_value()) found({.seen = *std::move(news.failure)});
}

// --- drawn runs

Campaign::Drawn Campaign::draw(int strategies, const Budget& budget, absl::FunctionRef<void(const Drawn&)> told) {
  drawn_.runs.resize(static_cast<size_t>(strategies));
  seeds_end_ = budget.runs;
  bool paused = false;
  while (error_.ok()) {
    if (!paused && monotonic_ns() >= budget.end_ns) {
      paused = true;
      send_all({.kind = Order::Kind::kPause, .first = 0});
    }
    if (!paused) deal_seeds();
    // Runs behind a failure are of no interest.
    if (!anyone_works(drawn_.failure.has_value() && !paused ? seeds_end_ : Order::kAll)) {
      const bool more = next_seed_ < seeds_end_ ||
                        absl::c_any_of(returned_, [this](const Work& work) { return work.first < seeds_end_; });
      if (paused || !more) break;
    }
    if (paused &&
        (drawn_.failure.has_value() ? monotonic_ns() - grace_ns_ >= budget.last_ns : overdue(budget.last_ns, has_work)))
      break;
    wait_for_news(budget.end_ns);
    told(drawn_);
  }
  returned_.clear();
  return drawn_;
}

std::optional<Campaign::Work> Campaign::next_seeds() {
  while (!returned_.empty()) {
    Work work = std::move(returned_.front());
    returned_.pop_front();
    work.end = std::min(work.end, seeds_end_);
    if (work.first < work.end) return work;
  }
  if (next_seed_ >= seeds_end_) return std::nullopt;
  const int64_t share = (seeds_end_ - next_seed_) / (2 * workers_.count());
  const int64_t each_ns = drawn_runs_ > 0 ? std::max<int64_t>(1, drawn_ns_ / drawn_runs_) : kSeedsFor;
  const int64_t count = std::max<int64_t>(1, std::min(share, kSeedsFor / each_ns));
  Work work{.number = seed_works_++, .first = next_seed_, .end = std::min(next_seed_ + count, seeds_end_)};
  next_seed_ = work.end;
  return work;
}

void Campaign::deal_seeds() {
  const bool ahead = drawn_runs_ > 0 && drawn_ns_ / drawn_runs_ < kShortRun;
  for (size_t most = 1; most <= (ahead ? 2u : 1u); ++most) {
    for (int i = 0; i < workers_.count(); ++i) {
      Worker& worker = states_[static_cast<size_t>(i)];
      if (!worker.alive || !worker.greeted || worker.works.size() >= most) continue;
      if (!worker.works.empty() && worker.works.front().careful) continue;
      std::optional<Work> work = next_seeds();
      if (!work.has_value()) return;
      const Order order{.kind = Order::Kind::kSeeds,
                        .work = work->number,
                        .careful = work->careful,
                        .first = work->first,
                        .end = work->end};
      worker.works.push_back(*std::move(work));
      send(i, order);
    }
  }
}

void Campaign::heard_seeds(int number, News news) {
  Worker& worker = states_[static_cast<size_t>(number)];
  if (exploring_ || worker.works.empty() || worker.works.front().number != news.work) return;
  const Work& given = worker.works.front();
  if (news.run < given.first + (news.failure.has_value() ? 1 : 0) || news.run > given.end) {
    return misfit(number, absl::StrCat("the runs from ", given.first, " to before ", news.run, ", want them to before ",
                                       given.end, " at most"));
  }
  Work work = std::move(worker.works.front());
  worker.works.pop_front();
  worker.now = -1;
  for (int64_t run = work.first; run < news.run; ++run) ++drawn_.runs[static_cast<size_t>(run) % drawn_.runs.size()];
  drawn_runs_ += news.run - work.first;
  drawn_ns_ += news.ns;
  if (news.failure.has_value()) {
    found({.run = news.run - 1, .seen = *std::move(news.failure)});
  } else if (news.run < work.end) {
    work.first = news.run;
    work.careful = false;
    returned_.push_front(std::move(work));
  }
}

}  // namespace rankloom::internal
