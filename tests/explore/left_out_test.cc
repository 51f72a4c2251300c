// Each place in the library that tells the exhaustive search of an access matters: without it a small program loses an
// outcome. Or there is a reason why none can. A new place fails here until it stands in one of the lists;
// left_out_campaign finds programs for the first. access_places_test.py holds that no function is forgotten.

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/work/work_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "sim/base/text.h"
#include "tests/explore/access_sites.h"
#include "tests/explore/searches.h"
#include "tests/explore/small_program.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = SmallOpKind;

const SearchLimits kLimits = {.unreduced = 1'000, .reduced = 1'000, .seeds = 3};

using Run = std::function<Outcome(const Schedule&, const RunHooks&)>;

struct Program {
  std::string text;
  Run run;
};

struct Shown {
  std::string_view place;  // AccessSites::name()
  Program by;
};

Program small(const SmallProgram& program) {
  return {to_text(program),
          [program](const Schedule& schedule, const RunHooks& hooks) { return run_program(program, schedule, hooks); }};
}
Program drawn(uint64_t seed) { return small(draw_program(seed)); }
Program by_ranks(std::vector<std::vector<SmallOp>> ranks) { return small({.ranks = std::move(ranks)}); }

// `program` returns what the rank saw.
Program written(int ranks, std::function<std::string(RankContext&)> program, CodeSite at = CodeSite::here()) {
  return {absl::StrCat("the program at line ", at.line, "\n"),
          [ranks, program = std::move(program)](const Schedule& schedule, const RunHooks& hooks) {
            return run_once(ranks, schedule, hooks, program);
          }};
}

// The calls of this group are done when the program says so.
class PromisedGroup final : public ProcessGroup {
 public:
  PromisedGroup(RankContext& rank, std::shared_ptr<const Group> group, Promise promise)
      : ProcessGroup(rank, std::move(group)), promise_(std::move(promise)) {}
  std::string backend_name() const override { return "promised"; }
  absl::StatusOr<Work> execute(CollectiveCall&& /*call*/) override { return promise_.work(); }

 private:
  const Promise promise_;
};

// The end of two ranks that share a work: rank 0 drops the last handle when both have come.
void let_go_together(RankContext& rank, Work& shared) {
  rank.store().add("done", 1);
  if (rank.rank() != 0) return;
  while (rank.store().add("done", 0) < 2) rank.yield();
  shared = Work();
}

std::string kind_of(const DistError& error) { return std::string(error_kind_name(error.kind())); }

// A rank drops its call while an exception unwinds, before the other rank has called or after, or too late.
Program withdrawn(bool message) {
  return written(2, [message](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    const auto call = [&] { return !message ? pg->all_reduce(x) : rank.rank() == 0 ? pg->recv(x, 1) : pg->send(x, 0); };
    if (rank.rank() == 1) rank.store().get("called");
    std::string saw;
    try {
      Work work = call();
      if (rank.rank() == 0) {
        rank.store().set("called", "1");
        rank.yield();
        throw std::runtime_error("planned");
      }
      work.wait();
      saw = "done";
    } catch (const DistError& error) {
      saw = kind_of(error);
    } catch (const std::runtime_error&) {
    }
    rank.yield();
    return saw;
  });
}

// A rank drops its call while an exception unwinds, and returns before the other's call or after.
Program look_at_unwound(bool message) {
  return written(2, [message](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    const auto call = [&] { return !message ? pg->all_reduce(x) : rank.rank() == 0 ? pg->recv(x, 1) : pg->send(x, 0); };
    if (rank.rank() == 0) {
      try {
        const Work work = call();
        throw std::runtime_error("planned");
      } catch (const std::runtime_error&) {
      }
      rank.store().set("dropped", "1");
      rank.yield();
      return "";
    }
    rank.store().get("dropped");
    Work work = call();
    rank.store().set("called", "1");
    const bool at_once = work.is_completed();
    try {
      work.wait();
    } catch (const DistError& error) {
      return absl::StrCat(at_once, kind_of(error));
    }
    return "done";
  });
}

// Rank 0 aborts the group around a call of rank 1 that needs at most rank 0's own.
Program aborted_around(bool gives) {
  return written(2, [gives](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kEach});
    std::vector<float> x = {1};
    try {
      if (rank.rank() == 0) {
        if (!gives) pg->broadcast(x, 0).wait();
        rank.yield();
        pg->abort("planned");
        return "";
      }
      Work work = pg->broadcast(x, gives ? 1 : 0);
      try {
        work.wait();
        return "done";
      } catch (const DistError& error) {
        return "waited: " + kind_of(error);
      }
    } catch (const DistError& error) {
      return kind_of(error);
    }
  });
}

// Things that ranks of a run hand to each other, once something of rankloom's has ordered them.
struct Handed {
  Work work;
  std::unique_ptr<SimStream> stream;
};
Program handing(std::string (*program)(RankContext& rank, Handed& handed), CodeSite at = CodeSite::here()) {
  return {absl::StrCat("the program at line ", at.line, "\n"),
          [program](const Schedule& schedule, const RunHooks& hooks) {
            Handed handed;
            return run_once(2, schedule, hooks, [&](RankContext& rank) { return program(rank, handed); });
          }};
}

