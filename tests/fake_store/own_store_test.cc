// Stores of users: execute() and kind() are all that one supplies. And what is known of each operation.

#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "fake_store/store_text.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"
#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Keeps values in a map and knows few operations.
class MapStore final : public Store {
 public:
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    switch (call.op) {
      case StoreCall::Op::kSet:
        values_[std::string(call.key())] = call.value();
        return StoreReply();
      case StoreCall::Op::kGet:
        return StoreReply{.value = values_[std::string(call.key())]};
      case StoreCall::Op::kQueuePop:
        return StoreReply();
      case StoreCall::Op::kListKeys: {
        StoreReply reply;
        for (const auto& [key, value] : values_) reply.values.push_back(key);
        return reply;
      }
      default:
        return make_error(ErrorKind::kStoreError, std::string("MapStore has no ") + call.name());
    }
  }
  std::string_view kind() const override { return "MapStore"; }

  absl::Duration seen_timeout() const { return own_timeout(); }

 private:
  std::map<std::string, std::string> values_;
};

// Counts the writes to another store, and passes all on.
class CountingStore final : public Store {
 public:
  explicit CountingStore(std::shared_ptr<Store> store) : Store(store.get()), store_(std::move(store)) {}

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    if (call.writes()) ++writes;
    return store_->execute(call);
  }
  std::string_view kind() const override { return "CountingStore"; }

  int writes = 0;

 private:
  const std::shared_ptr<Store> store_;
};

// Passes all on but get(), which fails.
class UnreadableStore final : public Store {
 public:
  explicit UnreadableStore(std::shared_ptr<Store> store) : Store(store.get()), store_(std::move(store)) {}

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    if (call.op == StoreCall::Op::kGet) return make_error(ErrorKind::kStoreError, "the disk is gone");
    return store_->execute(call);
  }
  std::string_view kind() const override { return "UnreadableStore"; }

 private:
  const std::shared_ptr<Store> store_;
};

TEST(BarrierTextTest, ARankHasArrivedWhereItsNumberStandsAlone) {
  EXPECT_TRUE(has_arrived("12 2 ", 2));
  EXPECT_TRUE(has_arrived("2 12 ", 2));
  EXPECT_TRUE(has_arrived("32 12 2 ", 2));
  EXPECT_FALSE(has_arrived("12 22 ", 2));
  EXPECT_FALSE(has_arrived("20 ", 2));
  EXPECT_FALSE(has_arrived("", 0));
}

TEST(OwnStoreTest, ABarrierThatCannotReadWhoCameCallsNobodyMissing) {
  World world({.world_size = 2, .engine = EngineKind::kFibers});
  UnreadableStore store(std::make_shared<HashStore>(&world.scheduler()));
  world
      .run([&](RankContext& rank) {
        if (rank.rank() == 1) return;
        const DistError error = error_of([&] { store_barrier(store, "b", 0, 2, absl::Milliseconds(2)); });
        EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
        EXPECT_THAT(error.what(),
                    HasSubstr("store_barrier \"b\": timed out after 2ms: it is not known who of 2 ranks is "
                              "missing: the disk is gone"));
        EXPECT_THAT(error.what(), Not(HasSubstr("missing rank")));
      })
      .throw_if_failed();
}

TEST(OwnStoreTest, TheMethodsOfStoreCallExecute) {
  auto own = std::make_shared<MapStore>();
  own->set("a", "1");
  EXPECT_EQ(own->get("a"), "1");
  PrefixStore under("group", own);
  under.set("b", "2");
  EXPECT_EQ(own->get("group/b"), "2");
  EXPECT_THAT(under.list_keys(), ElementsAre("b"));
  EXPECT_THAT(own->list_keys(), ElementsAre("a", "group/b"));
}

TEST(OwnStoreTest, ErrorsAreThrownWithTheOperationsName) {
  MapStore own;
  const DistError error = error_of([&] { own.add("a", 1); });
  EXPECT_EQ(error.kind(), ErrorKind::kStoreError);
  EXPECT_THAT(error.what(), HasSubstr("MapStore has no store add"));
  EXPECT_EQ(error.op(), "store add");
  // Calls that every store refuses, before execute() is asked.
  EXPECT_THAT(error_of([&] {
                own.multi_set({"a", "b"}, {"1"});
              }).what(),
              HasSubstr("MapStore multi_set: have 1 values, want one for each of 2 keys"));
  EXPECT_THAT(error_of([&] { own.wait({"a"}, -absl::Seconds(1)); }).what(),
              HasSubstr("MapStore wait: negative timeout"));
  EXPECT_THAT(error_of([&] { own.queue_pop("q", /*block=*/false); }).what(),
              HasSubstr("MapStore queue_pop key \"q\": the queue is empty"));
}

