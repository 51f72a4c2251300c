// Stores of users: execute() and kind() are all that one supplies. And what is known of each operation.

#include <filesystem>
#include <map>
#include <set>

#include "tests/fake_store/store_fixture.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
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

}  // namespace
}  // namespace rankloom
