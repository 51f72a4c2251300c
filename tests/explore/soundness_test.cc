// Programs whose exhaustive search once ended without an outcome that other schedules have. Each is a race of one kind;
// its name says which.

#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/device_mesh.h"
#include "rankloom/error.h"
#include "rankloom/explore.h"
#include "rankloom/process_group.h"
#include "rankloom/stream.h"
#include "rankloom/sync.h"
#include "rankloom/work.h"
#include "rankloom/world.h"
#include "sim/schedule/schedule_tree.h"
#include "tests/error_of.h"
#include "tests/explore/searches.h"
#include "tests/explore/small_program.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

const WorldLocal<int> kX("x");

using Program = std::function<std::string(RankContext&)>;  // returns what the rank saw

struct Race {
  std::string name;
  int ranks;
  // The program of one run, with what its ranks share.
  std::function<Program()> make;
  SearchLimits limits = {.unreduced = 5'000, .reduced = 20'000, .seeds = 100};
};

void PrintTo(const Race& race, std::ostream* out) { *out << race.name; }

// Of a program whose ranks share nothing but their world.
Race race(std::string name, int ranks, Program program, const SearchLimits& limits = Race().limits) {
  return {std::move(name), ranks, [program = std::move(program)] { return program; }, limits};
}

// The same, too large for the unreduced search.
Race large_race(std::string name, int ranks, Program program) {
  Race large = race(std::move(name), ranks, std::move(program));
  large.limits.unreduced = 0;
  return large;
}

// The same, with a rank that makes so many steps that no seed lets it make all of them before another moves.
Race long_race(std::string name, int ranks, Program program) {
  Race race = large_race(std::move(name), ranks, std::move(program));
  race.limits.plain = true;
  return race;
}

// Data that ranks share beside their world, made anew for each run.
struct Shared {
  Mutex mu;
  CondVar cv;
  Latch latch{2};
  int n = 0;
};
using SharedProgram = std::string (*)(RankContext& rank, Shared& shared);

Race race_on_shared(std::string name, int ranks, SharedProgram program) {
  return {std::move(name), ranks, [program] {
            return Program(
                [program, shared = std::make_shared<Shared>()](RankContext& rank) { return program(rank, *shared); });
          }};
}

std::string kind_of(const DistError& error) { return std::string(error_kind_name(error.kind())); }

// A store of a program's own, which acts before a call goes on.
class ActingStore final : public Store {
 public:
  ActingStore(Store* store, int* calls) : Store(store), store_(*store), calls_(*calls) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    ++calls_;
    return store_.execute(call);
  }
  std::string_view kind() const override { return "ActingStore"; }

 private:
  Store& store_;
  int& calls_;
};

// A helper looks at its rank, which acts and then waits for a key.
Race race_before_a_wait(std::string name, void (*act_and_wait)(RankContext& rank, int* acted)) {
  return race(std::move(name), 2, [act_and_wait](RankContext& rank) -> std::string {
    if (rank.rank() == 0) {
      rank.store().multi_set({"k", "p/k"}, {"1", "1"});
      return "";
    }
    int acted = 0;
    bool waited = false;
    std::string seen;
    Latch looked(1);
    rank.world().spawn_helper([&] {
      rank.yield();
      seen = absl::StrCat(acted, waited);
      looked.count_down();
    });
    act_and_wait(rank, &acted);
    waited = true;
    looked.wait();
    return seen;
  });
}

std::vector<Race> store_races() {
  return {
      race_before_a_wait("a wait behind a store that counts",
                         [](RankContext& rank, int* acted) { ActingStore(&rank.store(), acted).wait({"k"}); }),
      race_before_a_wait("a wait behind a store that counts, under a prefix",
                         [](RankContext& rank, int* acted) {
                           auto counts = std::make_shared<ActingStore>(&rank.store(), acted);
                           PrefixStore("p", counts).wait({"k"});
                         }),
      race_before_a_wait("an execute that waits, without a method of the store",
                         [](RankContext& rank, int* acted) {
                           ++*acted;
                           const std::string_view key = "k";
                           (void)rank.store().execute({.op = StoreCall::Op::kWait, .keys = {&key, 1}});
                         }),
      race("a second push before the length is asked", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 0) {
               store.queue_push("q", "a");
               store.queue_push("q", "b");
               return "";
             }
             const std::string first = store.queue_pop("q");
             return absl::StrCat(first, store.queue_len("q"));
           }),
      race("a key that comes and goes and comes, and a get", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) return store.get("k");
             store.set("k", "1");
             store.delete_key("k");
             store.set("k", "2");
             return "";
           }),
      race("a key that comes and goes and comes, and a wait", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) {
               store.wait({"k"});
               return store.check({"j"}) ? "j" : "-";
             }
             store.set("k", "1");
             store.delete_key("k");
             store.set("j", "9");
             store.set("k", "2");
             return "";
           }),
      race("the keys that a wait names which gives up", 2,
           [](RankContext& rank) -> std::string {
             if (rank.rank() == 0) {
               rank.store().set("b", "1");
               return "";
             }
             std::string text;
             for (const absl::Duration timeout : {absl::ZeroDuration(), ms(1)}) {
               const std::string error = error_of([&] { rank.store().wait({"a", "b"}, timeout); });
               absl::StrAppend(&text, error.substr(0, error.find(" [")), "; ");
             }
             return text;
           }),
      race("a watch that is set late, and a change", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) {
               store.set("k", "1");
               store.set("end", "1");
               return "";
             }
             store.watch_key("k", [&store](auto&&, auto&&) { store.set("called", "1"); });
             store.wait({"end"});
             return store.check({"called"}) ? "called" : "-";
           }),
      race("keys counted after a yield", 2,
           [](RankContext& rank) -> std::string {
             if (rank.rank() == 0) {
               rank.store().set("a", "1");
               rank.store().set("b", "1");
               return "";
             }
             rank.yield();
             return absl::StrCat(rank.store().num_keys());
           }),
      race("a key that goes before something is pushed under it, and a check", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 0) {
               store.set("k", "0");
               store.delete_key("k");
               return "";
             }
             (void)store.get("k");
             const bool there = store.check({"k"});
             store.queue_push("k", "1");
             return there ? "there" : "gone";
           }),
      race("what is popped before a value is set under its key, and a check", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) return store.queue_pop("k");
             store.queue_push("k", "0");
             const bool there = store.check({"k"});
             store.set("k", "1");
             return there ? "there" : "gone";
           }),
      race("what ranks share, let go of and made again", 2,
           [](RankContext& rank) -> std::string {
             const auto made = [&] {
               bool mine = false;
               (void)kX.get(rank.world(), [&] {
                 mine = true;
                 return std::make_shared<int>(1);
               });
               return mine ? "made" : "found";
             };
             if (rank.rank() == 1) return made();
             kX.forget(rank.world());
             rank.store().set("k", "1");
             return made();
           }),
      race("looks at keys by a rank that also makes a group", 2,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) {
               const bool k = store.check({"k"});
               const bool m = store.check({"m"});
               store.set("z", "1");
               return absl::StrCat(k, m);
             }
             auto pg = init_process_group(rank);
             store.set("k", "1");
             store.set("m", "1");
             return absl::StrCat(store.check({"z"}));
           }),
      long_race("a race behind 250 steps of one rank", 2,
                [](RankContext& rank) -> std::string {
                  if (rank.rank() == 1) return absl::StrCat(rank.store().check({"k"}));
                  for (int i = 0; i < 250; ++i) rank.store().set("a", "x");
                  rank.store().set("k", "1");
                  return "";
                }),
      long_race("a race behind 100 steps of one rank", 2,
                [](RankContext& rank) -> std::string {
                  if (rank.rank() == 1) return absl::StrCat(rank.store().check({"k"}));
                  for (int i = 0; i < 100; ++i) rank.store().set("a", "x");
                  rank.store().set("k", "1");
                  return "";
                }),
      long_race("a send behind 230 steps that another send overtakes", 3,
                [](RankContext& rank) -> std::string {
                  auto pg = init_process_group(rank);
                  std::vector<float> x = {static_cast<float>(rank.rank())};
                  if (rank.rank() == 2) {
                    std::string sources;
                    for (int i = 0; i < 2; ++i) {
                      Work work = pg->recv_any(x);
                      work.wait();
                      absl::StrAppend(&sources, work.source());
                    }
                    return sources;
                  }
                  for (int i = 0; i < 230 && rank.rank() == 0; ++i) rank.store().set("a", "x");
                  pg->send(x, 2).wait();
                  return "";
                }),
  };
}