// A rank looks at an output after it has waited for another call.
Program read_behind(GroupOptions::Rooted rooted, bool message) {
  return written(2, [rooted, message](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank, {.rooted = rooted});
    std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
    Work work = !message ? pg->broadcast(x, 0) : rank.rank() == 0 ? pg->send(x, 1) : pg->recv(x, 0);
    pg->barrier().wait();
    const float seen = x[0];
    work.wait();
    return rank.rank() == 1 ? absl::StrCat(seen) : "";
  });
}

// A rank looks at its output before the call fails, and after that.
Program put_back(bool message) {
  return written(2, [message](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    std::string saw;
    try {
      Work work = !message ? pg->all_reduce(x) : rank.rank() == 0 ? pg->send(x, 1, 1) : pg->recv(x, 0, 2);
      rank.yield();
      if (rank.rank() == 0) return saw;
      saw = absl::StrCat(x[0]);
      rank.yield();
      absl::StrAppend(&saw, " ", x[0]);
      work.wait();
    } catch (const DistError&) {
    }
    return saw;
  });
}

std::vector<Shown> shown() {
  // A rank takes its time after another one's wait began, or before.
  const Program timeout =
      by_ranks({{{.kind = Kind::kStoreTimeout, .c = 1}, {.kind = Kind::kSleep, .c = 2}, {.kind = Kind::kSet}},
                {{.kind = Kind::kGet}}});
  const Program watched = by_ranks({{{.kind = Kind::kWatchedSet, .b = 1}}, {{.kind = Kind::kWatchedGet}}});
  const SmallProgram streamed_receive = {
      .reads_early = true,
      .ranks = {
          {{.kind = Kind::kSleep, .c = 2}, {.kind = Kind::kRecv, .streamed = true, .b = 1}, {.kind = Kind::kWait}},
          {{.kind = Kind::kSend}, {.kind = Kind::kWait}}}};
  const Program left = written(2, [](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    if (rank.rank() == 0) {
      rank.yield();
      pg->abort("planned");
      return "";
    }
    try {
      const Work work = pg->barrier({.keep_alive = std::make_shared<int>()});
      rank.yield();
      try {
        pg->shutdown();
        return "left";
      } catch (const DistError& error) {
        return "left too late: " + kind_of(error);
      }
    } catch (const DistError& error) {
      return kind_of(error);
    }
  });
  // The first calls do not fit together; the second one comes before that is known, or after.
  const Program refused = written(2, [](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    const Work first = pg->barrier({.keep_alive = std::make_shared<int>()}, rank.rank() == 0 ? "a" : "b");
    try {
      const Work second = pg->barrier({.keep_alive = std::make_shared<int>()});
      return "filed";
    } catch (const DistError&) {
      return "refused";
    }
  });
  const Program counted_too_far = {"who counts a latch down too far\n",
                                   [](const Schedule& schedule, const RunHooks& hooks) {
                                     Latch latch(1);
                                     return run_once(2, schedule, hooks, [&latch](RankContext& rank) -> std::string {
                                       try {
                                         latch.count_down();
                                       } catch (const DistError&) {
                                         return absl::StrCat(rank.store().check({"k"}));
                                       }
                                       rank.store().set("k", "1");
                                       return "counted";
                                     });
                                   }};
  const Program counted_twice = {"who counts a latch down by two\n",
                                 [](const Schedule& schedule, const RunHooks& hooks) {
                                   Latch latch(2);
                                   return run_once(2, schedule, hooks, [&latch](RankContext& rank) -> std::string {
                                     try {
                                       latch.count_down(rank.rank() == 0 ? 2 : 1);
                                       return "counted";
                                     } catch (const DistError& error) {
                                       return kind_of(error);
                                     }
                                   });
                                 }};
  const Program received_first = written(3, [](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() > 0) {
      rank.store().get("receives");
      pg->send(x, 0).wait();
      return "";
    }
    std::vector<float> y = {1};
    Work first = pg->recv_any(x);
    rank.store().set("receives", "1");
    Work second = pg->recv_any(y);
    first.wait();
    second.wait();
    return absl::StrCat(first.source());
  });
  const Program streamed = small(streamed_receive);
  const Program second_group = written(2, [](RankContext& rank) -> std::string {
    if (rank.rank() == 1) return absl::StrCat(rank.world().groups().size());
    rank.yield();
    init_process_group(rank);
    init_process_group(rank);
    return "";
  });
  const Program named = written(2, [](RankContext& rank) {
    return std::string(init_process_group(rank, {.name = rank.rank() == 0 ? "a" : "b"})->group()->name());
  });
  const Program in_another_order = written(2, [](RankContext& rank) {
    const bool zero = rank.rank() == 0;
    const auto a = init_process_group(rank, {.name = zero ? "x" : "y", .ranks = {0, 1}});
    const auto b = init_process_group(rank, {.name = zero ? "y" : "x", .ranks = {0, 1}});
    return absl::StrCat(a->group()->id(), b->group()->id());
  });
  // Rank 1 aborts by the handle of rank 0, whose output it closes.
  const Program aborted_by_other = written(2, [](RankContext& rank) -> std::string {
    static std::shared_ptr<ProcessGroup> handle;
    const auto a = init_process_group(rank);
    const auto b = init_process_group(rank);
    std::vector<float> x = {1};
    Work work = a->all_reduce(x);
    if (rank.rank() == 0) {
      handle = a;
      rank.store().set("ready", "");
      rank.store().get("go");
    } else {
      work.wait();
      rank.store().get("ready");
      rank.store().set("go", "");
      std::exchange(handle, nullptr)->abort();
    }
    b->all_reduce(x).wait();
    return "done";
  });
  // Rank 1 has the last event of a stream of rank 0, which may be through by then.
  const Program event_of_other = written(2, [](RankContext& rank) -> std::string {
    static Stream::Event event;
    static std::vector<float> x;
    const auto pg = init_process_group(rank, {.eager_bytes = 64});
    if (rank.rank() == 0) {
      x = {1};
      {
        SimStream stream(rank);
        (void)pg->send(x, 1, 0, {.stream = &stream});
        event = stream.record();
      }
      rank.store().set("go", "");
      return "";
    }
    rank.store().get("go");
    rank.yield();
    event = {};
    std::vector<float> y(1);
    try {
      pg->recv(y, 0).wait();
      return "received";
    } catch (const DistError& error) {
      return kind_of(error);
    }
  });
  const auto fake_of = [](bool of_ranks) {
    return written(2, [of_ranks](RankContext& rank) {
      const auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
      const bool zero = rank.rank() == 0;
      GroupOptions options{.name = "g"};
      if (!of_ranks) options.description = zero ? "a" : "b";
      const auto made = of_ranks && zero ? pg->new_group(std::vector<int>{0, 1}, options) : pg->new_group(options);
      return std::string(made->group()->description());
    });
  };
  const Program name_of_other = written(2, [](RankContext& rank) -> std::string {
    static std::shared_ptr<ProcessGroup> handle;
    if (rank.rank() == 0) {
      const auto pg = init_process_group(rank);
      handle = pg;
      rank.store().set("ready", "");
      rank.yield();
      pg->set_group_name("b");
      return "";
    }
    rank.store().get("ready");
    return std::exchange(handle, nullptr)->group_name();
  });
  const Program numbers_of_listeners =
      written(2, [](RankContext& rank) { return absl::StrCat(rank.world().on_abort([](const absl::Status&) {})); });
  // The rank that forgets the hook lets go of what it owns.
  const auto forgotten = [](bool at_end) {
    return written(2, [at_end](RankContext& rank) {
      static int64_t hook;
      static std::string by;
      const auto owned = [] { return std::shared_ptr<int>(new int, [](const int* p) { delete p, by = "gone"; }); };
      if (rank.rank() == 0) {
        by.clear();
        hook = at_end ? rank.world().at_end([owner = owned()] {})
                      : rank.world().on_abort([owner = owned()](const absl::Status&) {});
        rank.store().set("there", "");
      } else {
        rank.store().get("there");
      }
      rank.yield();
      at_end ? rank.world().forget_at_end(hook) : rank.world().forget_on_abort(hook);
      return std::exchange(by, "");
    });
  };
  // A wait for a call with a delay behind it: the first rank to wait has it.
  const Program struck = {
      "a call of which two ranks wait\n", [](const Schedule& schedule, const RunHooks& hooks) {
        std::vector<std::string> seen(2);
        WorldOptions options{.world_size = 2, .engine = EngineKind::kFibers, .schedule = schedule, .seed = 1};
        options.faults = {{.kind = Fault::Kind::kDelay, .rank = 0, .op = "barrier", .when = Fault::When::kAfter}};
        RunReport report = WorldState::make(options, hooks)->run([&](RankContext& rank) {
          static Work shared;
          const auto pg = init_process_group(rank);
          Work own = pg->barrier();
          if (rank.rank() == 0) {
            shared = own;
            rank.store().set("ready", "");
            own.wait();
          } else {
            own.wait();
            rank.store().get("ready");
            shared.wait();
          }
          seen[static_cast<size_t>(rank.rank())] = absl::FormatDuration(rank.now());
          let_go_together(rank, shared);
        });
        return outcome_of(std::move(report), seen);
      }};
  // A wait by another rank flips a bit in memory of the rank whose call it was. Of a group of rankloom's the wait tells
  // of that memory in another place, too: the outputs are the rank's again.
  const Program corrupted_by_other = {
      "a call of which another rank waits\n", [](const Schedule& schedule, const RunHooks& hooks) {
        std::vector<std::string> seen(2);
        WorldOptions options{.world_size = 2, .engine = EngineKind::kFibers, .schedule = schedule, .seed = 1};
        options.faults = {{.kind = Fault::Kind::kCorrupt, .rank = 0, .op = "all_reduce", .when = Fault::When::kAfter}};
        RunReport report = WorldState::make(options, hooks)->run([&](RankContext& rank) {
          static Work shared;
          std::vector<float> x = {1};
          if (rank.rank() == 0) {
            Promise promise;
            const auto make = [promise](RankContext& self, const std::shared_ptr<const Group>& group) {
              return std::make_shared<PromisedGroup>(self, group, promise);
            };
            shared = init_process_group(rank, {.make = make, .ranks = {0}})->all_reduce(x);
            promise.set_value();
            rank.store().set("ready", "");
            rank.store().get("begun");
            rank.yield();
            seen[0] = absl::StrCat(x[0]);
          } else {
            rank.store().get("ready");
            rank.store().set("begun", "");
            rank.yield();
            shared.wait();
          }
          let_go_together(rank, shared);
        });
        return outcome_of(std::move(report), seen);
      }};
  const Program warned = written(2, [](RankContext& rank) -> std::string {
    if (rank.rank() == 1) {
      rank.sleep_for(ms(1));
      return "";
    }
    std::vector<float> x = {1};
    try {
      init_process_group(rank, {.warn_after = ms(1)})->all_reduce(x).wait(ms(5));
      return "done";
    } catch (const DistError& error) {
      return kind_of(error);
    }
  });
  // Both calls of a rank fail with one text, and one of the errors is asked for, before the other comes or after it.
  const Program asked_for = written(2, [](RankContext& rank) -> std::string {
    static RankLocal<std::vector<Work>> kept;
    for (int i = 0; i < 2; ++i) {
      auto pg = init_process_group(rank, {.name = "g", .ranks = {0, 1}});
      kept->push_back(pg->barrier({.keep_alive = std::make_shared<int>()}, rank.rank() == 0 ? "a" : "b"));
    }
    try {
      (*kept)[1].wait();
    } catch (const DistError&) {
    }
    return "";
  });
  const Program drawn_by_other = written(2, [](RankContext& rank) {
    rank.store().set(absl::StrCat(rank.rank()), "");
    return absl::StrCat(rank.world().context(1).rng().next());
  });
  // Rank 1 uses the handle of rank 0, which says in its error what rank 0 has done with it.
  const auto refused_by = [](void (*use)(ProcessGroup&)) {
    static std::shared_ptr<ProcessGroup> handle;
    return written(2, [use](RankContext& rank) -> std::string {
      if (rank.rank() == 0) {
        const auto pg = init_process_group(rank, {.ranks = {0}});
        handle = pg;
        rank.store().set("ready", "");
        pg->barrier().wait();
        pg->set_group_name("b");
        rank.yield();
        return "";
      }
      rank.store().get("ready");
      const auto pg = std::exchange(handle, nullptr);
      try {
        use(*pg);
        return "used";
      } catch (const DistError& error) {
        return error.what();
      }
    });
  };
  // The stream of rank 0 fails between that rank's last look and the other one's, or not.
  const Program stream_fails = handing([](RankContext& rank, Handed& handed) -> std::string {
    if (rank.rank() == 1) {
      rank.store().get("handed");
      return absl::StrCat(handed.stream->status().ok());
    }
    handed.stream = std::make_unique<SimStream>(rank);
    Promise promise(&rank.world().scheduler(), 0);
    promise.set_error(make_error(ErrorKind::kCollectiveError, "planned"));
    handed.stream->wait_for(promise.work());
    rank.store().set("handed", "1");
    return absl::StrCat(handed.stream->status().ok());
  });
  // Rank 1 waits for a part of rank 0's coalesced calls, which are issued by then, or not.
  const Program other_rank_waits = handing([](RankContext& rank, Handed& handed) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    pg->start_coalescing();
    Work part = pg->all_reduce(x);
    if (rank.rank() == 0) {
      handed.work = part;
      rank.store().set("handed", "1");
    }
    Work whole = pg->end_coalescing();
    std::string saw = "done";
    if (rank.rank() == 1) {
      rank.store().get("handed");
      Work work = std::move(handed.work);
      try {
        work.wait();
      } catch (const DistError& error) {
        saw = kind_of(error);
      }
    }
    whole.wait();
    return saw;
  });
  // Rank 0 writes to an output once rank 1 has learned that the call is done, or too early.
  const Program learned_by_other = handing([](RankContext& rank, Handed& handed) -> std::string {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1};
    if (rank.rank() == 1) {
      Work mine = pg->all_reduce(x);
      rank.store().get("handed");
      Work work = std::move(handed.work);
      work.wait();
      mine.wait();
      return "";
    }
    auto alone = init_process_group(rank, {.ranks = {0}});
    Work work = pg->all_reduce(x);
    handed.work = work;
    rank.store().set("handed", "1");
    std::string saw = "free";
    try {
      alone->all_reduce(x).wait();
    } catch (const DistError& error) {
      saw = kind_of(error);
    }
    work.wait();
    return saw;
  });
  return {
      // Drawn ones.
      {"write: KeyTable::tell_set < KeyTable::set", drawn(253)},
      {"read: KeyTable::tell_set < KeyTable::set", drawn(813)},
      {"commute: KeyTable::tell_set < KeyTable::set", drawn(551)},
      {"write: KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", drawn(151)},
      {"read: Rendezvous::append_missing", drawn(110'046'361)},
      {"write: tell", drawn(110'036'880)},  // internal::tell(): a completion that finds the work gone
      {"read: KeyTable::find", drawn(529)},
      {"commute: KeyTable::erase", drawn(718)},
      {"lower: KeyTable::tell_condition < KeyTable::erase", drawn(151)},
      {"write: KeyTable::tell_presence < KeyTable::erase", drawn(75)},
      {"lower: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::erase", drawn(75)},
      {"read: KeyTable::present", drawn(47)},
      {"miss: KeyTable::tell_wait < KeyTable::waits_on", drawn(75)},
      {"write: WorkState::complete", drawn(164)},
      {"read: KeyTable::pop", drawn(428)},
      {"commute: Rendezvous::file", drawn(57)},
      {"commute: Rendezvous::run_later", drawn(72)},
      {"commute: LatchState::count_down", drawn(938)},
      {"write: KeyTable::watch", drawn(813)},
      {"write: MutexState::take", drawn(1102)},
      {"lower: MutexState::take", drawn(433)},
      {"read: LatchState::try_wait", drawn(534)},
      {"commute: Mailbox::record_post", drawn(408)},
      {"commute: Mailbox::unpair", drawn(1360)},
      {"write: CondVarState::wait_until", drawn(1114)},
      {"write: MutexState::release", drawn(1102)},
      {"read: LatchState::count_down", drawn(938)},
      {"write: CondVarState::notify_first", drawn(1114)},
      {"miss: MutexState::acquire", drawn(1102)},
      {"write: KeyTable::push", drawn(428)},
      {"write: KeyTable::tell_presence < KeyTable::push", drawn(47)},
      {"write: KeyTable::pop", drawn(1013)},
      {"lower: KeyTable::tell_condition < KeyTable::pop", drawn(513)},
      {"write: KeyTable::tell_presence < KeyTable::pop", drawn(47)},
      {"lower: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::pop", drawn(47)},
      {"read: KeyTable::queue_len", drawn(828)},
      {"read: KeyTable::sorted_keys", drawn(551)},
      {"read: KeyTable::tell_wait < KeyTable::gave_up", drawn(922)},
      {"read: MutexState::try_lock", drawn(1102)},
      {"read: KeyTable::size", drawn(718)},
      {"write: DeterministicScheduler::pick", drawn(72)},
      {"write: Rendezvous::set_failed", refused},
      {"read: WorkState::is_completed", drawn(164)},
      {"read: Rendezvous::refused", drawn(284)},
      {"read: Mailbox::refusal", drawn(188)},
      // Written by hand.
      {"write: WorldState::shared_object", by_ranks({{{.kind = Kind::kShared}}, {{.kind = Kind::kShared}}})},
      {"read: WorldState::shared_object", by_ranks({{{.kind = Kind::kShared}}, {{.kind = Kind::kShared}}})},
      {"read: WorldState::has_shared_object",
       by_ranks({{{.kind = Kind::kPromiseSetError}, {.kind = Kind::kRecvAny, .c = 1}},
                 {{.kind = Kind::kSend, .c = 1},
                  {.kind = Kind::kPromiseWork, .a = 1},
                  {.kind = Kind::kEarlyWrite, .b = 1}}})},
      {"write: StoreState::set_timeout", timeout},
      {"read: StoreState::timeout", timeout},
      {"write: KeyTable::tell_set < KeyTable::append",
       by_ranks({{{.kind = Kind::kAppend}, {.kind = Kind::kGet}}, {{.kind = Kind::kAppend, .b = 1}}})},
      {"write: WatchedAccess::WatchedAccess", watched},
      {"read: WatchedAccess::WatchedAccess", watched},
      {"write: KeyTable::erase",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kDeleteKey}}, {{.kind = Kind::kCompareSet, .b = 2}}})},
      {"read: KeyTable::erase",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kDeleteKey}}, {{.kind = Kind::kWatchKey}}})},
      {"read: KeyTable::tell_set < KeyTable::append",
       by_ranks({{{.kind = Kind::kSet}, {.kind = Kind::kAppend}}, {{.kind = Kind::kWatchKey}}})},
      // Rank 0 makes the promise, and keeps it when both ranks have left their callbacks.
      {"write: WorkState::then", by_ranks({{{.kind = Kind::kPromiseWork},
                                            {.kind = Kind::kSet, .a = 2},
                                            {.kind = Kind::kThen, .body = {{.kind = Kind::kAppend}}},
                                            {.kind = Kind::kGet, .a = 1},
                                            {.kind = Kind::kPromiseSetValue},
                                            {.kind = Kind::kSleep, .c = 1},
                                            {.kind = Kind::kGet}},
                                           {{.kind = Kind::kGet, .a = 2},
                                            {.kind = Kind::kPromiseWork},
                                            {.kind = Kind::kThen, .body = {{.kind = Kind::kAppend, .b = 1}}},
                                            {.kind = Kind::kSet, .a = 1},
                                            {.kind = Kind::kWait}}})},
      {"write: WorldState::unshare",
       by_ranks(
           {{{.kind = Kind::kShared}, {.kind = Kind::kYield}, {.kind = Kind::kUnshare}}, {{.kind = Kind::kShared}}})},
      {"write: World::at_end", written(2,
                                       [](RankContext& rank) -> std::string {
                                         static bool first;
                                         first = true;
                                         rank.world().at_end([&world = rank.world(), number = rank.rank()] {
                                           if (std::exchange(first, false))
                                             world.note(absl::StrCat("the first hook is of rank ", number));
                                         });
                                         return "";
                                       })},
      {"read: WorldState::groups", second_group},
      {"write: WorldState::next_world_group", second_group},
      {"read: WorldState::next_world_group", named},
      {"write: WorldState::next_group_of", written(2,
                                                   [](RankContext& rank) {
                                                     rank.yield();
                                                     auto pg = init_process_group(rank, {.ranks = {rank.rank()}});
                                                     return absl::StrCat(pg->group()->id());
                                                   })},
      {"write: WorldState::add_group", written(3,
                                               [](RankContext& rank) -> std::string {
                                                 if (rank.rank() == 2)
                                                   return absl::StrCat(rank.world().groups().size());
                                                 rank.yield();
                                                 if (rank.rank() == 0)
                                                   state_of(rank).world().add_group("a", {0}, "", 1);
                                                 return "";
                                               })},
      {"settle: Rendezvous::finish", read_behind(GroupOptions::Rooted::kTogether, /*message=*/false)},
      {"settle: Rendezvous::complete_served", read_behind(GroupOptions::Rooted::kEach, /*message=*/false)},
      {"settle: Mailbox::finish", read_behind(GroupOptions::Rooted::kTogether, /*message=*/true)},
      {"write: Rendezvous::finish", put_back(/*message=*/false)},
      {"write: Mailbox::finish", put_back(/*message=*/true)},
      {"commute: Rendezvous::file_early", aborted_around(/*gives=*/true)},
      {"commute: Rendezvous::serve_later", aborted_around(/*gives=*/false)},
      {"write: Rendezvous::withdraw", withdrawn(/*message=*/false)},
      {"write: Mailbox::take_out", withdrawn(/*message=*/true)},
      {"read: Rendezvous::look_at_unwound", look_at_unwound(/*message=*/false)},
      {"read: Mailbox::look_at_unwound", look_at_unwound(/*message=*/true)},
      {"write: KeyTable::tell_events < KeyTable::file_event",
       by_ranks({{{.kind = Kind::kWatchKey}, {.kind = Kind::kWatchKey, .a = 1}, {.kind = Kind::kSet}},
                 {{.kind = Kind::kSet, .a = 1}}})},
      {"write: KeyTable::deliver_filed", written(2,
                                                 [](RankContext& rank) -> std::string {
                                                   if (rank.rank() == 1) {
                                                     rank.store().set("k", "1");
                                                     return "";
                                                   }
                                                   const auto called = std::make_shared<bool>(false);
                                                   rank.store().watch_key("k",
                                                                          [called](auto&&, auto&&) { *called = true; });
                                                   rank.yield();
                                                   return *called ? "called" : "";
                                                 })},
      {"write: run_as_guest", written(2,
                                      [](RankContext& rank) -> std::string {
                                        const auto promise = WorldLocal<Promise>("p").get(rank.world(), [&] {
                                          return std::make_shared<Promise>(&rank.world().scheduler(), 0);
                                        });
                                        if (rank.rank() == 0) {
                                          promise->set_value();
                                          return "";
                                        }
                                        const auto seen = std::make_shared<std::string>();
                                        promise->work().then([seen](auto&&) { *seen += "called "; });
                                        rank.yield();
                                        *seen += "one ";
                                        rank.yield();
                                        return *seen + "two";
                                      })},
      {"read: Rendezvous::unfinished", left},
      // Rank 0 has the last handle: that rank 1 drops its own is no look.
      {"read: WorkState::then", by_ranks({{{.kind = Kind::kGet},
                                           {.kind = Kind::kPromiseSetValue},
                                           {.kind = Kind::kPromiseWork},
                                           {.kind = Kind::kGet, .a = 1}},
                                          {{.kind = Kind::kPromiseWork},
                                           {.kind = Kind::kSet},
                                           {.kind = Kind::kYield},
                                           {.kind = Kind::kThen, .body = {{.kind = Kind::kSetVariable}}},
                                           {.kind = Kind::kReadVariable},
                                           {.kind = Kind::kDrop},
                                           {.kind = Kind::kSet, .a = 1}}})},
      {"read: WorldState::asks", in_another_order},
      {"write: GroupFront::close_outputs", aborted_by_other},
      {"write: SimStream::Queue::give_up", event_of_other},
      {"write: told_of_made_alone", fake_of(/*of_ranks=*/false)},
      {"read: told_of_made_alone", fake_of(/*of_ranks=*/false)},
      {"write: GroupFront::looked_at", name_of_other},
      {"write: GroupFront::need_own_rank", refused_by([](ProcessGroup& pg) { (void)pg.sequence_number(); })},
      {"write: GroupFront::submit", refused_by([](ProcessGroup& pg) { pg.barrier().wait(); })},
      {"write: RankContext::rng", drawn_by_other},
      {"write: WorldState::not_retrieved", asked_for},
      {"read: WorldState::retrieved", asked_for},
      {"write: World::on_abort", numbers_of_listeners},
      {"write: World::forget_on_abort", forgotten(/*at_end=*/false)},
      {"write: World::forget_at_end", forgotten(/*at_end=*/true)},
      {"write: FaultWork::touched_by_strike", struck},
      {"write: FaultWork::writes_output", corrupted_by_other},
      {"write: SimStream::status", stream_fails},
      {"write: WorkState::forget_outputs", learned_by_other},
      {"commute: PartWork::issued", other_rank_waits},
      {"read: Work::release",
       by_ranks({{{.kind = Kind::kBarrier}, {.kind = Kind::kAllReduce, .a = 1}, {.kind = Kind::kWaitAll}},
                 {{.kind = Kind::kBarrier}, {.kind = Kind::kAllReduce, .a = 1}, {.kind = Kind::kWait, .a = 1}}})},
      {"lower: LatchState::count_down", counted_too_far},
      {"write: LatchState::count_down", counted_twice},
      {"read: CondVarState::wait_until",
       by_ranks({{{.kind = Kind::kCondWaitFor, .c = 1}},
                 {{.kind = Kind::kSleep, .c = 1}, {.kind = Kind::kNotifyOne, .b = 1}}})},
      {"write: Mailbox::record_post", received_first},
      {"write: WorldState::ended_text", warned},
  };
}

