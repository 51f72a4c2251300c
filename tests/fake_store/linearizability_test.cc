// Random programs of concurrent operations: what came back must be what some order of whole operations gives.

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fake_store/store_state.h"
#include "rankloom/random.h"
#include "tests/fake_store/history.h"
#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

// Lets all ranks of no world or the free gear start together, so that their operations overlap.
class StartLine {
 public:
  explicit StartLine(int ranks) : missing_(ranks) {}
  void cross() {
    missing_.fetch_sub(1);
    while (missing_.load() > 0) std::this_thread::yield();
  }

 private:
  std::atomic<int> missing_;
};

// The history of `ranks` ranks that did `ops_each` random operations each.
std::vector<Event> history_of(StoreKind kind, Gear gear, const std::string& path, uint64_t seed, int ranks,
                              int ops_each, absl::FunctionRef<std::unique_ptr<Store>(Store&)> wrap) {
  std::vector<std::vector<Event>> by_rank(static_cast<size_t>(ranks));
  Prng prng(seed);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < ops_each; ++i)
      by_rank[static_cast<size_t>(rank)].push_back({.rank = rank, .op = random_op(prng.next())});
  }
  std::atomic<uint64_t> clock{0};
  StartLine line(ranks);
  const bool together = gear == Gear::kThreads || gear == Gear::kWorldFree;
  run_on(kind, gear, ranks, path, seed, [&](int rank, Store& inner) {
    const std::unique_ptr<Store> wrapper = wrap(inner);
    Store& store = wrapper != nullptr ? *wrapper : inner;
    store.set_timeout(absl::ZeroDuration());
    if (together) line.cross();
    for (Event& event : by_rank[static_cast<size_t>(rank)]) {
      event.called = clock.fetch_add(1);
      event.result = perform(store, event.op);
      event.returned = clock.fetch_add(1);
      if (together && event.called % 3 == 0) std::this_thread::yield();  // few cores: let the others in
    }
  });
  std::vector<Event> events;
  for (const std::vector<Event>& of_rank : by_rank) events.insert(events.end(), of_rank.begin(), of_rank.end());
  return events;
}

std::unique_ptr<Store> as_it_is(Store&) { return nullptr; }

class LinearizabilityTest : public testing::TestWithParam<std::tuple<StoreKind, Gear>> {
 protected:
  StoreKind kind() const { return std::get<0>(GetParam()); }
  Gear gear() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(
    Stores, LinearizabilityTest,
    testing::Combine(testing::Values(StoreKind::kHash, StoreKind::kFile, StoreKind::kFileEach, StoreKind::kPrefixHash),
                     testing::Values(Gear::kThreads, Gear::kWorldFree, Gear::kWorldBaton, Gear::kWorldFibers)),
    store_test_name);

TEST_P(LinearizabilityTest, SomeOrderExplainsEveryHistory) {
  TempDir dir;
  const int histories = kind() == StoreKind::kHash || kind() == StoreKind::kPrefixHash ? 1000 : 100;
  for (int i = 0; i < histories; ++i) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(i);
    const int ranks = 3 + i % 2;
    const std::vector<Event> events = history_of(kind(), gear(), dir.file("store" + std::to_string(i)), seed, ranks,
                                                 /*ops_each=*/24 / ranks, as_it_is);
    const std::optional<std::string> wrong = not_linearizable(events);
    ASSERT_FALSE(wrong.has_value()) << "seed " << seed << ": " << *wrong;
  }
}

// Adds in two steps and deletes before it sets: what the check is there to find.
class TornStore final : public Store {
 public:
  explicit TornStore(Store* store) : Store(store), store_(*store) {}

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    if (call.op == StoreCall::Op::kSet) return set_in_two(call.key(), call.value());
    if (call.op == StoreCall::Op::kAdd) return add_in_two(call.key(), call.amount);
    return store_.execute(call);
  }
  std::string_view kind() const override { return "TornStore"; }

 private:
  StoreReply set_in_two(std::string_view key, std::string_view value) {
    store_.delete_key(key);
    std::this_thread::yield();
    store_.set(key, value);
    return {};
  }
  absl::StatusOr<StoreReply> add_in_two(std::string_view key, int64_t amount) {
    int64_t have = 0;
    if (store_.check({key})) {
      const absl::StatusOr<StoreReply> text =
          store_.execute({.op = StoreCall::Op::kGet, .keys = {&key, 1}, .timeout = absl::ZeroDuration()});
      std::this_thread::yield();
      if (text.ok() && !absl::SimpleAtoi(text->value, &have) && !text->value.empty())
        return make_error(ErrorKind::kStoreError, "no number");
    }
    store_.set(key, absl::StrCat(have + amount));
    return StoreReply{.number = have + amount};
  }

  Store& store_;
};

class LinearizabilityCheckTest : public testing::TestWithParam<Gear> {};
INSTANTIATE_TEST_SUITE_P(Gears, LinearizabilityCheckTest,
                         testing::Values(Gear::kThreads, Gear::kWorldFree, Gear::kWorldBaton, Gear::kWorldFibers),
                         [](const auto& gear) { return name_of(gear.param); });

TEST_P(LinearizabilityCheckTest, FindsAStoreThatAddsInTwoSteps) {
  int found = 0;
  for (uint64_t seed = 0; seed < 2000 && found < 20; ++seed) {
    const std::vector<Event> events = history_of(StoreKind::kHash, GetParam(), "", seed, 3, 8,
                                                 [](Store& inner) { return std::make_unique<TornStore>(&inner); });
    if (not_linearizable(events).has_value()) ++found;
  }
  EXPECT_EQ(found, 20);
}