std::vector<Race> time_races() {
  return {
      race("a peer that comes at the deadline of a collective", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1};
             if (rank.rank() == 1) rank.sleep_for(ms(5));
             try {
               pg->all_reduce(x).wait(ms(rank.rank() == 0 ? 5 : 50));
               return "done";
             } catch (const DistError& error) {
               return kind_of(error);
             }
           }),
      race("a key that comes at the deadline of its wait", 2,
           [](RankContext& rank) -> std::string {
             if (rank.rank() == 1) {
               rank.sleep_for(ms(5));
               rank.store().set("k", "1");
               return "";
             }
             try {
               rank.store().wait({"k"}, ms(5));
               return "came";
             } catch (const DistError& error) {
               return kind_of(error);
             }
           }),
      race("the first of several keys comes at the deadline of their wait", 2,
           [](RankContext& rank) -> std::string {
             if (rank.rank() == 1) {
               rank.sleep_for(ms(5));
               rank.store().set("b", "1");
               return "";
             }
             const std::string error = error_of([&] { rank.store().wait({"b", "c"}, ms(5)); });
             return absl::StrCat(error.substr(0, error.find(" [")), ", b is there: ", rank.store().check({"b"}));
           }),
      race("a value is pushed at the deadline of one who waits for it, and taken by another", 3,
           [](RankContext& rank) -> std::string {
             Store& store = rank.store();
             if (rank.rank() == 1) {
               rank.sleep_for(ms(5));
               store.queue_push("q", "1");
               return "";
             }
             if (rank.rank() == 2) {
               rank.sleep_for(ms(5));
               try {
                 return store.queue_pop("q", /*block=*/false);
               } catch (const DistError& error) {
                 return kind_of(error);
               }
             }
             try {
               store.set_timeout(ms(5));
               return store.queue_pop("q");
             } catch (const DistError& error) {
               return absl::StrCat(kind_of(error), ", pushed: ", store.queue_len("q"));
             }
           }),
      race_on_shared("a notification at the deadline of its wait", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 1) {
                         rank.sleep_for(ms(5));
                         const MutexLock lock(&shared.mu);
                         ++shared.n;
                         shared.cv.notify_one();
                         return "";
                       }
                       const MutexLock lock(&shared.mu);
                       return absl::StrCat(shared.cv.wait_for(&shared.mu, ms(5), [&] { return shared.n > 0; }));
                     }),
      race_on_shared("a wait that ends at its deadline while another rank holds the mutex", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         rank.sleep_for(ms(1));
                         for (int i = 0; i < 2; ++i) {
                           {
                             const MutexLock lock(&shared.mu);
                             ++shared.n;
                           }
                           if (i == 0) shared.cv.notify_one();
                         }
                         return "";
                       }
                       const MutexLock lock(&shared.mu);
                       int asked = 0;
                       shared.cv.wait_for(&shared.mu, ms(1), [&] { return ++asked < 0; });
                       return absl::StrCat(asked, " ", shared.n);
                     }),
      race("two ranks that sleep for equally long", 2,
           [](RankContext& rank) -> std::string {
             rank.sleep_for(ms(1));
             return absl::StrCat(rank.store().add("n", 1));
           }),
  };
}

std::vector<Race> work_races() {
  return {
      race("a group that is left while another rank aborts it", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1};
             const Work work = pg->all_reduce(x);
             try {
               rank.rank() == 0 ? pg->abort("enough") : pg->shutdown();
             } catch (const DistError& error) {
               return kind_of(error);
             }
             return work.is_success() ? "done" : "failed";
           }),
      race("a callback and the rank that it is of", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1};
             bool called = false;
             Work work = pg->all_reduce(x);
             work.then([&](const absl::Status&) { called = true; });
             rank.store().set(absl::StrCat("mine ", rank.rank()), "1");
             const bool seen = called;
             work.wait();
             pg->barrier().wait();
             return rank.rank() == 0 ? absl::StrCat(seen) : "";
           }),
      race("two callbacks of one rank", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1}, y = {1};
             std::string order;
             Work first = pg->all_reduce(x);
             Work second = pg->all_reduce(y);
             first.then([&](const absl::Status&) { order += "1"; });
             second.then([&](const absl::Status&) { order += "2"; });
             first.wait();
             second.wait();
             while (order.size() < 2) rank.yield();
             return rank.rank() == 0 ? order : "";
           }),
      race("a helper born before the race, and its rank", 2,
           [](RankContext& rank) -> std::string {
             if (rank.rank() == 1) {
               rank.store().set("go", "1");
               return "";
             }
             auto flag = std::make_shared<bool>(false);
             rank.world().spawn_helper([&rank, flag] {
               rank.store().get("go");
               *flag = true;
             });
             rank.store().set("a", "1");
             return absl::StrCat(*flag);
           }),
      race("the source of a receive that nobody has waited for", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1};
             if (rank.rank() == 1) {
               pg->send(x, 0).wait();
               return "";
             }
             Work work = pg->recv(x, 1);
             rank.store().set("a", "1");
             const int source = work.source();
             work.wait();
             return absl::StrCat(source);
           }),
      race("which of two receives is done first", 3,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1}, y = {2};
             if (rank.rank() > 0) {
               pg->send(x, 0).wait();
               return "";
             }
             std::vector<Work> works = {pg->recv(x, 1), pg->recv(y, 2)};
             const size_t first = wait_any(works);
             wait_all(works);
             return absl::StrCat(first);
           }),
  };
}

std::vector<Race> stream_races() {
  return {
      race("a stream asked whether its collective is done", 2,
           [](RankContext& rank) -> std::string {
             auto pg = init_process_group(rank);
             std::vector<float> x = {1};
             SimStream stream(rank, "s");
             Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
             rank.store().set(absl::StrCat("mine ", rank.rank()), "1");
             const bool idle = stream.query();
             stream.synchronize();
             return rank.rank() == 0 ? absl::StrCat(idle) : "";
           },
           {.unreduced = 5'000, .reduced = 60'000, .seeds = 100}),
      race("a synchronize that was forgotten", 1,
           [](RankContext& rank) -> std::string {
             SimStream stream(rank, "s");
             int value = 0;
             stream.launch([&] { value = 1; });
             rank.store().set("a", "1");
             const int seen = value;
             stream.synchronize();
             return absl::StrCat(seen);
           }),
      race("an event asked whether it was passed", 1,
           [](RankContext& rank) -> std::string {
             SimStream stream(rank, "s");
             const Stream::Event event = stream.record();
             rank.store().set("a", "1");
             const bool passed = event.query();
             stream.synchronize();
             return absl::StrCat(passed);
           }),
  };
}

// How a promise that is kept ended.
std::string error_of(const Promise& promise) {
  const Work work = promise.work();
  if (!work.is_completed()) return "open";
  return work.is_success() ? "value" : "error";
}

// A promise of rank `owner` that rank 0 keeps and rank 1 left a callback with.
Race callback_of_another(const char* name, int owner) {
  return {name, 2, [owner] {
            return Program([owner](RankContext& rank) -> std::string {
              const auto promise = WorldLocal<Promise>("promise").get(
                  rank.world(), [&] { return std::make_shared<Promise>(&rank.world().scheduler(), owner); });
              if (rank.rank() == 0) {
                promise->set_value();
                return "";
              }
              const auto seen = std::make_shared<std::string>();
              promise->work().then([seen](const absl::Status&) { *seen += "called "; });
              rank.yield();
              *seen += "one ";
              rank.yield();
              return *seen + "two";
            });
          }};
}