TEST(OwnStoreTest, AWrapperHasTheWorldOfTheStoreItWraps) {
  World world({.world_size = 1, .engine = EngineKind::kFibers});
  CountingStore store(std::make_shared<HashStore>(&world.scheduler()));
  world
      .run([&](RankContext& rank) {
        store.set("a", "1");
        store.add("n", 1);
        EXPECT_EQ(store.get("a"), "1");
        EXPECT_EQ(store.writes, 2);
        const absl::Duration before = rank.now();
        EXPECT_EQ(error_of([&] { store.wait({"never"}, absl::Minutes(30)); }).kind(), ErrorKind::kTimeout);
        EXPECT_EQ(rank.now() - before, absl::Minutes(30));
      })
      .throw_if_failed();
}

TEST(OwnStoreTest, AWrapperSharesTheTimeout) {
  auto inner = std::make_shared<MapStore>();
  auto counting = std::make_shared<CountingStore>(inner);
  PrefixStore outer("p", counting);
  EXPECT_EQ(outer.timeout(), absl::Seconds(300));
  outer.set_timeout(absl::Seconds(7));
  EXPECT_EQ(inner->seen_timeout(), absl::Seconds(7));
  inner->set_timeout(absl::Seconds(8));
  EXPECT_EQ(outer.timeout(), absl::Seconds(8));
}

TEST(OwnStoreTest, AFakeStoreAnswersEverything) {
  FakeStore store;
  store.set("a", "1");
  EXPECT_EQ(store.get("a"), "");
  EXPECT_EQ(store.add("a", 5), 5);
  EXPECT_EQ(store.compare_set("a", "x", "y"), "y");
  store.wait({"a"});
  EXPECT_TRUE(store.check({"a"}));
  EXPECT_FALSE(store.delete_key("a"));
  EXPECT_EQ(store.num_keys(), 0);
  store.append("a", "1");
  EXPECT_THAT(store.multi_get({"a", "b"}), ElementsAre("", ""));
  store.multi_set({"a"}, {"1"});
  store.queue_push("q", "1");
  EXPECT_EQ(store.queue_pop("q"), "");
  EXPECT_EQ(store.queue_pop("q", /*block=*/false), "");
  EXPECT_EQ(store.queue_len("q"), 0);
  EXPECT_TRUE(store.list_keys().empty());
  store.watch_key("a", [](auto, auto) { ADD_FAILURE(); });
  store.set("a", "2");
}

std::vector<StoreCall::Op> every_op() {
  std::vector<StoreCall::Op> ops;
  for (int i = 0; i <= static_cast<int>(StoreCall::Op::kWatchKey); ++i) ops.push_back(static_cast<StoreCall::Op>(i));
  return ops;
}

TEST(StoreOpTest, EachHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const StoreCall::Op op : every_op()) {
    names.insert(StoreCall{.op = op}.name());
    EXPECT_THAT(StoreCall{.op = op}.name(), StartsWith("store "));
  }
  EXPECT_EQ(names.size(), every_op().size());
}

TEST(StoreOpTest, TheFileGrowsByThoseThatWrite) {
  TempDir dir;
  for (const StoreCall::Op op : every_op()) {
    const std::string path = dir.file("grows" + std::to_string(static_cast<int>(op)));
    const auto store = FileStore::open(path);
    store->set("a", "1");
    store->queue_push("a", "2");
    const auto before = std::filesystem::file_size(path);
    const std::string_view key = "a";
    const std::string_view value = "3";
    Store::WatchCallback watch = [](auto, auto) {};
    const StoreCall call{.op = op, .keys = {&key, 1}, .values = {&value, 1}, .expected = "1", .watch = &watch};
    EXPECT_TRUE(store->execute(StoreCall(call)).ok()) << call.name();
    EXPECT_EQ(std::filesystem::file_size(path) > before, call.writes()) << call.name();
  }
}