TEST(HistoryTest, RefusesAValueReadBeforeItWasWritten) {
  const ModelOp set{.kind = ModelOp::Kind::kSet, .key = "x", .a = "1"};
  const ModelOp get{.kind = ModelOp::Kind::kGet, .key = "x"};
  const Event wrote{.rank = 0, .op = set, .result = "ok", .called = 2, .returned = 3};
  Event read{.rank = 1, .op = get, .result = "value:1", .called = 0, .returned = 1};
  EXPECT_TRUE(not_linearizable({wrote, read}).has_value());
  read.result = "absent";
  EXPECT_FALSE(not_linearizable({wrote, read}).has_value());
  read = {.rank = 1, .op = get, .result = "value:1", .called = 0, .returned = 4};  // the two overlap
  EXPECT_FALSE(not_linearizable({wrote, read}).has_value());
  read = {.rank = 1, .op = get, .result = "absent", .called = 4, .returned = 5};
  EXPECT_TRUE(not_linearizable({wrote, read}).has_value());
}

// Small programs: what all interleavings of whole operations give, against what seeded schedules give.

using Program = std::vector<std::vector<ModelOp>>;  // by rank

void all_outcomes(const Program& program, std::vector<size_t> at, ModelStore state,
                  std::vector<std::vector<std::string>> results, std::set<std::string>* outcomes) {
  bool over = true;
  for (size_t rank = 0; rank < program.size(); ++rank) {
    if (at[rank] == program[rank].size()) continue;
    over = false;
    ModelStore next = state;
    std::vector<size_t> next_at = at;
    std::vector<std::vector<std::string>> next_results = results;
    next_results[rank].push_back(next.perform(program[rank][next_at[rank]++]));
    all_outcomes(program, next_at, next, next_results, outcomes);
  }
  if (!over) return;
  std::string text;
  for (const std::vector<std::string>& of_rank : results) {
    for (const std::string& result : of_rank) absl::StrAppend(&text, result, " ");
    text += "| ";
  }
  outcomes->insert(text + state.state());
}

std::set<std::string> all_outcomes(const Program& program) {
  std::set<std::string> outcomes;
  all_outcomes(program, std::vector<size_t>(program.size()), ModelStore(),
               std::vector<std::vector<std::string>>(program.size()), &outcomes);
  return outcomes;
}

// The outcome of one run, in the same form.
std::string outcome(const Program& program, StoreKind kind, Gear gear, const std::string& path, uint64_t seed) {
  std::vector<std::vector<std::string>> results(program.size());
  std::atomic<uint64_t> order{0};
  std::vector<std::pair<uint64_t, ModelOp>> done;
  run_on(kind, gear, static_cast<int>(program.size()), path, seed, [&](int rank, Store& store) {
    internal::StoreAccess::state(store).set_timeout(absl::ZeroDuration());  // no scheduling point: the appends only
    for (const ModelOp& op : program[static_cast<size_t>(rank)]) {
      results[static_cast<size_t>(rank)].push_back(perform(store, op));
      done.emplace_back(order.fetch_add(1), op);  // one rank runs at a time
    }
  });
  ModelStore state;
  for (const auto& [when, op] : done) state.perform(op);
  std::string text;
  for (const std::vector<std::string>& of_rank : results) {
    for (const std::string& result : of_rank) absl::StrAppend(&text, result, " ");
    text += "| ";
  }
  return text + state.state();
}

class InterleavingTest : public testing::TestWithParam<Gear> {};
INSTANTIATE_TEST_SUITE_P(Gears, InterleavingTest, testing::Values(Gear::kWorldBaton, Gear::kWorldFibers),
                         [](const auto& gear) { return name_of(gear.param); });

TEST_P(InterleavingTest, SeedsReachEveryOutcomeOfASmallProgramAndNoOther) {
  // Three ranks append three times: 1680 interleavings, each with an outcome of its own.
  Program program;
  for (int rank = 0; rank < 3; ++rank) {
    const ModelOp append{
        .kind = ModelOp::Kind::kAppend, .key = "x", .a = std::string(1, static_cast<char>('a' + rank))};
    program.push_back({append, append, append});
  }
  const std::set<std::string> expected = all_outcomes(program);
  ASSERT_EQ(expected.size(), 1680u);
  std::set<std::string> seen;
  const uint64_t most = GetParam() == Gear::kWorldFibers ? 60'000 : 300;  // threads: for equality with the model only
  for (uint64_t seed = 0; seed < most && seen.size() < expected.size(); ++seed) {
    seen.insert(outcome(program, StoreKind::kHash, GetParam(), "", seed));
  }
  EXPECT_TRUE(std::includes(expected.begin(), expected.end(), seen.begin(), seen.end()));
  if (GetParam() == Gear::kWorldFibers) {
    EXPECT_EQ(seen.size(), expected.size());
  }
}

TEST_P(InterleavingTest, OutcomesOfRandomProgramsAreThoseOfTheModel) {
  TempDir dir;
  int file = 0;
  for (uint64_t number = 0; number < 20; ++number) {
    Prng prng(number);
    Program program(3);
    for (std::vector<ModelOp>& of_rank : program) {
      for (int i = 0; i < 3; ++i) of_rank.push_back(random_op(prng.next()));
    }
    const std::set<std::string> expected = all_outcomes(program);
    for (uint64_t seed = 0; seed < 60; ++seed) {
      for (StoreKind kind : {StoreKind::kHash, StoreKind::kFile}) {
        if (kind == StoreKind::kFile && seed >= 5) continue;
        const std::string got = outcome(program, kind, GetParam(), dir.file(std::to_string(file++)), seed);
        ASSERT_TRUE(expected.count(got) > 0) << "program " << number << " seed " << seed << ": " << got;
      }
    }
  }
}

}  // namespace
}  // namespace rankloom