std::vector<Race> sync_races() {
  return {
      {"a promise that two ranks keep", 2,
       [] {
         return Program([promise = std::make_shared<Promise>()](RankContext& rank) -> std::string {
           if (rank.rank() == 0) {
             promise->set_value();
             promise->set_value();
             return error_of(*promise);
           }
           promise->set_error(make_error(ErrorKind::kAborted, "no"));
           return error_of(*promise);
         });
       }},
      callback_of_another("a callback of a work of no rank, run by the rank that keeps the promise", -1),
      callback_of_another("a callback of a work of another rank", 0),
      callback_of_another("a callback of a work of its own rank", 1),
      race_on_shared("a latch that is counted down too often", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       const int times = rank.rank() == 0 ? 1 : 2;
                       std::string seen;
                       for (int i = 0; i < times; ++i) {
                         try {
                           shared.latch.count_down();
                           seen += "counted ";
                         } catch (const DistError& error) {
                           seen += kind_of(error);
                         }
                         rank.store().add(absl::StrCat("steps ", rank.rank()), 1);
                       }
                       return seen;
                     }),
      race_on_shared("try_lock between two turns of another rank", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         for (int i = 0; i < 2; ++i) {
                           const MutexLock lock(&shared.mu);
                           ++shared.n;
                         }
                         return "";
                       }
                       if (!shared.mu.try_lock()) return "busy";
                       const int n = shared.n;
                       shared.mu.unlock();
                       return absl::StrCat("got it at ", n);
                     }),
      race_on_shared("try_lock and lock between two turns of another rank", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         shared.mu.lock();
                         shared.mu.unlock();
                         const MutexLock lock(&shared.mu);
                         return absl::StrCat(++shared.n);
                       }
                       std::string seen = "busy ";
                       if (shared.mu.try_lock()) {
                         seen = absl::StrCat("got it at ", ++shared.n, " ");
                         shared.mu.unlock();
                       }
                       const MutexLock lock(&shared.mu);
                       return absl::StrCat(seen, ++shared.n);
                     }),
      race_on_shared("try_lock and lock beside one turn of another rank", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         const MutexLock lock(&shared.mu);
                         return absl::StrCat(++shared.n);
                       }
                       std::string seen = "busy ";
                       if (shared.mu.try_lock()) {
                         seen = absl::StrCat("got it at ", ++shared.n, " ");
                         shared.mu.unlock();
                       }
                       const MutexLock lock(&shared.mu);
                       return absl::StrCat(seen, ++shared.n);
                     }),
      race_on_shared("try_lock twice beside two turns of another rank", 2,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       std::string seen;
                       for (int i = 0; i < 2; ++i) {
                         if (rank.rank() == 0) {
                           shared.mu.lock();
                           shared.mu.unlock();
                         } else if (shared.mu.try_lock()) {
                           seen += "got it ";
                           shared.mu.unlock();
                         } else {
                           seen += "busy ";
                         }
                       }
                       return seen;
                     }),
      race_on_shared("two notifiers, one of them without the condition", 3,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         const MutexLock lock(&shared.mu);
                         const bool done = shared.cv.wait_for(&shared.mu, ms(5), [&] { return shared.n > 0; });
                         return absl::StrCat(done, rank.store().check({"x"}));
                       }
                       if (rank.rank() == 1) {
                         const MutexLock lock(&shared.mu);
                         ++shared.n;
                       } else {
                         rank.store().set("x", "1");
                       }
                       shared.cv.notify_one();
                       return "";
                     }),
      race_on_shared("a waiter numbered after its notifiers", 3,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 2) {
                         const MutexLock lock(&shared.mu);
                         shared.cv.wait(&shared.mu, [&] { return shared.n > 0; });
                         return absl::StrCat(rank.store().check({"x"}));
                       }
                       if (rank.rank() == 0) {
                         const MutexLock lock(&shared.mu);
                         ++shared.n;
                         shared.cv.notify_one();
                         return "";
                       }
                       rank.store().set("x", "1");
                       shared.cv.notify_one();
                       return "";
                     }),
      race_on_shared("a waiter numbered before its notifiers", 3,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 0) {
                         const MutexLock lock(&shared.mu);
                         shared.cv.wait(&shared.mu, [&] { return shared.n > 0; });
                         return absl::StrCat(rank.store().check({"x"}));
                       }
                       if (rank.rank() == 1) {
                         {
                           const MutexLock lock(&shared.mu);
                           ++shared.n;
                         }
                         shared.cv.notify_one();
                         return "";
                       }
                       rank.store().set("x", "1");
                       shared.cv.notify_one();
                       return "";
                     }),
      race_on_shared("a latch that is looked at and waited for", 3,
                     [](RankContext& rank, Shared& shared) -> std::string {
                       if (rank.rank() == 2) {
                         const bool open = shared.latch.try_wait();
                         shared.latch.wait();
                         return absl::StrCat(open, rank.store().check({"x"}));
                       }
                       shared.latch.count_down();
                       if (rank.rank() == 1) rank.store().set("x", "1");
                       return "";
                     }),
      race_on_shared("who counts a latch down too far", 3,
                     [](RankContext&, Shared& shared) -> std::string {
                       try {
                         shared.latch.count_down();
                         return "counted";
                       } catch (const DistError& error) {
                         return kind_of(error);
                       }
                     }),
  };
}

// `n` sends from rank 1 to rank 0; each rank looks at its first work after the work with its number in `look_after`.
Race message_race(int n, bool any, bool eager, std::vector<int> look_after) {
  return large_race(absl::StrCat(n, eager ? " eager" : "", " sends to ", any ? "recv_any" : "recv",
                                 ", looked at after ", look_after[0], " and ", look_after[1]),
                    2, [=](RankContext& rank) {
                      const size_t eager_bytes = eager ? 64 : 0;
                      auto pg = init_process_group(rank, {.eager_bytes = eager_bytes});
                      std::vector<std::vector<float>> tensors(static_cast<size_t>(n), std::vector<float>{1});
                      std::vector<Work> works;
                      std::string seen;
                      for (int i = 0; i < n; ++i) {
                        std::vector<float>& x = tensors[static_cast<size_t>(i)];
                        works.push_back(rank.rank() == 1 ? pg->send(x, 0) : any ? pg->recv_any(x) : pg->recv(x, 1));
                        if (i == look_after[static_cast<size_t>(rank.rank())]) {
                          absl::StrAppend(&seen, works[0].is_completed());
                        }
                      }
                      wait_all(works);
                      return seen;
                    });
}