TEST(StoreOpTest, ThoseThatWaitTimeOutIfNothingIsThere) {
  for (const StoreCall::Op op : every_op()) {
    HashStore store;
    const std::string_view key = "a";
    const std::string_view value = "3";
    Store::WatchCallback watch = [](auto, auto) {};
    const StoreCall call{
        .op = op, .keys = {&key, 1}, .values = {&value, 1}, .timeout = absl::ZeroDuration(), .watch = &watch};
    const absl::Status status = store.execute(StoreCall(call)).status();
    EXPECT_EQ(!status.ok() && error_kind(status) == ErrorKind::kTimeout, call.waits()) << call.name();
  }
}

TEST(StringListTest, HoldsFewAndMany) {
  const std::vector<std::string> words = {"a", "b", "c", "d", "e", "f"};
  for (size_t n = 0; n <= words.size(); ++n) {
    const StringList made(std::vector<std::string>(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(n)));
    EXPECT_EQ(made.size(), n);
    EXPECT_EQ(made.empty(), n == 0);
  }
  const StringList many(words);
  const StringList copy = many;
  EXPECT_THAT(std::vector<std::string_view>(copy.begin(), copy.end()), ElementsAre("a", "b", "c", "d", "e", "f"));
  const StringList few = {"a", words[1]};
  EXPECT_THAT(std::vector<std::string_view>(few.begin(), few.end()), ElementsAre("a", "b"));
  EXPECT_EQ(few[1], "b");
}

// The answer of execute() to a call, which anybody may make of any parts.
std::string answer(Store& store, const StoreCall& call) {
  const absl::StatusOr<StoreReply> reply = store.execute(call);
  return reply.ok() ? "ok" : message_of(reply.status());
}

TEST(OwnStoreTest, ACallThatLacksItsPartsIsRefused) {
  using Op = StoreCall::Op;
  const auto keys = std::make_shared<HashStore>();
  FakeStore fake;
  PrefixStore prefix("p", std::make_shared<HashStore>());
  const std::vector<std::string_view> two = {"a", "b"};
  const absl::Span<const std::string_view> one = absl::MakeSpan(two).subspan(1);
  StoreCall::WatchCallback none;
  for (Store* const store : {static_cast<Store*>(keys.get()), static_cast<Store*>(&fake)}) {
    const std::string kind(store->kind());
    for (int op = 0; op <= static_cast<int>(Op::kWatchKey); ++op) {
      const StoreCall call{.op = static_cast<Op>(op), .keys = two, .values = two};
      const std::string who = kind + std::string(call.name()).substr(std::string("store").size());
      switch (call.op) {
        case Op::kWait:
        case Op::kCheck:
        case Op::kMultiGet:
        case Op::kNumKeys:
        case Op::kListKeys:
          EXPECT_EQ(answer(*store, {.op = call.op}), "ok");
          break;
        case Op::kMultiSet:
          EXPECT_EQ(answer(*store, call), "ok");
          EXPECT_EQ(answer(*store, {.op = call.op, .keys = two, .values = one}),
                    who + ": have 1 values, want one for each of 2 keys");
          break;
        default:
          EXPECT_EQ(answer(*store, {.op = call.op}), who + ": have 0 keys, want one");
          EXPECT_EQ(answer(*store, {.op = call.op, .keys = two}), who + ": have 2 keys, want one");
      }
    }
    EXPECT_EQ(answer(*store, {.op = Op::kSet, .keys = one}), kind + " set: have 0 values, want one");
    EXPECT_EQ(answer(*store, {.op = Op::kGet, .keys = one, .timeout = absl::Seconds(-1)}),
              kind + " get: negative timeout: have -1s, want 0 or more");
    EXPECT_EQ(answer(*store, {.op = Op::kWatchKey, .keys = one, .watch = &none}),
              kind + " watch_key: StoreCall::watch is null, want a callback");
    EXPECT_EQ(answer(*store, {.op = static_cast<Op>(99)}), kind + ": StoreCall::op has the unknown value 99");
  }
  EXPECT_EQ(answer(prefix, {.op = Op::kQueuePop}), "HashStore queue_pop: have 0 keys, want one");
}