struct Reason {
  std::string_view place;
  std::string_view why;
};

// Without them the search tries more orders than there are.
constexpr std::string_view kOrders = "says which orders cannot be";
constexpr std::string_view kLooksAgain =
    "a wait that gives up asks whether the work is done, and who is missing: they tell of the same";
// A change of a key's value reads its queue, and the other way round: either of the two shows the race.
constexpr std::string_view kEachPart = "who changes the other part of the key looks at this one";

constexpr std::string_view kOnceItGoesOn =
    "others see of it only once the rank goes on, or never: look_at_unwound() tells of that";

const std::vector<Reason> kNotShown = {
    {"raise: KeyTable::tell_condition < KeyTable::tell_set < KeyTable::set", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", kOrders},
    {"pass: KeyTable::tell_wait < KeyTable::goes_on", kOrders},
    {"signal: WorkState::complete", kOrders},
    {"signal: Rendezvous::file", kOrders},
    {"signal: Rendezvous::file_early", kOrders},
    {"await: Rendezvous::serve_later", kOrders},
    {"await: Rendezvous::run", kOrders},
    {"await: WorkState::await_until", kOrders},
    {"read: Rendezvous::wait_until", kLooksAgain},
    {"read: WorkState::await_until", kLooksAgain},
    {"await: WorkState::await_from", kOrders},
    {"signal: LatchState::count_down", kOrders},
    {"await: LatchState::wait", kOrders},
    {"pass: MutexState::acquire", kOrders},
    {"signal: Mailbox::record_post", kOrders},
    {"await: Mailbox::move", kOrders},
    {"raise: MutexState::release", kOrders},
    {"all were: DeterministicScheduler::advance_clock", kOrders},
    {"all were: DeterministicScheduler::advance_clock_by", kOrders},
    {"signal: CondVarState::notify_first", kOrders},
    {"await: CondVarState::wait_until", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::push", kOrders},
    {"raise: KeyTable::tell_condition < KeyTable::tell_presence < KeyTable::push", kOrders},
    {"write: Rendezvous::fail", "set_failed() tells of the same in the same step"},
    {"read: MutexState::release", "only the text of the error depends on who holds the mutex"},
    {"pass: LatchState::count_down", kOrders},
    {"write: Mailbox::set_failed",
     "Rendezvous::set_failed() tells of the same in the same step: a group fails as a whole"},
    {"read: KeyTable::tell_wait < KeyTable::goes_on", "pass() tells more of the same wait in the same step"},
    {"read: WorkState::when_done", "called in the step that makes the work; only a later step completes it"},
    {"read: WorkState::once_done", "wait_any() has asked in the same step whether the work is done"},
    {"write: Rendezvous::lose", kOnceItGoesOn},
    {"write: Mailbox::remember", kOnceItGoesOn},
    {"read: GroupFront::agree_on", "the handle goes after a wait(), which tells that the work is done"},
    {"read: WorkState::await_from", "status() tells of the same in the same step"},
    {"read: WorkState::status", "who asks has told that the work is done; how it ended never changes"},
    {"read: WorkState::complete",
     "only the wait for a work with faults completes it again, and tells of the inner work, which ended before"},
    {"commute: CoalescedWork::part_done", "parts that end well decide nothing: the first error does"},
    {"write: CoalescedWork::part_done", "a part that fails fails its group, which set_failed() tells of"},
    {"read: KeyTable::tell_presence < KeyTable::tell_set < KeyTable::set", kEachPart},
    {"read: KeyTable::tell_presence < KeyTable::erase", kEachPart},
    {"read: KeyTable::tell_presence < KeyTable::push", kEachPart},
    {"read: KeyTable::tell_presence < KeyTable::pop", kEachPart},
    {"write: KeyTable::tell_events < KeyTable::deliver_filed",
     "two callbacks of one rank meet in its memory, so that only the watches of two ranks show it, beside two that "
     "set"},
    {"read: Mailbox::unfinished", "Rendezvous::unfinished() tells of the same in the same step"},
    {"write: init_process_group", "the names and numbers of groups tell of the same"},
    {"write: observe_bytes", "runs are compared by what their ranks observe, and no run sees another's"},
    {"read: CoalescedWork::look_at_parts", "only the text of a warning depends on it"},
};

std::string how_to_show(std::string_view place) {
  return absl::StrCat("Another program may show it: left_out_campaign 3000 200 1 10 \"", sv(place),
                      "\", or one written by hand; or there is a reason\n");
}

class LeftOutTest : public testing::Test {
 protected:
  // The findings of the reduced searches without the accesses of `place`; "": with all.
  Comparison compare_without(const Program& program, std::string_view place, std::set<std::string>* seen = nullptr) {
    SearchLimits limits = kLimits;
    limits.leave_out = [&](const StepRecord::Op& op) {
      const std::string& name = sites_.name(sites_.site(op));
      if (seen != nullptr) seen->insert(name);
      return name == place;
    };
    return compare_searches(program.run, limits);
  }

  AccessSites sites_;
};

// Of the table a part, for test programs of no more than half a minute.
class PartOfThePlacesTest : public LeftOutTest, public testing::WithParamInterface<size_t> {};
constexpr size_t kParts = 4;
INSTANTIATE_TEST_SUITE_P(Parts, PartOfThePlacesTest, testing::Range(size_t{0}, kParts));

TEST_P(PartOfThePlacesTest, EachThatMattersIsShown) {
  const std::vector<Shown> all = shown();
  for (size_t i = GetParam(); i < all.size(); i += kParts) {
    const auto& [place, program] = all[i];
    SCOPED_TRACE(place);
    std::set<std::string> seen;
    const Comparison with = compare_without(program, "", &seen);
    const std::string another = program.text + how_to_show(place);
    EXPECT_EQ(with.flaw, Flaw::kNone) << with.text << another;
    EXPECT_THAT(seen, testing::Contains(place)) << another;
    EXPECT_NE(compare_without(program, place).flaw, Flaw::kNone) << "it loses nothing without the place\n" << another;
  }
}

TEST_F(LeftOutTest, EachPlaceIsKnown) {
  std::set<std::string> known;
  for (const Shown& each : shown()) known.emplace(each.place);
  for (const Reason& each : kNotShown) EXPECT_TRUE(known.emplace(each.place).second) << each.place << " stands twice";
  const auto look = [&](const Program& program) {
    const SearchLimits limits = {.reduced = 30, .shuffles = 0, .leave_out = [&](const StepRecord::Op& op) {
                                   const int site = sites_.site(op);
                                   if (!known.insert(sites_.name(site)).second) return false;
                                   ADD_FAILURE() << sites_.name(site) << ": want it in a list above; told of in\n"
                                                 << program.text << how_to_show(sites_.name(site));
                                   return false;
                                 }};
    Searches searches;
    search_reduced(program.run, limits, &searches);
  };
  for (const Shown& each : shown()) look(each.by);
  for (uint64_t seed = 1; seed <= 500; ++seed) look(drawn(seed));
}

// Each of the reads of a key's other part can be left out, but not all.
TEST_F(LeftOutTest, OneOfTheTwoWhoChangeAKeysPartsLooksAtTheOther) {
  const Program program = written(2, [](RankContext& rank) -> std::string {
    Store& store = rank.store();
    if (rank.rank() == 0) {
      store.set("k", "0");
      store.delete_key("k");
      return "";
    }
    store.get("k");
    const bool there = store.check({"k"});
    store.queue_push("k", "1");
    return there ? "there" : "gone";
  });
  SearchLimits limits = kLimits;
  limits.leave_out = [&](const StepRecord::Op& op) {
    return std::any_of(kNotShown.begin(), kNotShown.end(), [&](const Reason& reason) {
      return reason.why == kEachPart && reason.place == sites_.name(sites_.site(op));
    });
  };
  EXPECT_NE(compare_searches(program.run, limits).flaw, Flaw::kNone);
}

// The reason that is given by the kind of what is told is that kind's.
TEST_F(LeftOutTest, OrdersAreTheReasonOfKindsThatTellOfOrders) {
  for (const auto& [place, why] : kNotShown) {
    const std::string_view what = place.substr(0, place.find(':'));
    const bool orders = what == "signal" || what == "await" || what == "raise" || what == "pass" || what == "all were";
    EXPECT_EQ(why == kOrders, orders) << place;
  }
}

}  // namespace
}  // namespace rankloom