std::vector<Race> message_races() {
  std::vector<Race> races;
  // A warning says who is missing at an instant at which somebody comes.
  for (const bool mesh : {false, true}) {
    races.push_back(race(absl::StrCat("a warning at the instant of a call", mesh ? " that makes groups" : ""), 3,
                         [mesh](RankContext& rank) -> std::string {
                           if (rank.rank() == 1) return "";
                           auto pg = init_process_group(rank);
                           if (rank.rank() == 0) {
                             rank.sleep_for(absl::Milliseconds(1));
                             rank.sleep_for(absl::Milliseconds(1));
                           } else {
                             pg->set_warn_after(absl::Milliseconds(2));
                           }
                           mesh ? (void)pg->new_group() : pg->barrier().wait();
                           return "";
                         }));
  }
  // The send goes well only if the receive comes before its input is the next call's output.
  races.push_back(race("a call in place on the input of an open send", 2, [](RankContext& rank) -> std::string {
    auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kTogether});
    std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
    std::string saw;
    try {
      if (rank.rank() == 0) {
        pg->recv(x, 1).wait();
        pg->all_reduce(x).wait();
        return "received";
      }
      Work send = pg->send(x, 0);
      Work work = pg->all_reduce(x);
      const auto told = std::make_shared<bool>(false);
      work.then([told](const absl::Status&) { *told = true; });
      work.wait();
      saw = *told ? "told" : "waited";
      send.wait();
    } catch (const DistError& error) {
      saw += kind_of(error);
    }
    return saw;
  }));
  // The whole ends when nobody has the part any more, and might have ended it.
  races.push_back(race("a look at a part whose handle then goes", 1, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x = {1}, y(1);
    pg->start_coalescing();
    Work part = pg->all_gather_into_tensor(y, x);
    const Work whole = pg->end_coalescing();
    const bool done = part.is_completed();
    part = Work();
    pg->barrier().wait();
    return absl::StrCat(done);
  }));
  // Whether a part was issued is told by the wait of another rank.
  races.push_back({"a wait for a part of another rank, which may not be issued yet", 2, [] {
                     struct Part {
                       Watched<std::optional<Work>> work;
                       Latch is_there{1};
                     };
                     const auto shared = std::make_shared<Part>();
                     return [shared](RankContext& rank) -> std::string {
                       auto pg = init_process_group(rank);
                       std::vector<float> x = {1};
                       pg->start_coalescing();
                       Work part = pg->all_reduce(x);
                       if (rank.rank() == 0) {
                         shared->work.set(part);
                         shared->is_there.count_down();
                       }
                       Work whole = pg->end_coalescing();
                       std::string saw;
                       if (rank.rank() == 1) {
                         shared->is_there.wait();
                         std::optional<Work> other = shared->work.get();
                         try {
                           other->wait();
                         } catch (const DistError& error) {
                           saw = kind_of(error);
                         }
                       }
                       whole.wait();
                       return saw;
                     };
                   }});
  for (const int n : {2, 3}) {
    for (const bool any : {false, true}) {
      for (const bool eager : {false, true}) {
        for (int first = 0; first < n; ++first) {
          for (int second = 0; second < n; ++second) races.push_back(message_race(n, any, eager, {first, second}));
        }
      }
    }
  }
  // Rank 0 receives from both others, and looks at one of the two.
  for (const bool receiver_sets : {false, true}) {
    for (const bool sender_looks : {false, true}) {
      for (const bool second : {false, true}) {
        races.push_back(
            large_race(absl::StrCat("a look at the ", second ? "second" : "first", " of two receives",
                                    receiver_sets ? " after a set" : "", sender_looks ? ", and at the sends" : ""),
                       3, [=](RankContext& rank) -> std::string {
                         auto pg = init_process_group(rank);
                         std::vector<float> x = {1}, y = {1};
                         if (rank.rank() == 0) {
                           std::vector<Work> works = {pg->recv(x, 1), pg->recv(y, 2)};
                           if (receiver_sets) rank.store().set("z", "1");
                           const bool done = works[second ? 1 : 0].is_completed();
                           wait_all(works);
                           return absl::StrCat(done);
                         }
                         Work work = pg->send(x, 0);
                         std::string seen;
                         if (sender_looks) absl::StrAppend(&seen, work.is_completed());
                         rank.store().set(absl::StrCat("mine ", rank.rank()), "1");
                         absl::StrAppend(&seen, work.is_completed());
                         work.wait();
                         return seen;
                       }));
      }
    }
  }
  return races;
}

class SoundnessTest : public testing::TestWithParam<Race> {};

TEST_P(SoundnessTest, FindsEveryOutcome) {
  const Race& race = GetParam();
  const Comparison result =
      compare_searches([&](const Schedule& schedule,
                           const RunHooks& hooks) { return run_once(race.ranks, schedule, hooks, race.make()); },
                       race.limits);
  EXPECT_EQ(result.flaw, Flaw::kNone) << result.text;
  EXPECT_TRUE(result.reduced_finished);
}

std::string race_name(const testing::TestParamInfo<Race>& race) {
  return absl::StrReplaceAll(race.param.name, {{" ", "_"}, {",", ""}});
}

Race race_on(std::string name, int ranks, std::function<Program()> make) {
  return {std::move(name), ranks, std::move(make)};
}