// Gives the keys of a barrier names of its own.
class ShortKeys final : public Store {
 public:
  ShortKeys(Store* store, std::string_view go) : Store(store), store_(*store), go_(go) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    StoreCall changed = call;
    const std::string_view key = absl::StrContains(sv(call.key()), "/count")     ? "c"
                                 : absl::StrContains(sv(call.key()), "/arrived") ? "a"
                                                                                 : go_;
    changed.keys = {&key, 1};
    return store_.execute(changed);
  }
  std::string_view kind() const override { return "ShortKeys"; }

 private:
  Store& store_;
  const std::string_view go_;
};

TEST(OwnStoreTest, ABarrierUnderOtherKeysIsADeadlockLikeAnother) {
  for (const std::string_view go : {"", "g", "go", "go!", "a longer key"}) {
    const RunReport report = run_world({.world_size = 2, .schedule = Schedule::seeded(1)}, [go](RankContext& rank) {
      ShortKeys store(&rank.store(), go);
      if (rank.rank() == 0) store_barrier(store, "b", 0, 2);
    });
    EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n  rank 0 waits in store_barrier"),
                                     Not(HasSubstr("missing"))));
  }
}

// Keeps its values in another form, as one that encrypts them would, whose parts can be appended.
class Doubled final : public Store {
 public:
  explicit Doubled(Store* store) : Store(store), store_(*store) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    StoreCall changed = call;
    const std::string value = call.values.empty() ? "" : doubled(call.value());
    const std::string_view view = value;
    if (!call.values.empty()) changed.values = {&view, 1};
    absl::StatusOr<StoreReply> reply = store_.execute(changed);
    if (reply.ok() && call.op == StoreCall::Op::kGet) reply->value = halved(reply->value);
    return reply;
  }
  std::string_view kind() const override { return "Doubled"; }

 private:
  static std::string doubled(std::string_view text) {
    std::string twice;
    for (const char c : text) twice.append(2, static_cast<char>(c ^ 1));
    return twice;
  }
  static std::string halved(std::string_view text) {
    std::string once;
    for (size_t i = 0; i < text.size(); i += 2) once.push_back(static_cast<char>(text[i] ^ 1));
    return once;
  }

  Store& store_;
};

TEST(OwnStoreTest, ABarrierGoesOverAStoreThatKeepsValuesInAnotherForm) {
  run_world({.world_size = 3, .schedule = Schedule::seeded(1)}, [](RankContext& rank) {
    Doubled store(&rank.store());
    for (int round = 0; round < 3; ++round) store_barrier(store, "b", rank.rank(), 3);
  }).throw_if_failed();
  const RunReport report = run_world({.world_size = 3, .schedule = Schedule::seeded(1)}, [](RankContext& rank) {
    Doubled store(&rank.store());
    if (rank.rank() < 2) store_barrier(store, "b", rank.rank(), 3);
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n  ranks 0-1 wait in store_barrier"),
                                   Not(HasSubstr("missing")), Not(HasSubstr("cycle"))));
  EXPECT_THAT(run_world({.world_size = 2, .schedule = Schedule::seeded(1)},
                        [](RankContext& rank) {
                          Doubled store(&rank.store());
                          if (rank.rank() == 1) store_barrier(store, "b", 1, 2, absl::Seconds(1));
                        })
                  .text(),
              HasSubstr("timed out after 1s: missing rank 0 of 2"));
}

TEST(StoreBarrierTest, OfSomeRanksNamesTheOneOfTheWorld) {
  const RunReport report = run_world({.world_size = 4, .schedule = Schedule::seeded(1)}, [](RankContext& rank) {
    if (rank.rank() != 2) return;
    try {
      store_barrier(rank.store(), "half", rank.rank() - 2, 2, absl::Seconds(1));
    } catch (const DistError& error) {
      EXPECT_EQ(error.rank(), 2);
      throw;
    }
  });
  EXPECT_THAT(report.text(), HasSubstr("rank 2 failed: Timeout: rank 2, HashStore store_barrier \"half\" as rank 0: "
                                       "timed out after 1s: missing rank 1 of 2"));
}

// Keeps some keys in another store.
class Divided final : public Store {
 public:
  Divided(Store* store, Store* arrivals) : Store(store), store_(*store), arrivals_(*arrivals) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    return (absl::StrContains(sv(call.key()), "/arrived") ? arrivals_ : store_).execute(call);
  }
  std::string_view kind() const override { return "Divided"; }

 private:
  Store& store_;
  Store& arrivals_;
};

TEST(OwnStoreTest, ABarrierWhoseArrivalsLieElsewhereNamesNobodyWrongly) {
  HashStore arrivals;
  const RunReport report = run_world({.world_size = 3, .schedule = Schedule::seeded(1)}, [&](RankContext& rank) {
    Divided store(&rank.store(), &arrivals);
    if (rank.rank() < 2) store_barrier(store, "b", rank.rank(), 3);
  });
  EXPECT_THAT(report.text(), AllOf(StartsWith("Deadlock: no rank can move\n  ranks 0-1 wait in store_barrier \"b\" ["),
                                   Not(HasSubstr("missing")), Not(HasSubstr("cycle"))));
}

TEST(PrefixStoreTest, KeysThatAreOfNoUseLetNobodyElsesBeListed) {
  using Op = StoreCall::Op;
  const auto all = std::make_shared<HashStore>();
  all->set("other", "");
  PrefixStore prefix("p", all);
  prefix.set("own", "");
  const std::vector<std::string_view> two = {"x", "y"};
  for (const size_t keys : {0, 1, 2}) {
    const StoreCall call{.op = Op::kListKeys, .keys = absl::MakeSpan(two).first(keys)};
    EXPECT_THAT(prefix.execute(call)->values, ElementsAre("own")) << keys;
  }
}

TEST(OwnStoreTest, ABarrierOfVeryManyTellsTheMissingInFewWords) {
  HashStore store;
  const int most = std::numeric_limits<int>::max();
  EXPECT_THAT(error_of([&] { store_barrier(store, "b", 3, most, absl::Milliseconds(1)); }).what(),
              HasSubstr("timed out after 1ms: missing 2147483646 ranks, all but rank 3 of 2147483647"));
}

// The destructor of an exception may use the store that the callback was called by.
TEST(OwnStoreTest, AnExceptionOfAWatchEndsOutsideOfTheStoresLock) {
  HashStore store;
  std::atomic<int> ended{0};
  struct Failure {
    explicit Failure(Store* store, std::atomic<int>* ended) : store(store), ended(ended) {}
    Failure(const Failure& other) = default;
    Failure& operator=(const Failure&) = delete;
    ~Failure() {
      (void)store->check({"x"});
      ++*ended;
    }
    Store* store;
    std::atomic<int>* ended;
  };
  for (int i = 0; i < 3; ++i) store.watch_key("k", [&](auto, auto) { throw Failure(&store, &ended); });
  EXPECT_THROW(store.set("k", "1"), Failure);
  EXPECT_GE(ended, 3);
}

// Passes all on to a store of some world, and is itself of none, so that anybody may call it.
class OpenStore final : public Store {
 public:
  explicit OpenStore(Store& store) : store_(store) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override { return store_.execute(call); }
  std::string_view kind() const override { return "OpenStore"; }

 private:
  Store& store_;
};

// A task of another world, whose rank neither the plan of the store's world knows nor its table's locks.
TEST(OwnStoreTest, AStoreOfNoWorldLetsNoTaskOfAnotherWorldIn) {
  for (const EngineKind engine : {EngineKind::kFibers, EngineKind::kThreads}) {
    for (const bool faults : {true, false}) {
      WorldOptions options{.world_size = 1, .engine = engine};
      if (faults) options.faults = {{.kind = Fault::Kind::kDelay, .rank = 0, .op = "store get", .nth = 99}};
      int refused = 0;
      const RunReport report = run_world(options, [&](RankContext& rank) {
        OpenStore store(rank.store());
        store.set("a", "1");
        const RunReport inner = run_world({.world_size = 64, .engine = EngineKind::kFibers}, [&](RankContext&) {
          const DistError error = error_of([&] { store.get("a"); });
          EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
          EXPECT_THAT(
              error.what(),
              HasSubstr(
                  " of an inner world used the outer world's HashStore in store get: want one of its own world ["));
          ++refused;
        });
        EXPECT_TRUE(inner.ok()) << inner.text();
        EXPECT_EQ(store.get("a"), "1");
      });
      EXPECT_TRUE(report.ok()) << report.text();
      EXPECT_EQ(refused, 64);
    }
  }
}

}  // namespace
}  // namespace rankloom