// Changes by one rank at which another one looks, though neither names the other.
std::vector<Race> other_ranks_races() {
  std::vector<Race> races;
  // Groups are numbered as they are made, by the rank that comes first.
  const auto ids = [](ProcessGroup& a, ProcessGroup& b) { return absl::StrCat(a.group()->id(), " ", b.group()->id()); };
  for (const bool of_all : {false, true}) {
    races.push_back(
        race(of_all ? "groups of all ranks in another order" : "groups in another order", 2, [=](RankContext& rank) {
          const bool zero = rank.rank() == 0;
          const std::vector<int> ranks = of_all ? std::vector<int>() : std::vector<int>{0, 1};
          // Of all ranks the first ones are one group, whatever they are called.
          auto a = init_process_group(rank, {.name = zero ? "x" : "y", .ranks = ranks});
          auto b = init_process_group(rank, {.name = zero ? "y" : "x", .ranks = ranks});
          return absl::StrCat(ids(*a, *b), " ", a->group_name(), " ", b->group_name());
        }));
  }
  races.push_back(race("the name of the first group", 2, [](RankContext& rank) {
    const GroupOptions named{.name = "b"};
    return init_process_group(rank, rank.rank() == 0 ? GroupOptions() : named)->group_name();
  }));
  races.push_back(race("fake groups in another order", 2, [=](RankContext& rank) {
    auto a = init_process_group(rank, {.backend = GroupOptions::Backend::kFake, .name = "a"});
    auto b = init_process_group(rank, {.backend = GroupOptions::Backend::kFake, .name = "b"});
    auto first = (rank.rank() == 0 ? a : b)->new_group();
    auto second = (rank.rank() == 0 ? b : a)->new_group();
    return ids(*first, *second);
  }));
  races.push_back(race("a group of other ranks", 3, [=](RankContext& rank) -> std::string {
    if (rank.rank() == 2) {
      const auto pair = init_process_group(rank, {.name = "pair", .ranks = {1, 2}});
      rank.store().set("k", "");
      return absl::StrCat(pair->group()->id());
    }
    if (rank.rank() == 0) rank.store().get("k");
    auto both = init_process_group(rank, {.name = "both", .ranks = {0, 1}});
    const int id = both->group()->id();
    if (rank.rank() == 1) init_process_group(rank, {.name = "pair", .ranks = {1, 2}});
    return absl::StrCat(id);
  }));
  struct Handles {
    Watched<std::shared_ptr<ProcessGroup>> group;
    Watched<Stream::Event> event;
    Mutex mu;
    Latch ready{1}, go{1}, end{1};
  };
  const auto with_handles = [](std::string name, std::string (*program)(RankContext&, Handles&)) {
    return race_on(std::move(name), 2, [program] {
      return Program([program, handles = std::make_shared<Handles>()](RankContext& rank) {
        std::string seen = program(rank, *handles);
        return seen;
      });
    });
  };
  races.push_back(
      with_handles("an abort by the handle of another rank", [](RankContext& rank, Handles& shared) -> std::string {
        auto a = init_process_group(rank);
        auto b = init_process_group(rank);
        std::vector<float> x = {1};
        Work work = a->all_reduce(x);
        if (rank.rank() == 0) {
          shared.group.set(a);
          shared.ready.count_down();
          shared.go.wait();
        } else {
          work.wait();
          shared.ready.wait();
          shared.go.count_down();
          shared.group.get()->abort();
          shared.group.set(nullptr);
        }
        try {
          b->all_reduce(x).wait();
        } catch (const DistError& error) {
          if (error.kind() != ErrorKind::kInvalidArgument) throw;
          b->abort();
          return "its output is that of another call";
        }
        return "done";
      }));
  races.push_back(with_handles("the last event of a stream goes with another rank",
                               [](RankContext& rank, Handles& shared) -> std::string {
                                 auto pg = init_process_group(rank, {.eager_bytes = 64});
                                 std::vector<float> x = {1};
                                 if (rank.rank() == 1) {
                                   {
                                     SimStream stream(rank);
                                     (void)pg->send(x, 0, 0, {.stream = &stream});
                                     shared.event.set(stream.record());
                                   }
                                   shared.go.count_down();
                                   shared.end.wait();
                                   return "";
                                 }
                                 shared.go.wait();
                                 shared.event.set({});
                                 std::string seen = "received";
                                 try {
                                   pg->recv(x, 1).wait();
                                 } catch (const DistError& error) {
                                   seen = kind_of(error);
                                 }
                                 shared.end.count_down();
                                 return seen;
                               }));
  races.push_back(race_on("a latch that is counted down by none", 3, [] {
    const auto shared = std::make_shared<Handles>();
    const auto x = std::make_shared<Watched<int>>(0);
    return Program([shared, x](RankContext& rank) -> std::string {
      if (rank.rank() == 1) x->set(1);
      if (rank.rank() < 2) {
        shared->ready.count_down(rank.rank() == 0 ? 1 : 0);
        return "";
      }
      shared->ready.wait();
      return absl::StrCat(x->get());
    });
  }));
  // Numbers of hooks and listeners are users' own: which rank comes first to a group changes none.
  races.push_back(race("the number of a hook beside groups", 2, [](RankContext& rank) {
    std::string seen;
    if (rank.rank() == 0) {
      seen = absl::StrCat(rank.world().at_end([] {}), " ", rank.world().on_abort([](const absl::Status&) {}));
    }
    init_process_group(rank)->barrier().wait();
    return seen;
  }));
  races.push_back(
      with_handles("a group that is refused to another rank", [](RankContext& rank, Handles& shared) -> std::string {
        if (rank.rank() == 0) {
          const auto pg = init_process_group(rank, {.ranks = {0}});
          shared.group.set(pg);
          shared.ready.count_down();
          const std::string seen = pg->new_group({0})->group_name();
          shared.go.wait();
          return seen;
        }
        shared.ready.wait();
        const auto lent = shared.group.get();
        shared.group.set(nullptr);
        std::string seen;
        for (const GroupOptions& options : {GroupOptions(), GroupOptions{.ranks = {0}}}) {
          for (const bool mesh : {false, true}) {
            try {
              if (mesh) {
                (void)init_device_mesh(lent, {1}, {}, options);
              } else {
                (void)lent->new_group({0}, options);
              }
            } catch (const DistError& error) {
              absl::StrAppend(&seen, kind_of(error), " ");
            }
          }
        }
        shared.go.count_down();
        return seen;
      }));
  races.push_back(race("a WorldLocal that was not made at first", 2, [](RankContext& rank) -> std::string {
    static const WorldLocal<Latch> kLatch("latch");
    Store& store = rank.store();
    if (rank.rank() == 1) {
      std::shared_ptr<Latch> first;
      try {
        kLatch.get(rank.world(), [&]() -> std::shared_ptr<Latch> {
          first = std::make_shared<Latch>(1);
          throw std::runtime_error("planned");
        });
      } catch (const std::runtime_error&) {
      }
      store.set("got", "1");
      store.set("k", "1");
      first->count_down();
      return "";
    }
    store.get("got");
    const auto second = kLatch.get(rank.world(), [] { return std::make_shared<Latch>(1); });
    second->count_down();
    second->wait();
    return absl::StrCat(store.check({"k"}));
  }));
  races.push_back(race("the description of a fake group", 2, [](RankContext& rank) {
    const auto pg = init_process_group(rank, {.backend = GroupOptions::Backend::kFake});
    const auto made = pg->new_group(GroupOptions{.name = "g", .description = rank.rank() == 0 ? "a" : "b"});
    return std::string(made->group()->description());
  }));
  races.push_back(with_handles("a mutex of a task that has ended",
                               [](RankContext& rank, Handles& shared) ABSL_NO_THREAD_SAFETY_ANALYSIS -> std::string {
                                 if (rank.rank() == 1) {
                                   rank.world().spawn_helper([&shared, &rank]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                     shared.mu.lock();
                                     shared.ready.count_down();
                                     rank.store().set("k", "");
                                   });
                                   return "";
                                 }
                                 shared.ready.wait();
                                 rank.world().spawn_helper([&shared, &rank]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                   try {
                                     shared.mu.unlock();
                                     rank.store().set("seen", "unlocked");
                                   } catch (const DistError& error) {
                                     rank.store().set("seen", kind_of(error));
                                   }
                                 });
                                 return rank.store().get("seen");
                               }));
  // The second object of a name is not the first: whoever waits for that one waits for nobody.
  races.push_back(race("a latch of a name that was forgotten", 2, [](RankContext& rank) -> std::string {
    static const WorldLocal<Latch> kLatch("latch");
    const auto get = [&] { return kLatch.get(rank.world(), [] { return std::make_shared<Latch>(1); }); };
    Store& store = rank.store();
    if (rank.rank() == 1) {
      const auto first = get();
      store.set("got", "1");
      store.set("k", "1");
      first->count_down();
      return "";
    }
    store.get("got");
    kLatch.forget(rank.world());
    const auto second = get();
    second->count_down();
    second->wait();
    return absl::StrCat(store.check({"k"}));
  }));
  races.push_back(race("numbers drawn by another rank", 2, [](RankContext& rank) {
    rank.store().set(absl::StrCat(rank.rank()), "");
    return absl::StrCat(rank.world().context(1).rng().next());
  }));
  races.push_back(race("a group asked for by another rank", 2, [](RankContext& rank) {
    rank.store().set(absl::StrCat(rank.rank()), "");
    return init_process_group(rank.world().context(1))->group_name();
  }));
  races.push_back(
      with_handles("a call by the handle of another rank", [](RankContext& rank, Handles& shared) -> std::string {
        if (rank.rank() == 0) {
          const auto pg = init_process_group(rank);
          shared.group.set(pg);
          shared.ready.count_down();
          rank.yield();
          std::vector<float> x = {1};
          pg->start_coalescing();
          Work sent = pg->send(x, 0);
          Work received = pg->recv(x, 0);
          rank.yield();
          pg->end_coalescing().wait();
          return "";
        }
        shared.ready.wait();
        std::string seen = "taken";
        try {
          std::vector<float> x = {1};
          const Work work = shared.group.get()->all_reduce(x);
        } catch (const DistError& error) {
          seen = error.what();
        }
        shared.group.set(nullptr);
        return seen;
      }));
  races.push_back(
      with_handles("a handle of another rank gets a name", [](RankContext& rank, Handles& shared) -> std::string {
        if (rank.rank() == 0) {
          const auto pg = init_process_group(rank);
          shared.group.set(pg);
          shared.ready.count_down();
          rank.yield();
          pg->set_group_name("b");
          return "";
        }
        shared.ready.wait();
        std::string seen;
        try {
          shared.group.get()->sequence_number();
        } catch (const DistError& error) {
          seen = shared.group.get()->group_name();
        }
        shared.group.set(nullptr);
        return seen;
      }));
  return races;
}

INSTANTIATE_TEST_SUITE_P(OtherRanks, SoundnessTest, testing::ValuesIn(other_ranks_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Store, SoundnessTest, testing::ValuesIn(store_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Time, SoundnessTest, testing::ValuesIn(time_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Works, SoundnessTest, testing::ValuesIn(work_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Streams, SoundnessTest, testing::ValuesIn(stream_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Sync, SoundnessTest, testing::ValuesIn(sync_races()), race_name);
INSTANTIATE_TEST_SUITE_P(Messages, SoundnessTest, testing::ValuesIn(message_races()), race_name);

// --- programs of a campaign, shrunk

struct DrawnRace {
  std::string name;
  SmallProgram program;
  int shuffles = 30;  // what a search in one order loses, another one may find by luck
};

void PrintTo(const DrawnRace& race, std::ostream* out) { *out << race.name; }

std::vector<DrawnRace> drawn_races() {
  using Kind = SmallOpKind;
  return {
      // Calls complete between the looks of the ranks that a drop waits for, and before the drop or after it.
      {"a receive dropped behind a condition, beside one that completes",
       {.eager_bytes = 64,
        .ranks = {{{.kind = Kind::kBatchIsendIrecv, .b = 1}, {.kind = Kind::kCondWait}},
                  {{.kind = Kind::kBatchIsendIrecv},
                   {.kind = Kind::kNotifyAll},
                   {.kind = Kind::kWait},
                   {.kind = Kind::kWait, .a = 1}}}}},
      {"a gather dropped behind a look at what the root changes",
       {.ranks = {{{.kind = Kind::kGather, .b = 1},
                   {.kind = Kind::kGather, .a = 1},
                   {.kind = Kind::kReduce, .a = 2},
                   {.kind = Kind::kWatchedGet},
                   {.kind = Kind::kWait, .a = 2}},
                  {{.kind = Kind::kGather, .b = 1},
                   {.kind = Kind::kGather, .a = 1},
                   {.kind = Kind::kException},
                   {.kind = Kind::kWatchedSet, .b = 1},
                   {.kind = Kind::kReduce, .a = 2},
                   {.kind = Kind::kWait},
                   {.kind = Kind::kWait, .a = 1}}}}},
      // The buffer that a rank has seen as poison is as before, once another rank drops its part.
      {"a scatter on streams, seen before and after it fails",
       {.reads_early = true,
        .ranks = {{{.kind = Kind::kScatter, .streamed = true, .b = 1}, {.kind = Kind::kWait}},
                  {{.kind = Kind::kScatter, .keep_alive = true, .streamed = true, .b = 1},
                   {.kind = Kind::kEarlyRead},
                   {.kind = Kind::kWait}}}},
       /*shuffles=*/8},
      // Which of the two calls the fault strikes is settled before the store's begins to wait.
      {"a send on a stream and a wait of a store, one of which a fault strikes",
       {.faults = {{.kind = Fault::Kind::kAbort, .rank = 0, .nth = 1, .when = Fault::When::kInside}},
        .ranks = {{{.kind = Kind::kSend, .streamed = true, .b = 1, .c = 1},
                   {.kind = Kind::kQueuePop, .prefixed = true}},
                  {{.kind = Kind::kQueuePush, .prefixed = true}}}}},
      {"an output written early, read before and after its call fails",
       {.ranks = {{{.kind = Kind::kAllReduce}, {.kind = Kind::kDrop}},
                  {{.kind = Kind::kAllReduce}, {.kind = Kind::kEarlyWrite}, {.kind = Kind::kEarlyRead}}}}},
      // Whether the set and the drop behind it are one step is settled by the watch.
      {"a recv from oneself dropped behind a set that another rank watches",
       {.eager_bytes = 64,
        .ranks = {{{.kind = Kind::kSend, .a = 1}, {.kind = Kind::kRecv, .a = 1}, {.kind = Kind::kSet}},
                  {{.kind = Kind::kWatchKey, .b = 1}}}}},
      // Whether the send and the write behind it are one step is settled by who makes the promise.
      {"an input written early, behind an object that ranks share",
       {.ranks = {{{.kind = Kind::kPromiseSetError}, {.kind = Kind::kRecvAny, .c = 1}},
                  {{.kind = Kind::kSend, .c = 1},
                   {.kind = Kind::kPromiseWork, .a = 1},
                   {.kind = Kind::kEarlyWrite, .b = 1}}}},
       /*shuffles=*/8},
  };
}

class DrawnRaceTest : public testing::TestWithParam<DrawnRace> {};

TEST_P(DrawnRaceTest, HasTheSameOutcomesInAllOrdersOfTheSearch) {
  const DrawnRace& race = GetParam();
  const SearchLimits limits = {.unreduced = 500, .reduced = 20'000, .shuffles = race.shuffles, .seeds = 50};
  const Comparison result = compare_searches(race.program, limits);
  EXPECT_EQ(result.flaw, Flaw::kNone) << to_text(race.program) << result.text;
  EXPECT_TRUE(result.reduced_finished);
}

INSTANTIATE_TEST_SUITE_P(Campaigns, DrawnRaceTest, testing::ValuesIn(drawn_races()),
                         [](const testing::TestParamInfo<DrawnRace>& race) {
                           return absl::StrReplaceAll(race.param.name, {{" ", "_"}, {",", ""}});
                         });

// The rank lets go of a call, which a fault struck, while its stream waits for it: the stream read freed memory.
TEST(StruckCallTest, LivesAsLongAsItsStreamWaits) {
  const SmallProgram program = {
      .faults = {{.kind = Fault::Kind::kAbort, .rank = 0, .nth = 1, .when = Fault::When::kAfter, .maybe = true}},
      .ranks = {{{.kind = SmallOpKind::kAllReduce, .streamed = true}, {.kind = SmallOpKind::kWait}},
                {{.kind = SmallOpKind::kAllReduce, .streamed = true},
                 {.kind = SmallOpKind::kWait},
                 {.kind = SmallOpKind::kStreamSynchronize}},
                {{.kind = SmallOpKind::kAllReduce, .streamed = true}, {.kind = SmallOpKind::kWaitAll}}}};
  const SearchLimits limits = {.unreduced = 0, .reduced = 400, .shuffles = 4, .seeds = 20};
  const Comparison result = compare_searches(program, limits);
  EXPECT_EQ(result.flaw, Flaw::kNone) << result.text;
  EXPECT_GT(result.runs, 400);
}

// An abort that is injected into a call on a stream has scheduling points, at which the rank may let go of the call:
// nobody touches its memory afterwards, which is not there any more.
TEST(StruckCallTest, IsNotIssuedWhenItWasDroppedWithinTheAbort) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  for (const Fault::When when : {Fault::When::kBefore, Fault::When::kInside}) {
    ScheduleTree tree({.reduce = true});
    int runs = 0;
    for (; runs < 2'000 && tree.more(); ++runs) {
      ASSERT_EQ(mprotect(memory, page, PROT_READ | PROT_WRITE), 0);
      WorldOptions options = {.world_size = 2, .engine = EngineKind::kFibers, .schedule = Schedule::steered(0, {})};
      options.faults = {{.kind = Fault::Kind::kAbort, .rank = 0, .op = "all_reduce", .when = when}};
      const std::unique_ptr<World> world = WorldState::make(std::move(options), tree.hooks());
      (void)world->run([&](RankContext& rank) {
        auto pg = init_process_group(rank);
        if (rank.rank() != 0) return rank.store().wait({"done"});
        EXPECT_THROW(
            {
              std::vector<float> y = {1};
              Work message = pg->recv(y, 1);
              SimStream stream(rank);
              Work work = pg->all_reduce(TensorView(memory, DType::kFloat32, {4}), ReduceOp::kSum, {.stream = &stream});
              message.wait();
            },
            DistError);
        EXPECT_EQ(mprotect(memory, page, PROT_NONE), 0);
        for (int i = 0; i < 3; ++i) rank.yield();
        rank.store().set("done", "");
      });
      tree.advance();
    }
    EXPECT_GT(runs, 3);
  }
  munmap(memory, page);
}

// --- the ends of a run, which come after all steps

// Objects of all ranks go in the reverse of their making, which ranks decide.
TEST(EndsTest, TheOrderOfWorldLocalsIsTriedBothWays) {
  static std::string order;
  struct A {
    ~A() { order += "a"; }
  };
  struct B {
    ~B() { order += "b"; }
  };
  std::set<std::string> orders;
  const auto note = [&orders] {
    if (!order.empty()) orders.insert(std::exchange(order, ""));
  };
  ExploreOptions options = {.world = {.world_size = 2, .engine = EngineKind::kFibers}};
  options.strategies = {Strategy::exhaustive()};
  const ExploreReport report = explore(options, [&](RankContext& rank) {
    static const WorldLocal<A> a("a");
    static const WorldLocal<B> b("b");
    if (rank.rank() == 0) {
      note();
      (void)a.get(rank.world());
    } else {
      (void)b.get(rank.world());
    }
  });
  note();
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_THAT(orders, testing::ElementsAre("ab", "ba"));
}

// Groups end in the order of their numbers, whichever rank made its own first.
TEST(EndsTest, GroupsEndInOneOrder) {
  std::set<std::string> logs;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::string log;
    const Schedule schedule = seed == 0 ? Schedule::fifo() : Schedule::seeded(seed);
    run_world({.world_size = 3, .engine = EngineKind::kFibers, .schedule = schedule}, [&](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto own = pg->split_group(/*color=*/rank.rank());
      for (uint64_t i = rank.rng().next() % 3; i > 0; --i) rank.yield();
      const auto x = std::make_shared<std::vector<float>>(1);
      Work work = own->recv(*x, 0, 0, {.keep_alive = x});  // of itself, which never sends
      work.then([&log, r = rank.rank()](const absl::Status&) { log += absl::StrCat(r); });
    });
    logs.insert(log);
  }
  EXPECT_THAT(logs, testing::ElementsAre("012"));
}

// The log that hooks, callbacks and owners leave at the end of a run, in each of so many schedules.
std::set<std::string> logs_of(int ranks, absl::FunctionRef<void(RankContext&, std::string& log)> program) {
  std::set<std::string> logs;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::string log;
    const Schedule schedule = seed == 0 ? Schedule::fifo() : Schedule::seeded(seed);
    run_world({.world_size = ranks, .engine = EngineKind::kFibers, .schedule = schedule},
              [&](RankContext& rank) { program(rank, log); });
    logs.insert(log);
  }
  return logs;
}

TEST(EndsTest, WatchesEndInTheOrderOfTheirKeys) {
  struct Last {
    Last(std::string* log, std::string name) : log(*log), name(std::move(name)) {}
    Last(const Last&) = delete;
    Last& operator=(const Last&) = delete;
    ~Last() { absl::StrAppend(&log, name, " "); }
    std::string& log;
    const std::string name;
  };
  EXPECT_THAT(logs_of(2,
                      [](RankContext& rank, std::string& log) {
                        for (int i = rank.rank(); i < 8; i += 2) {
                          const std::string key = absl::StrCat("k", 7 - i);
                          rank.store().watch_key(
                              key, [held = std::make_shared<Last>(&log, key)](const auto&, const auto&) {});
                        }
                      }),
              testing::ElementsAre("k0 k1 k2 k3 k4 k5 k6 k7 "));
}

TEST(EndsTest, HooksOfUsersComeAfterTheGroups) {
  EXPECT_THAT(logs_of(2,
                      [](RankContext& rank, std::string& log) {
                        if (rank.rank() == 0) rank.world().at_end([&log] { log += "hook "; });
                        const auto pg = init_process_group(rank);
                        const auto x = std::make_shared<std::vector<float>>(1);
                        if (rank.rank() == 0) return;
                        pg->recv(*x, 1, 0, {.keep_alive = x}).then([&log](const absl::Status&) { log += "callback "; });
                      }),
              testing::ElementsAre("callback hook "));
}

TEST(EndsTest, CoalescedBlocksEndInTheOrderOfRanks) {
  EXPECT_THAT(
      logs_of(3,
              [](RankContext& rank, std::string& log) {
                static RankLocal<std::shared_ptr<ProcessGroup>> kept;
                const auto pg = *kept = init_process_group(rank);
                rank.store().set(absl::StrCat(rank.rank()), "");
                pg->start_coalescing();
                const auto x = std::make_shared<std::vector<float>>(1);
                pg->recv(*x, rank.rank(), 0, {.keep_alive = x}).then([&log, r = rank.rank()](const absl::Status&) {
                  log += absl::StrCat(r);
                });
              }),
      testing::ElementsAre("012"));
}

TEST(EndsTest, MessagesOfAGroupEndInTheOrderOfRanks) {
  EXPECT_THAT(logs_of(2,
                      [](RankContext& rank, std::string& log) {
                        const auto pg = init_process_group(rank);
                        const auto x = std::make_shared<std::vector<float>>(1);
                        Work work = rank.rank() == 0 ? pg->recv(*x, 1, 1, {.keep_alive = x})
                                                     : pg->send(*x, 0, 3, {.keep_alive = x});
                        work.then([&log, r = rank.rank()](const absl::Status&) { log += absl::StrCat(r); });
                      }),
              testing::ElementsAre("01"));
}

// --- explore() does not say "verified" of a program that fails under some seed

struct FailingProgram {
  std::string name;
  int ranks;
  void (*run)(RankContext&);
};

void PrintTo(const FailingProgram& program, std::ostream* out) { *out << program.name; }

std::vector<FailingProgram> failing_programs() {
  return {
      {"a call on a stream ends before destroy_process_group looks for it", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1};
         if (rank.rank() == 1) {
           Work work = pg->all_reduce(x);
           try {
             work.wait();
           } catch (const DistError&) {
           }
           return;
         }
         SimStream stream(rank);
         Work work = pg->barrier({.stream = &stream});
         bool told = work.exception() != nullptr;
         try {
           destroy_process_group(pg);
         } catch (const DistError&) {
           told = true;
         }
         if (!told) throw std::runtime_error("nobody was told of the mismatch");
       }},
      {"one push is taken for two", 2,
       [](RankContext& rank) {
         Store& store = rank.store();
         if (rank.rank() == 0) {
           store.queue_push("q", "a");
           store.queue_push("q", "b");
           return;
         }
         store.queue_pop("q");
         if (store.queue_len("q") == 0) throw std::runtime_error("empty already");
       }},
      {"a value that was deleted is got", 2,
       [](RankContext& rank) {
         Store& store = rank.store();
         if (rank.rank() == 1) {
           if (store.get("k") == "old") throw std::runtime_error("stale");
           return;
         }
         store.set("k", "old");
         store.delete_key("k");
         store.set("k", "new");
       }},
      {"a flag set behind 250 steps", 2,
       [](RankContext& rank) {
         if (rank.rank() == 1) {
           if (rank.store().check({"ready"})) throw std::runtime_error("ready first");
           return;
         }
         for (int i = 0; i < 250; ++i) rank.store().set("log", "x");
         rank.store().set("ready", "1");
       }},
      {"a callback that comes first", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1};
         bool called = false;
         Work work = pg->all_reduce(x);
         work.then([&](const absl::Status&) { called = true; });
         rank.store().set(absl::StrCat("mine ", rank.rank()), "1");
         const bool seen = called;
         work.wait();
         pg->barrier().wait();
         if (seen) throw std::runtime_error("called first");
       }},
      {"a synchronize that was forgotten", 1,
       [](RankContext& rank) {
         SimStream stream(rank);
         int value = 1;
         stream.launch([&] { value = 2; });
         rank.store().set("a", "1");
         const int seen = value;
         stream.synchronize();
         if (seen == 2) throw std::runtime_error("the stream was first");
       }},
      {"a stream that is idle early", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1};
         SimStream stream(rank);
         Work work = pg->all_reduce(x, ReduceOp::kSum, {.stream = &stream});
         rank.store().set(absl::StrCat("mine ", rank.rank()), "1");
         const bool idle = stream.query();
         stream.synchronize();
         if (idle) throw std::runtime_error("idle");
       }},
      {"an output read behind the wait for another call", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         Work work = pg->all_reduce(x);
         pg->barrier().wait();
         const float seen = x[0];
         work.wait();
         if (seen != 3) throw std::runtime_error("read early");
       }},
      {"an output read behind a yield", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         Work work = pg->all_reduce(x);
         rank.yield();
         const float seen = x[0];
         work.wait();
         if (seen != 3) throw std::runtime_error("read early");
       }},
      {"a helper that is faster than its maker", 1,
       [](RankContext& rank) {
         int a = 1;
         int seen = 0;
         Latch read(1);
         rank.world().spawn_helper([&] {
           seen = a;
           read.count_down();
         });
         a = 2;
         read.wait();
         if (seen == 1) throw std::runtime_error("the helper was first");
       }},
      {"an output written behind the wait for another call", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         Work work = pg->all_reduce(x);
         pg->barrier().wait();
         x[0] = 5;
         work.wait();
       }},
      {"an input written behind the wait for another call", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         std::vector<float> y = {0, 0};
         Work work = pg->all_gather_into_tensor(y, x);
         pg->barrier().wait();
         x[0] = 5;
         work.wait();
       }},
      {"a message read behind the wait for another", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         std::vector<float> y = {4};
         if (rank.rank() == 0) {
           Work first = pg->send(x, 1, 1);
           pg->send(y, 1, 2).wait();
           first.wait();
           return;
         }
         Work work = pg->recv(x, 0, 1);
         pg->recv(y, 0, 2).wait();
         const float seen = x[0];
         work.wait();
         if (seen != 1) throw std::runtime_error("read early");
       }},
      {"a broadcast read behind the wait for another call", 3,
       [](RankContext& rank) {
         auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kEach});
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         Work work = pg->broadcast(x, 1);
         pg->barrier().wait();
         const float seen = x[0];
         work.wait();
         if (seen != 2) throw std::runtime_error("read early");
       }},
      {"a write behind a call on a stream", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         SimStream stream(rank);
         std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
         std::vector<float> y = {0, 0};
         (void)pg->all_gather_into_tensor(y, x, {.stream = &stream});
         x[0] = 77;
         stream.synchronize();
         if (y[0] != 77 && rank.rank() == 0) throw std::runtime_error("the stream was first");
       }},
      {"a promise kept behind a set", 2,
       [](RankContext& rank) {
         static const WorldLocal<Promise> in_world("promise");
         const auto promise = in_world.get(
             rank.world(), [&rank] { return std::make_shared<Promise>(&rank.world().scheduler(), /*rank=*/0); });
         if (rank.rank() == 0) {
           rank.store().set("k", "1");
           return promise->set_value();
         }
         if (rank.store().check({"k"}) && !promise->future().done()) throw std::runtime_error("between the two");
       }},
      {"a callback of a promise that its rank keeps", 1,
       [](RankContext& rank) {
         Promise promise(&rank.world().scheduler(), 0);
         bool called = false;
         promise.future().then([&called](const absl::Status&) { called = true; });
         promise.set_value();
         if (called) throw std::runtime_error("before the rank goes on");
         rank.sleep_for(ms(1));
       }},
      {"an abort behind the last call of all members", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x = {1};
         Work work = pg->all_reduce(x);
         if (rank.rank() == 0) pg->abort("done");
         bool went_well = true;
         try {
           work.wait();
         } catch (const DistError&) {
           went_well = false;
         }
         if (went_well) throw std::runtime_error("before the abort");
       }},
      {"a callback of a wait that times out", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         if (rank.rank() == 1) return;
         const auto x = std::make_shared<std::vector<float>>(1);
         bool called = false;
         Work work = pg->send(*x, 1, 0, {.keep_alive = x});
         work.then([&called](const absl::Status&) { called = true; });
         bool before = false;
         try {
           work.wait(ms(1));
         } catch (const DistError&) {
           before = called;
         }
         rank.sleep_for(ms(1));
         if (before) throw std::runtime_error("before the wait ends");
       }},
      {"the owner of a coalesced eager send", 2,
       [](RankContext& rank) {
         struct Owner {
           explicit Owner(bool* gone) : gone(gone) {}
           ~Owner() { *gone = true; }
           bool* const gone;
           std::vector<float> x = {1};
         };
         auto pg = init_process_group(rank, {.eager_bytes = 4});
         if (rank.rank() == 1) {
           std::vector<float> y = {1};
           return pg->recv(y, 0).wait();
         }
         bool gone = false, called = false;
         auto owner = std::make_shared<Owner>(&gone);
         pg->start_coalescing();
         pg->send(owner->x, 1, 0, {.keep_alive = owner}).then([&called](const absl::Status&) { called = true; });
         Work whole = pg->end_coalescing();
         whole.wait();
         const bool before = called;
         owner.reset();
         whole = Work();
         const bool lost = gone && !before;
         while (!called || !gone) rank.sleep_for(ms(1));
         if (lost) throw std::runtime_error("the owner is gone, and the callback had not run");
       }},
      {"a watch that comes too late", 2,
       [](RankContext& rank) {
         Store& store = rank.store();
         if (rank.rank() == 1) {
           store.set("k", "1");
           store.set("end", "1");
           return;
         }
         store.watch_key("k", [&store](auto&&, auto&&) { store.set("called", "1"); });
         store.wait({"end"});
         if (!store.check({"called"})) throw std::runtime_error("too late");
       }},
      {"a deadline at the moment the key comes", 2,
       [](RankContext& rank) {
         if (rank.rank() == 0) return rank.store().wait({"k"}, ms(5));
         rank.sleep_for(ms(5));
         rank.store().set("k", "1");
       }},
      {"wait_any between two that are done", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank, {.eager_bytes = 64});
         const int peer = 1 - rank.rank();
         std::vector<float> x = {1}, y = {0};
         std::vector<Work> works =
             batch_isend_irecv({{P2POp::Kind::kRecv, y, peer, pg.get()}, {P2POp::Kind::kSend, x, peer, pg.get()}});
         // An eager send is done at once.
         if (rank.rank() == 0 && wait_any(works) == 0) throw std::runtime_error("the recv was done, too");
         wait_all(works);
       }},
      {"a shutdown behind the end of a call", 2,
       [](RankContext& rank) {
         auto pg = init_process_group(rank);
         std::vector<float> x(static_cast<size_t>(rank.rank()) + 1);
         Work work = pg->all_reduce(x);
         try {
           rank.rank() == 0 ? pg->shutdown() : work.wait();
         } catch (const DistError& error) {
           if (error.kind() == ErrorKind::kMismatch) return;
           throw;
         }
         throw std::runtime_error("nothing was on its way");
       }},
      {"a lock between two turns", 2,
       [](RankContext& rank) ABSL_NO_THREAD_SAFETY_ANALYSIS {
         static const WorldLocal<Shared> in_world("shared");
         const auto shared = in_world.get(rank.world());
         if (rank.rank() == 0) {
           shared->mu.lock();
           shared->mu.unlock();
           const MutexLock lock(&shared->mu);
           ++shared->n;
           return;
         }
         const bool got = shared->mu.try_lock();
         if (got) shared->mu.unlock();
         const MutexLock lock(&shared->mu);
         if (!got && shared->n == 0) throw std::runtime_error("busy, and then before the second turn");
         ++shared->n;
       }},
  };
}

class VerifiedTest : public testing::TestWithParam<FailingProgram> {};

TEST_P(VerifiedTest, IsNotSaidOfAProgramThatSeedsFail) {
  const FailingProgram& program = GetParam();
  const Found seeds = search_seeds(
      [&](const Schedule& schedule, const RunHooks& hooks) {
        return run_once(program.ranks, schedule, hooks, [&](RankContext& rank) {
          program.run(rank);
          return std::string();
        });
      },
      100, /*plain=*/true);
  ASSERT_FALSE(seeds.aborts.empty()) << "no seed fails: the program shows nothing";
  ExploreOptions options;
  options.world.world_size = program.ranks;
  options.strategies = {Strategy::exhaustive()};
  options.max_runs = 5'000;
  options.progress = [](const ExploreOptions::Progress&) {};
  const ExploreReport report = explore(options, program.run);
  EXPECT_FALSE(report.verified) << report.text();
  EXPECT_TRUE(report.failure.has_value()) << report.text();
}

INSTANTIATE_TEST_SUITE_P(Programs, VerifiedTest, testing::ValuesIn(failing_programs()),
                         [](const testing::TestParamInfo<FailingProgram>& program) {
                           return absl::StrReplaceAll(program.param.name, {{" ", "_"}, {",", ""}});
                         });

}  // namespace
}  // namespace rankloom
