// Worlds of MPI processes, beside the tests of groups that run in them: the same bits as in one process, the store, and
// ranks that fail, end or differ.

#include "collectives/mpi/mpi_world.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/kernels/kernels.h"
#include "collectives/mpi/mpi_store.h"
#include "collectives/mpi/wire.h"
#include "collectives/ops/op_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rankloom/mpi.h"
#include "tests/collectives/threaded/random_program.h"
#include "tests/error_of.h"
#include "tests/world/every_world.h"
#include "world/run_data.h"

namespace rankloom {

using namespace internal;

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Bytes = std::string;
using Program = std::function<Bytes(RankContext&)>;

int ranks_of_job() { return ranks_per_process * processes_of_job(); }

// Bytes that this process's ranks of a world of all processes leave, and how the run went.
struct Ran {
  RunReport report;
  std::vector<Bytes> mine;  // by rank of the world
};
Ran run_all(const Program& program, WorldOptions options = {}) {
  Ran ran;
  ran.mine.resize(static_cast<size_t>(ranks_of_job()));
  ran.report = run_mpi_world(std::move(options), ranks_per_process,
                             [&](RankContext& rank) { ran.mine[static_cast<size_t>(rank.rank())] = program(rank); });
  return ran;
}

// The same program on threads of this process.
std::vector<Bytes> in_one_process(const Program& program) {
  std::vector<Bytes> all(static_cast<size_t>(ranks_of_job()));
  const RunReport report = run_world({.world_size = ranks_of_job()},
                                     [&](RankContext& rank) { all[static_cast<size_t>(rank.rank())] = program(rank); });
  EXPECT_TRUE(report.ok()) << report.text();
  return all;
}

void expect_same(const Program& program, const std::string& what) {
  const Ran ran = run_all(program);
  ASSERT_TRUE(ran.report.ok()) << what << ": " << ran.report.text();
  const std::vector<Bytes> all = in_one_process(program);
  for (int i = 0; i < ranks_per_process; ++i) {
    const auto rank = static_cast<size_t>(process_of_job() * ranks_per_process + i);
    EXPECT_TRUE(ran.mine[rank] == all[rank]) << what << ", rank " << rank;
  }
}

// A tensor of any dtype whose elements are different and exact, or not: a third of 7.
struct Filled {
  std::vector<char> bytes;
  TensorView view;
  Filled(DType dtype, int64_t count, uint64_t seed) : bytes(static_cast<size_t>(count) * dtype_size(dtype) + 1) {
    Prng prng(seed);
    for (int64_t i = 0; i < count; ++i) write(dtype, i, prng);
    view = TensorView(bytes.data(), dtype, Dims::of(count));
  }
  void write(DType dtype, int64_t i, Prng& prng) {
    char* const to = bytes.data() + static_cast<size_t>(i) * dtype_size(dtype);
    const double value = (static_cast<double>(prng.below(2000)) - 1000) / 7;
    const auto put = [to](auto v) { std::memcpy(to, &v, sizeof(v)); };
    switch (dtype) {
      case DType::kFloat32:
        return put(static_cast<float>(value));
      case DType::kFloat64:
        return put(value);
      case DType::kFloat16:
        return put(Half(static_cast<float>(value)));
      case DType::kBFloat16:
        return put(BFloat16(static_cast<float>(value)));
      case DType::kComplex64:
        return put(std::array<float, 2>{static_cast<float>(value), static_cast<float>(value / 3)});
      case DType::kComplex128:
        return put(std::array<double, 2>{value, value / 3});
      case DType::kBool:
        return put(static_cast<uint8_t>(prng.below(2)));
      default:
        for (size_t byte = 0; byte < dtype_size(dtype); ++byte) to[byte] = static_cast<char>(prng.below(256));
    }
  }
  Bytes text() const { return {bytes.data(), view.bytes()}; }
};

constexpr DType kReduced[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,   DType::kFloat64,
                              DType::kInt8,    DType::kUInt8,    DType::kInt16,     DType::kInt32,
                              DType::kInt64,   DType::kBool,     DType::kComplex64, DType::kComplex128};
const ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                               ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                               ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::premul_sum(0.3)};
using Order = ReduceOp::Order;
constexpr Order kOrders[] = {{},
                             {.kind = Order::Kind::kReversed},
                             {.kind = Order::Kind::kRing},
                             {.kind = Order::Kind::kTree},
                             {.kind = Order::Kind::kSeeded, .seed = 5},
                             {.accumulate_in_float = false}};

TEST(MpiWorldTest, ReductionsHaveTheBitsOfOneProcess) {
  for (const DType dtype : kReduced) {
    expect_same(
        [dtype](RankContext& rank) {
          auto pg = init_process_group(rank);
          Bytes all;
          const auto n = static_cast<int64_t>(pg->size());
          for (const ReduceOp op : kReduceOps) {
            if (!reduction_supported(op, dtype)) continue;
            for (const int64_t count : {int64_t{7}, int64_t{1001}}) {
              const auto seed = static_cast<uint64_t>(rank.rank()) * 31 + static_cast<uint64_t>(count);
              for (const Order& order : kOrders) {
                const CallOptions options{.order = order};
                Filled x(dtype, count, seed);
                pg->all_reduce(x.view, op, options).wait();
                Filled y(dtype, count, seed);
                pg->reduce(y.view, pg->size() - 1, op, options).wait();
                Filled in(dtype, count * n, seed);
                Filled out(dtype, count, 0);
                pg->reduce_scatter_tensor(out.view, in.view, op, options).wait();
                all += x.text() + out.text();
                if (rank.rank() == pg->size() - 1) all += y.text();
              }
            }
          }
          return all;
        },
        std::string(dtype_name(dtype)));
  }
}

TEST(MpiWorldTest, EveryOperationMovesWhatItMovesInOneProcess) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{3000}}) {
    expect_same(
        [count](RankContext& rank) {
          auto pg = init_process_group(rank);
          const int n = pg->size();
          const auto seed = static_cast<uint64_t>(rank.rank()) * 1000 + static_cast<uint64_t>(count);
          Bytes all;
          const auto list = [&](uint64_t salt, auto size_of) {
            std::vector<Filled> tensors;
            for (int i = 0; i < n; ++i) tensors.emplace_back(DType::kInt64, size_of(i), seed + salt + uint64_t(i));
            for (Filled& tensor : tensors)
              tensor.view = TensorView(tensor.bytes.data(), DType::kInt64, tensor.view.sizes());
            return tensors;
          };
          const auto views = [](std::vector<Filled>& tensors) {
            std::vector<TensorView> all;
            for (Filled& tensor : tensors) all.push_back(tensor.view);
            return all;
          };
          const auto keep = [&all](const std::vector<Filled>& tensors) {
            for (const Filled& tensor : tensors) all += tensor.text();
          };
          const int root = n / 2;
          // Sizes that differ from rank to rank.
          Filled mine(DType::kInt64, count + rank.rank(), seed);
          std::vector<Filled> gathered = list(1, [count](int i) { return count + i; });
          pg->all_gather(views(gathered), mine.view).wait();
          keep(gathered);
          std::vector<Filled> in = list(2, [&](int i) { return count + i * rank.rank(); });
          std::vector<Filled> out = list(3, [&](int i) { return count + i * rank.rank(); });
          pg->all_to_all(views(out), views(in)).wait();
          keep(out);
          std::vector<Filled> parts = list(4, [count](int i) { return count + 2 * i; });
          Filled part(DType::kInt64, count + 2 * rank.rank(), seed);
          pg->reduce_scatter(part.view, views(parts)).wait();
          all += part.text();
          // Sizes that are alike.
          Filled same(DType::kInt64, count, seed + 9);
          std::vector<Filled> collected = list(5, [count](int) { return count; });
          pg->gather(rank.rank() == root ? views(collected) : std::vector<TensorView>(), same.view, root).wait();
          keep(collected);
          Filled dealt(DType::kInt64, count, seed + 10);
          pg->scatter(dealt.view, rank.rank() == root ? views(collected) : std::vector<TensorView>(), root).wait();
          all += dealt.text();
          pg->broadcast(same.view, root).wait();
          all += same.text();
          Filled big(DType::kInt64, count * n, seed + 11);
          pg->all_gather_into_tensor(big.view, dealt.view).wait();
          all += big.text();
          Filled turned(DType::kInt64, count * n, seed + 12);
          pg->all_to_all_single(turned.view, big.view).wait();
          all += turned.text();
          // Splits: rank r sends r + p rows to p.
          std::vector<int64_t> to, from;
          int64_t sent = 0, received = 0;
          for (int p = 0; p < n; ++p) {
            to.push_back(count + rank.rank() + 2 * p);
            from.push_back(count + p + 2 * rank.rank());
            sent += to.back();
            received += from.back();
          }
          Filled rows(DType::kFloat32, 3 * sent, seed + 13);
          Filled taken(DType::kFloat32, 3 * received, seed + 14);
          pg->all_to_all_single(TensorView(taken.bytes.data(), DType::kFloat32, {received, 3}),
                                TensorView(rows.bytes.data(), DType::kFloat32, {sent, 3}), from, to)
              .wait();
          all += taken.text();
          pg->barrier().wait();
          pg->monitored_barrier();
          return all;
        },
        absl::StrCat(count, " elements"));
  }
}

TEST(MpiWorldTest, CoalescedCallsDoWhatTheyDoInOneProcess) {
  for (const int64_t count : {3, 2000}) {
    expect_same(
        [count](RankContext& rank) {
          auto pg = init_process_group(rank);
          const auto n = static_cast<int64_t>(pg->size());
          const auto seed = static_cast<uint64_t>(rank.rank());
          Filled a(DType::kFloat32, count, seed), b(DType::kFloat64, count + 1, seed + 50);
          Filled in(DType::kInt32, count, seed + 60), out(DType::kInt32, count * n, 0);
          Filled given(DType::kInt32, count, seed + 70), got(DType::kInt32, count, 0);
          pg->start_coalescing();
          std::vector<Work> works;
          works.push_back(pg->all_reduce(a.view));
          works.push_back(pg->send(given.view, (pg->rank() + 1) % pg->size(), 4));
          works.push_back(pg->all_gather_into_tensor(out.view, in.view));
          works.push_back(pg->recv(got.view, (pg->rank() + pg->size() - 1) % pg->size(), 4));
          works.push_back(pg->all_reduce(b.view, ReduceOp::kMax));
          pg->end_coalescing().wait();
          for (Work& work : works) EXPECT_TRUE(work.is_success());
          std::vector<TensorView> buffers = {a.view, b.view};
          Filled c(DType::kFloat32, count, seed + 80);
          pg->all_reduce_coalesced({a.view, c.view}).wait();
          return a.text() + b.text() + out.text() + got.text() + c.text();
        },
        absl::StrCat(count, " elements"));
  }
}

TEST(MpiWorldTest, RandomProgramsComputeWhatTheOracleSays) {
  int ran = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomProgram program(seed);
    if (program.ranks() > ranks_of_job() || program.ranks() < 2) continue;
    ++ran;
    std::map<int, RandomProgram::State> states;
    const int processes = (program.ranks() + ranks_per_process - 1) / ranks_per_process;
    const RunReport report = run_on_first(processes, {.world_size = program.ranks()}, ranks_per_process,
                                          [&](RankContext& rank) { states[rank.rank()] = program.run_rank(rank); });
    ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << report.text() << "\n" << program;
    for (const auto& [rank, state] : states)
      ASSERT_EQ(state, program.outcome()[static_cast<size_t>(rank)]) << "seed " << seed << "\n" << program;
  }
  EXPECT_GT(ran, 5);
}

// Helpers may outlive their ranks, and the ranks of all other processes.
TEST(MpiWorldTest, TasksThatOutliveAllRanksAreServed) {
  for (const bool last : {true, false}) {
    int64_t added = 0;
    const Ran ran = run_all([&](RankContext& rank) {
      if (rank.rank() != (last ? rank.world_size() - 1 : 0)) return Bytes();
      rank.world().spawn_helper([&rank, &added] {
        rank.sleep_for(absl::Milliseconds(50));
        added = rank.store().add("helped", 7);
      });
      return Bytes();
    });
    EXPECT_TRUE(ran.report.ok()) << ran.report.text();
    EXPECT_EQ(added, process_of_job() == (last ? processes_of_job() - 1 : 0) ? 7 : 0);
  }
}

TEST(MpiWorldTest, LargeMessagesArrive) {
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    const int n = pg->size();
    std::vector<int64_t> mine(200'000, rank.rank());
    std::vector<int64_t> from_left(mine.size(), -1);
    Work sent = pg->send(mine, (rank.rank() + 1) % n, 3);
    Work got = pg->recv_any(from_left, 3);
    got.wait();
    sent.wait();
    const int left = (rank.rank() + n - 1) % n;
    EXPECT_EQ(got.source(), left);
    EXPECT_EQ(from_left, std::vector<int64_t>(mine.size(), left));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

// Also in a group that has no communicator yet, where the receiver has not called, and of more than a header carries.
TEST(MpiWorldTest, AnEagerSendIsDoneAtOnce) {
  if (ranks_of_job() < 2) GTEST_SKIP() << "want 2 ranks";
  for (const bool first : {true, false}) {
    for (const size_t count : {1U, 50'000U}) {
      const Ran ran = run_all([&](RankContext& rank) {
        std::shared_ptr<ProcessGroup> other;
        if (!first) other = init_process_group(rank);
        auto pg = init_process_group(rank, {.eager_bytes = 1 << 20});
        std::vector<int32_t> x(count, 7);
        if (rank.rank() == 0) {
          Work sent = pg->send(x, 1, 2);
          EXPECT_TRUE(sent.is_success());
          x.assign(count, 9);
          (void)pg->send(x, 1, 3);
          x.assign(count, 11);
          rank.store().set("changed", "");
        } else if (rank.rank() == 1) {
          rank.store().wait({"changed"});
          pg->recv(x, 0, 3).wait();
          EXPECT_EQ(x, std::vector<int32_t>(count, 9));
          pg->recv(x, 0, 2).wait();
          EXPECT_EQ(x, std::vector<int32_t>(count, 7));
        }
        return Bytes();
      });
      EXPECT_TRUE(ran.report.ok()) << ran.report.text();
      EXPECT_THAT(ran.report.notes, testing::IsEmpty());
    }
  }
}

// The communicator of a later group is made without a call of those members that have no part in the message.
TEST(MpiWorldTest, AMessageComesWhileOtherMembersWaitForSomethingElse) {
  if (ranks_of_job() < 3) GTEST_SKIP() << "want 3 ranks";
  const Ran ran = run_all([](RankContext& rank) {
    auto first = init_process_group(rank);
    auto pg = init_process_group(rank);
    std::vector<int32_t> x = {7 + rank.rank(), 9};
    if (rank.rank() == 0) {
      pg->send(x, 1, 5).wait();
    } else if (rank.rank() == 1) {
      pg->recv(x, 0, 5).wait();
      EXPECT_THAT(x, testing::ElementsAre(7, 9));
      rank.store().set("received", "");
    } else {
      rank.store().wait({"received"});
    }
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

// Nobody else ever calls: its group has no communicator when the run ends.
TEST(MpiWorldTest, AnEagerSendOfALaterGroupThatNobodyReceivesIsNoted) {
  if (ranks_of_job() < 2) GTEST_SKIP() << "want 2 ranks";
  const Ran ran = run_all([](RankContext& rank) {
    auto first = init_process_group(rank);
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    const std::vector<int32_t> x(2);
    if (rank.rank() == 0) (void)pg->send(x, 1, 5);
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
  if (process_of_job() == 0) {
    EXPECT_THAT(ran.report.notes, testing::Contains(HasSubstr("send to rank 1, tag 5: was never received")));
  }
}

// Buffers of calls that are over are the rank's again, though their handles are there.
TEST(MpiWorldTest, AGroupThatIsLeftOrAbortedFreesItsBuffers) {
  for (const bool aborts : {false, true}) {
    const Ran ran = run_all([aborts](RankContext& rank) {
      auto pg = init_process_group(rank);
      auto other = pg->new_group();
      std::vector<float> x = {1};
      Work open = aborts ? other->recv(x, (rank.rank() + 1) % rank.world_size()) : other->all_reduce(x);
      pg->barrier().wait();
      if (aborts) {
        other->abort("no need");
      } else {
        other->shutdown();
        EXPECT_EQ(x[0], rank.world_size());
      }
      x[0] = 2;
      pg->all_reduce(x).wait();
      EXPECT_EQ(x[0], 2.0F * static_cast<float>(rank.world_size()));
      EXPECT_THAT(error_of([&] { open.wait(); }), HasSubstr(aborts ? " aborted group 0.1: no need" : "no error"));
      return Bytes();
    });
    EXPECT_TRUE(ran.report.ok()) << ran.report.text();
  }
}

TEST(MpiWorldTest, RanksMeetInTheStore) {
  const Ran ran = run_all([](RankContext& rank) {
    Store& store = rank.store();
    const int n = rank.world_size();
    store.set(absl::StrCat("key ", rank.rank()), absl::StrCat("value ", rank.rank()));
    for (int r = 0; r < n; ++r) EXPECT_EQ(store.get(absl::StrCat("key ", r)), absl::StrCat("value ", r));
    store.add("sum", rank.rank() + 1);
    store_barrier(store, "added", rank.rank(), n);
    EXPECT_EQ(store.get("sum"), absl::StrCat(n * (n + 1) / 2));
    EXPECT_TRUE(store.check({"sum"}));
    EXPECT_FALSE(store.check({"never"}));
    store.append("log", "x");
    store_barrier(store, "appended", rank.rank(), n);
    EXPECT_EQ(store.get("log"), std::string(static_cast<size_t>(n), 'x'));
    EXPECT_THAT(store.multi_get({"sum", "log"}), ElementsAre(absl::StrCat(n * (n + 1) / 2), testing::SizeIs(n)));
    if (rank.rank() == n - 1) store.queue_push("queue", "first");
    if (rank.rank() == 0) {
      EXPECT_EQ(store.queue_pop("queue"), "first");
    }
    EXPECT_EQ(store.compare_set(absl::StrCat("mine ", rank.rank()), "", "x"), "x");
    EXPECT_THAT(error_of([&] { store.wait({"never"}, absl::Milliseconds(20)); }),
                HasSubstr("timed out after 20ms: missing key \"never\""));
    EXPECT_THAT(error_of([&] { store.watch_key("sum", [](auto, auto) {}); }),
                HasSubstr("no process hears of the changes of others"));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

// A store of a user's own, by which a rank comes to a barrier in two steps.
class SlowToAppend final : public Store {
 public:
  SlowToAppend(Store& store, std::string key) : Store(&store), store_(store), key_(std::move(key)) {}
  absl::StatusOr<StoreReply> execute(const StoreCall& call) override {
    if (call.op == StoreCall::Op::kAppend) store_.wait({key_});
    return store_.execute(call);
  }
  std::string_view kind() const override { return "SlowToAppend"; }

 private:
  Store& store_;
  const std::string key_;
};

// Rank 0's process has the keys: of its own calls it knows more than of those that come.
TEST(MpiWorldTest, ABarrierInTheStoreEndsWhoeverIsCountedLast) {
  const Ran ran = run_all([](RankContext& rank) {
    Store& store = rank.store();
    const int n = rank.world_size();
    if (rank.rank() == 0) {
      // All others are counted, and leave their numbers after rank 0.
      while (n > 1 && (!store.check({"slow/count"}) || store.get("slow/count") != absl::StrCat(n - 1))) rank.yield();
      store_barrier(store, "slow", 0, n, absl::Seconds(20));
    } else {
      SlowToAppend slow(store, "slow/arrived/0");
      store_barrier(slow, "slow", rank.rank(), n, absl::Seconds(20));
    }
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, ARankThatComesToABarrierOfTheStoreAgainIsRefused) {
  const int last = ranks_of_job() - 1;
  const Ran ran = run_all([last](RankContext& rank) {
    if (rank.rank() != last) return Bytes();
    const auto come = [&] { store_barrier(rank.store(), "twice", last, last + 2, absl::Milliseconds(20)); };
    EXPECT_THAT(error_of(come), HasSubstr("store_barrier \"twice\": timed out after 20ms: missing rank"));
    EXPECT_THAT(error_of(come), AllOf(StartsWith("InvalidArgument: "),
                                      HasSubstr(absl::StrCat("rank ", last, " of ", last + 2, " has come already"))));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

// Memory that takes none until it is written.
class LargeMemory {
 public:
  explicit LargeMemory(size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~LargeMemory() { munmap(at_, bytes_); }
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

  char* at() const { return static_cast<char*>(at_); }
  std::string_view text() const { return {at(), bytes_}; }

 private:
  const size_t bytes_;
  void* const at_;
};

TEST(MpiWorldTest, AValueThatNoMessageHoldsIsRefused) {
  const LargeMemory value((size_t{1} << 31) + 10);
  const Ran ran = run_all([&](RankContext& rank) {
    EXPECT_THAT(error_of([&] { rank.store().set(absl::StrCat("large ", rank.rank()), value.text()); }),
                AllOf(StartsWith(absl::StrCat("StoreError: rank ", rank.rank(), ", MpiStore set key \"large ",
                                              rank.rank(), "\": have 2147483681")),
                      HasSubstr(" bytes of keys and values, want at most 2147479552 in one call over MPI")));
    rank.store().set(absl::StrCat("small ", rank.rank()), absl::StrCat(rank.rank()));
    EXPECT_EQ(rank.store().get(absl::StrCat("small ", rank.rank())), absl::StrCat(rank.rank()));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, AReplyThatNoMessageHoldsIsAnError) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const int64_t most = std::exchange(most_store_bytes, 5'000);
  const Ran ran = run_all([](RankContext& rank) {
    const std::string key = absl::StrCat("part ", rank.rank());
    rank.store().set(key, std::string(2'000, 'x'));
    EXPECT_EQ(rank.store().multi_get({key, key})[1].size(), 2'000);
    if (rank.rank() > 0) {
      EXPECT_THAT(error_of([&] {
                    (void)rank.store().multi_get({key, key, key});
                  }),
                  AllOf(StartsWith(absl::StrCat("StoreError: rank ", rank.rank(), ", MpiStore multi_get key \"", key,
                                                "\": have 6024")),
                        HasSubstr(" bytes of values, want at most 5000 in one reply over MPI")));
    }
    EXPECT_EQ(rank.store().get(key).size(), 2'000);
    return Bytes();
  });
  most_store_bytes = most;
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, AMessageOfMoreThan2GiBArrives) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const int64_t count = (int64_t{1} << 28) + 5;
  const RunReport report = run_on_first(2, {}, [count](RankContext& rank) {
    auto pg = init_process_group(rank);
    const LargeMemory memory(static_cast<size_t>(count) * sizeof(int64_t));
    auto* const values = reinterpret_cast<int64_t*>(memory.at());
    const TensorView tensor(values, DType::kInt64, Dims::of(count));
    for (const int64_t i : {int64_t{0}, count / 2, count - 1}) values[i] = rank.rank() == 0 ? 7 + i : -1;
    rank.rank() == 0 ? pg->send(tensor, 1, 2).wait() : pg->recv(tensor, 0, 2).wait();
    EXPECT_EQ(values[0], 7);
    EXPECT_EQ(values[1], 0);
    EXPECT_EQ(values[count / 2], 7 + count / 2);
    EXPECT_EQ(values[count - 1], 7 + count - 1);
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// Of each member the others take as many elements as its own output has, beside its own inputs.
TEST(MpiWorldTest, ACallWhosePartsMpiCannotCountIsRefused) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const LargeMemory memory(1 << 20);
  const Ran ran = run_all([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() != 1) return Bytes();
    const int64_t count = (int64_t{1} << 31) / pg->size() + 1;
    std::vector<TensorView> inputs(static_cast<size_t>(pg->size()), TensorView(memory.at(), DType::kInt8, Dims::of(3)));
    inputs[1] = TensorView(memory.at() + 10, DType::kInt8, Dims::of(count));
    const TensorView output(memory.at() + 10, DType::kInt8, Dims::of(count));
    EXPECT_THAT(error_of([&] { (void)pg->reduce_scatter(output, inputs); }),
                AllOf(StartsWith("InvalidArgument: "),
                      HasSubstr(absl::StrCat("the parts of all members have ", pg->size() * count,
                                             " elements, want at most 2^31 - 1 in one call over MPI"))));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, CallbacksRunAndQuestionsAreAnswered) {
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(5000, 1);
    Latch told(1);
    Work reduced = pg->all_reduce(x);
    reduced.then([&](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      told.count_down();
    });
    told.wait();
    EXPECT_EQ(x[4999], static_cast<float>(pg->size()));
    Work asked = pg->all_reduce(x);
    while (!asked.is_completed()) {
    }
    EXPECT_EQ(x[0], static_cast<float>(pg->size() * pg->size()));
    std::vector<float> y(3, 1), z(3, 2);
    std::vector<Work> works;
    works.push_back(pg->all_reduce(y));
    works.push_back(pg->all_reduce(z));
    EXPECT_LT(wait_any(works), 2U);
    wait_all(works);
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, GroupsOfSomeRanksAreMadeInAnyOrder) {
  if (processes_of_job() < 3) GTEST_SKIP() << "want 3 processes";
  const Ran ran = run_all([](RankContext& rank) {
    const int n = rank.world_size();
    const int right = (rank.rank() + 1) % n;
    const int left = (rank.rank() + n - 1) % n;
    // Each makes the group with its right neighbour first: a circle.
    auto pair = [&](int a, int b) {
      return init_process_group(rank, {.ranks = a < b ? std::vector<int>{a, b} : std::vector<int>{b, a}});
    };
    auto first = pair(rank.rank(), right);
    auto second = pair(left, rank.rank());
    std::vector<int> x = {1 + rank.rank()}, y = x;
    Work a = first->all_reduce(x);
    Work b = second->all_reduce(y);
    a.wait();
    b.wait();
    EXPECT_EQ(x[0], 2 + rank.rank() + right);
    EXPECT_EQ(y[0], 2 + rank.rank() + left);
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, EveryProcessHasTheWholeReport) {
  const Ran ran = run_all([](RankContext& rank) -> Bytes {
    auto pg = init_process_group(rank);
    if (rank.rank() == rank.world_size() - 1) throw std::runtime_error("the disk is full");
    std::vector<float> x(3);
    pg->all_reduce(x).wait();
    return "";
  });
  const int last = ranks_of_job() - 1;
  EXPECT_FALSE(ran.report.ok());
  EXPECT_EQ(ran.report.first_failed, last);
  EXPECT_THAT(ran.report.text(), StartsWith(absl::StrCat("rank ", last, " failed: the disk is full")));
  if (last > 0) {
    EXPECT_EQ(ran.report.outcomes[0].state, RunReport::Outcome::State::kStopped);
    EXPECT_THAT(ran.report.text(), HasSubstr("stopped for it"));
  }
}

TEST(MpiWorldTest, MembersThatDifferGetOneTable) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(rank.rank() == 1 ? 4 : 3);
    pg->all_reduce(x, rank.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum).wait();
    return Bytes();
  });
  EXPECT_EQ(error_kind(ran.report.cause), ErrorKind::kRankFailed);
  EXPECT_THAT(ran.report.text(),
              AllOf(HasSubstr("Mismatch: group 0, seq 1: members issued different calls"), HasSubstr("reduce op"),
                    HasSubstr("max"), HasSubstr("shape"), HasSubstr("[4]"), HasSubstr("mpi_world_test.cc:")));
}

TEST(MpiWorldTest, MembersThatDifferAndTheOneThatIsMissingAreNamed) {
  if (processes_of_job() < 3) GTEST_SKIP() << "want 3 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() == 2) return Bytes();
    std::vector<float> x(rank.rank() == 1 ? 4 : 3);
    pg->all_reduce(x).wait();
    return Bytes();
  });
  EXPECT_THAT(ran.report.text(), AllOf(HasSubstr("Mismatch: group 0, seq 2: members issued different calls"),
                                       HasSubstr("\nmissing:\n  rank 2: returned\n"),
                                       HasSubstr("\nlast calls of rank 1:\n  barrier seq 1 (completed) [group 0, ")));
}

TEST(MpiWorldTest, CoalescingThatDoesNotEndIsNoted) {
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    std::vector<float> x(3);
    if (rank.rank() > 0) return Bytes();
    pg->start_coalescing();
    (void)pg->all_reduce(x);
    return Bytes();
  });
  EXPECT_THAT(ran.report.notes,
              ElementsAre(HasSubstr("rank 0, group 0: start_coalescing() without end_coalescing(): never issued: "
                                    "all_reduce [mpi_world_test.cc:")));
}

TEST(MpiWorldTest, SizesThatPairsExpectAreCompared) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> mine(rank.rank() == 1 ? 3 : 2);
    std::vector<std::vector<float>> all(static_cast<size_t>(pg->size()), std::vector<float>(2));
    all[static_cast<size_t>(rank.rank())].resize(mine.size());
    std::vector<TensorView> outputs(all.begin(), all.end());
    pg->all_gather(outputs, mine).wait();
    return Bytes();
  });
  EXPECT_THAT(ran.report.text(), HasSubstr("rank 1 sends 3 elements to rank 0, which expects 2"));
}

TEST(MpiWorldTest, ATimeoutNamesTheRanksThatDidNotCome) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  std::string error;
  const Ran ran = run_all([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(3, 1);
    if (rank.rank() == 1) {
      rank.store().get("told");  // comes late
    } else {
      error = error_of([&] { pg->all_reduce(x).wait(absl::Milliseconds(50)); });
      rank.store().add("failed", 1);
    }
    if (rank.rank() == 0) {
      while (rank.store().get("failed") != absl::StrCat(rank.world_size() - 1)) rank.yield();
      rank.store().set("told", "");
    }
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
  if (process_of_job() == 0) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce seq 1"), HasSubstr("waiting for rank 1"),
                             HasSubstr("timed out after 50ms")));
  }
}

TEST(MpiWorldTest, MonitoredBarrierNamesWhoDidNotCome) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().get("told");
      return Bytes();
    }
    const std::string error = error_of([&] { pg->monitored_barrier(absl::Milliseconds(30), /*wait_all_ranks=*/true); });
    EXPECT_THAT(error, rank.rank() == 0 ? HasSubstr("waiting for rank 1") : HasSubstr("rank 1"));
    if (rank.store().add("failed", 1) == rank.world_size() - 1) rank.store().set("told", "");
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, ARankThatHasEndedIsNotWaitedFor) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() == 1) return Bytes();
    std::vector<float> x(3);
    EXPECT_THAT(error_of([&] { pg->all_reduce(x).wait(); }),
                AllOf(StartsWith("Deadlock: "), HasSubstr("rank 1 has ended and will not come")));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
  const Ran messages = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() != 0) return Bytes();
    std::vector<float> x(3);
    EXPECT_THAT(error_of([&] { pg->recv(x, 1).wait(); }), HasSubstr("rank 1 has ended and will not send"));
    return Bytes();
  });
  EXPECT_TRUE(messages.report.ok()) << messages.report.text();
  const Ran sends = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() != 0) return Bytes();
    std::vector<float> x(3);
    EXPECT_THAT(error_of([&] { pg->send(x, 1, 4).wait(absl::Seconds(20)); }),
                HasSubstr("send to rank 1, tag 4: rank 1 has ended and will not receive"));
    return Bytes();
  });
  EXPECT_TRUE(sends.report.ok()) << sends.report.text();
}

// The answer of a rank that does not know the group meant nothing for a send that was done at once.
TEST(MpiWorldTest, ARankThatHasEndedIsNotWaitedForAfterAnEarlySend) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  for (const bool receives : {false, true}) {
    const RunReport report = run_on_first(2, {}, [receives](RankContext& rank) {
      if (rank.rank() == 1) return;
      auto pg = init_process_group(rank, {.eager_bytes = 64});
      auto other = init_process_group(rank, {.eager_bytes = 64});
      std::vector<float> x(2);
      (void)other->send(x, 1);
      // Meanwhile rank 1 is asked.
      EXPECT_THAT(error_of([&] { rank.store().wait({"never"}, absl::Milliseconds(100)); }), HasSubstr("timed out"));
      EXPECT_THAT(error_of([&] {
                    Work work = receives ? other->recv(x, 1) : other->barrier();
                    work.wait(absl::Seconds(20));
                  }),
                  AllOf(StartsWith("Deadlock: "), HasSubstr("rank 1 has ended and will not")));
    });
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// The group gets its communicator while processes end, or not at all.
TEST(MpiWorldTest, AnEarlySendOfALaterGroupHindersNoEnd) {
  if (processes_of_job() < 3) GTEST_SKIP() << "want 3 processes";
  for (int i = 0; i < 20; ++i) {
    const RunReport report = run_on_first(3, {}, [i](RankContext& rank) {
      if (rank.rank() == 1) {
        EXPECT_THAT(error_of([&] { rank.store().wait({"never"}, absl::Milliseconds(60 + i)); }),
                    HasSubstr("timed out"));
      }
      auto first = init_process_group(rank);
      auto pg = init_process_group(rank, {.eager_bytes = 64});
      std::vector<float> x(2);
      if (rank.rank() == 2) (void)pg->send(x, 0);
    });
    ASSERT_TRUE(report.ok()) << report.text();
  }
}

// Of those that end one after another, each is asked.
TEST(MpiWorldTest, NoneOfSeveralRanksThatHaveEndedIsWaitedFor) {
  if (processes_of_job() < 3) GTEST_SKIP() << "want 3 processes";
  const RunReport report = run_on_first(3, {}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    pg->barrier().wait();
    if (rank.rank() == 1) return;
    if (rank.rank() == 2) return rank.store().wait({"rank 0 has asked"});
    Work work = pg->barrier();
    // Meanwhile rank 1 is asked.
    EXPECT_THAT(error_of([&] { rank.store().wait({"never"}, absl::Milliseconds(100)); }), HasSubstr("timed out"));
    rank.store().set("rank 0 has asked", "");
    EXPECT_THAT(error_of([&] { work.wait(absl::Seconds(20)); }),
                AllOf(StartsWith("Deadlock: "), HasSubstr("ranks 1-2 have ended and will not come")));
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

TEST(MpiWorldTest, NoneOfSeveralRanksThatHaveEndedIsWaitedForToMakeAGroup) {
  if (processes_of_job() < 3) GTEST_SKIP() << "want 3 processes";
  std::optional<Work> kept;  // beyond the rank
  const RunReport report = run_on_first(3, {}, [&kept](RankContext& rank) {
    if (rank.rank() == 2) return rank.store().wait({"rank 0 has asked"});
    auto pg = init_process_group(rank, {.ranks = {0, 1, 2}});
    Work work = pg->barrier();
    if (rank.rank() == 1) {
      kept.emplace(std::move(work));
      return;
    }
    EXPECT_THAT(error_of([&] { rank.store().wait({"never"}, absl::Milliseconds(100)); }), HasSubstr("timed out"));
    rank.store().set("rank 0 has asked", "");
    EXPECT_THAT(error_of([&] { work.wait(absl::Seconds(20)); }),
                AllOf(StartsWith("Deadlock: "), HasSubstr("rank 2 has ended and will not come")));
  });
  EXPECT_TRUE(report.ok()) << report.text();
}

// A report is written under a lock: nobody is asked for it. A timeout asks.
TEST(MpiWorldTest, AReportTellsOfAWaitWithoutAskingOtherProcesses) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  std::string described;
  const RunReport report = run_on_first(2, {}, [&](RankContext& rank) {
    auto pg = init_process_group(rank);
    if (rank.rank() == 1) {
      rank.store().wait({"described"});
      pg->barrier().wait();
      return;
    }
    std::thread looks([&] {
      while (described.find("waits in barrier seq 1") == std::string::npos) described = rank.world().describe();
      rank.store().set("described", "");
    });
    pg->barrier().wait();
    looks.join();
  });
  EXPECT_TRUE(report.ok()) << report.text();
  if (process_of_job() == 0) {
    EXPECT_THAT(described, HasSubstr("rank 0 waits in barrier seq 1 [group 0, mpi_world_test.cc:"));
  }
}

TEST(MpiWorldTest, MessagesThatDifferAreAMismatch) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(rank.rank() == 0 ? 3 : 5);
    const auto call = [&] { rank.rank() == 0 ? pg->send(x, 1).wait() : pg->recv(x, 0).wait(); };
    if (rank.rank() < 2) {
      EXPECT_THAT(error_of(call),
                  AllOf(StartsWith("Mismatch: "), HasSubstr("sender and receiver issued different calls"),
                        HasSubstr("[3]"), HasSubstr("[5]")));
    }
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, AMessageThatNobodyReceivesIsNoted) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    std::vector<float> x(3);
    if (rank.rank() == 0) pg->send(x, 1, 5).wait();
    pg->barrier().wait();
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok());
  if (process_of_job() == 1) {
    EXPECT_THAT(ran.report.text(),
                HasSubstr("rank 0, group 0, send to rank 1, tag 5: was never received [group 0, mpi_world_test.cc:"));
  }
}

TEST(MpiWorldTest, ARunThatWentWellHasTheCallsOfAllRanks) {
  const Ran ran = run_all(
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        // Halves, whose ids are those of their processes.
        auto half = pg->split_group(rank.rank() % 2, 0);
        std::vector<float> x(2);
        half->all_reduce(x).wait();
        if (rank.rank() == 0) pg->all_reduce(x).wait();
        if (rank.rank() > 0) pg->all_reduce(x).wait();
        return Bytes();
      },
      {.keep_run = true});
  ASSERT_TRUE(ran.report.ok()) << ran.report.text();
  ASSERT_NE(ran.report.kept, nullptr);
  const RunData& data = *ran.report.kept;
  const auto ranks = static_cast<size_t>(processes_of_job());
  EXPECT_EQ(data.groups.size(), ranks == 1 ? 2U : 3U);
  // The two lines that make the same call, and those of the others.
  EXPECT_EQ(data.kinds.size(), ranks == 1 ? 3U : 5U);
  ASSERT_EQ(data.ranks.size(), ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    ASSERT_EQ(data.ranks[rank].calls.size(), 3U);
    EXPECT_EQ(data.ranks[rank].made, 3);
    const RunData::Call& call = data.ranks[rank].calls[1];
    const RunData::Kind& kind = data.kinds[call.kind];
    EXPECT_STREQ(kind.op, "all_reduce");
    EXPECT_EQ(data.groups[static_cast<size_t>(kind.group)].first, static_cast<int>(rank % 2));
    EXPECT_GE(call.ended_ns, call.issued_ns);
    EXPECT_EQ(call.state, FlightEntry::State::kCompleted);
  }
}

TEST(MpiWorldTest, WhatNoMessageOfAReportHoldsIsLeftOut) {
  const int64_t most = std::exchange(most_report_bytes, int64_t{1'500} * processes_of_job());
  const int last = ranks_of_job() - 1;
  const auto run = [last](int calls, int operations) {
    return run_all(
        [=](RankContext& rank) {
          auto pg = init_process_group(rank);
          std::vector<float> x(2);
          for (int i = 0; i < calls; ++i) pg->all_reduce(x).wait();
          for (int i = 0; i < operations && rank.rank() == last; ++i) rank.store().add(absl::StrCat("key ", i), i);
          return Bytes();
        },
        {.keep_run = true});
  };
  const Ran few = run(2, 3);
  const Ran calls = run(100, 3);
  const Ran operations = run(2, 60);
  most_report_bytes = most;
  for (const Ran* ran : {&few, &calls, &operations}) ASSERT_TRUE(ran->report.ok()) << ran->report.text();
  for (int r = 0; r <= last; ++r) {
    const auto of = [r](const Ran& ran) { return ran.report.kept->ranks[static_cast<size_t>(r)]; };
    EXPECT_EQ(of(few).calls.size(), 2U);
    EXPECT_EQ(of(calls).calls.size(), 0U);
    EXPECT_EQ(of(calls).made, 100);
    EXPECT_EQ(of(calls).store.made, r == last ? 3 : 0);
    EXPECT_EQ(of(operations).calls.size(), r == last ? 0U : 2U);
  }
  EXPECT_THAT(few.report.notes, testing::IsEmpty());
  EXPECT_THAT(
      operations.report.notes,
      ElementsAre(AllOf(StartsWith(absl::StrCat("rank ", last, ": its part of the run file is left out: have ")),
                        HasSubstr(" bytes, want at most 1500"))));
}

TEST(MpiWorldTest, CallsThatAreNotComparedDoTheSame) {
  std::vector<Bytes> results;
  for (const bool compare_calls : {true, false}) {
    Bytes mine;
    const RunReport report = run_mpi_world(
        {},
        [&mine](RankContext& rank) {
          auto pg = init_process_group(rank);
          for (const int64_t count : {int64_t{3}, int64_t{3000}}) {
            Filled x(DType::kFloat32, count, static_cast<uint64_t>(rank.rank()));
            pg->all_reduce(x.view).wait();
            std::vector<Filled> gathered;
            std::vector<TensorView> views;
            for (int i = 0; i < pg->size(); ++i) gathered.emplace_back(DType::kInt64, count + i, 0);
            for (Filled& one : gathered) views.push_back(one.view);
            Filled own(DType::kInt64, count + rank.rank(), static_cast<uint64_t>(rank.rank()));
            pg->all_gather(views, own.view).wait();
            mine += x.text();
            for (const Filled& one : gathered) mine += one.text();
          }
          auto half = pg->split_group(rank.rank() % 2, 0);
          std::vector<int> sum = {rank.rank()};
          half->all_reduce(sum).wait();
          mine += std::to_string(sum[0]);
        },
        compare_calls);
    ASSERT_TRUE(report.ok()) << report.text();
    results.push_back(mine);
  }
  EXPECT_TRUE(results[0] == results[1]);
}

TEST(MpiWorldTest, CallsThatAreNotComparedAreHeldToTheirOwnRules) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const RunReport report = run_mpi_world(
      {},
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x(3), y(4);
        EXPECT_THAT(error_of([&] { (void)pg->all_gather_into_tensor(y, x); }), HasSubstr("output has 4 elements"));
        // Members that differ in the operation: nobody says so.
        if (rank.rank() == 0) pg->all_reduce(x).wait();
        if (rank.rank() > 0) pg->barrier().wait();
        // Groups are made by what all say.
        EXPECT_THAT(error_of([&] {
                      (void)pg->new_group(rank.rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1});
                    }),
                    HasSubstr("members issued different calls"));
      },
      /*compare_calls=*/false);
  EXPECT_TRUE(report.ok()) << report.text();
  const RunReport broadcast = run_mpi_world(
      {},
      [](RankContext& rank) {
        auto pg = init_process_group(rank);
        std::vector<float> x(rank.rank() == 0 ? 1 : 10'000);
        const std::string error = error_of([&] { pg->broadcast(x, 0).wait(); });
        if (rank.rank() > 0) {
          EXPECT_THAT(error,
                      AllOf(StartsWith("CollectiveError: group 0, broadcast seq 1: other members give fewer bytes"),
                            HasSubstr("mpi_world_test.cc:")));
        }
      },
      /*compare_calls=*/false);
  EXPECT_TRUE(broadcast.ok()) << broadcast.text();
}

TEST(MpiWorldTest, AMessageUnderAnotherTagIsNotWaitedFor) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank, {.eager_bytes = 64});
    std::vector<float> x(3);
    if (rank.rank() == 1) pg->send(x, 0, 7).wait();
    pg->barrier().wait();
    if (rank.rank() != 0) return Bytes();
    EXPECT_THAT(error_of([&] { pg->recv(x, 1, 8).wait(); }),
                AllOf(StartsWith("Deadlock: "), HasSubstr("rank 1 has ended and will not send")));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, TheSenderOfALargeMessageOfAnotherSizeIsTold) {
  if (processes_of_job() < 2) GTEST_SKIP() << "want 2 processes";
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(rank.rank() == 0 ? 100'000 : 50'000, 1);
    const auto call = [&] { rank.rank() == 0 ? pg->send(x, 1).wait() : pg->recv(x, 0).wait(); };
    if (rank.rank() < 2) {
      EXPECT_THAT(error_of(call), AllOf(StartsWith("Mismatch: group 0, send from rank 0 to rank 1"),
                                        HasSubstr("sender and receiver issued different calls"),
                                        HasSubstr("last calls of rank 1:\n  recv seq 1 from rank 0 (scheduled)")));
    }
    EXPECT_EQ(x[0], 1);
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

TEST(MpiWorldTest, OptionsThatDoNotFitAreRefused) {
  const int n = processes_of_job();
  const auto refused = [](WorldOptions options) {
    return error_of([&] { (void)run_mpi_world(std::move(options), [](RankContext&) {}); });
  };
  EXPECT_THAT(refused({.world_size = n + 1}), HasSubstr(absl::StrCat("world_size is ", n + 1, " and the job has ", n,
                                                                     n == 1 ? " process" : " processes")));
  EXPECT_THAT(refused({.engine = EngineKind::kFibers}), HasSubstr("engine is fibers, want threads"));
  EXPECT_THAT(refused({.schedule = Schedule::seeded(3)}), HasSubstr("schedule is seeded:3, want free"));
  EXPECT_THAT(refused({.poison = true}), HasSubstr("poison is on, want it off"));
  EXPECT_THAT(refused({.late_completion = true}), HasSubstr("late_completion is on, want it off"));
  EXPECT_THAT(refused({.break_at = Schedule::BreakPoint{.rank = 0, .group = "0", .seq = 1}}),
              HasSubstr("break_at is set, want it unset"));
  const Ran inside = run_all([](RankContext& rank) {
    EXPECT_THAT(error_of([] { (void)run_mpi_world({}, [](RankContext&) {}); }),
                HasSubstr(absl::StrCat("called by rank ", rank.rank())));
    return Bytes();
  });
  EXPECT_TRUE(inside.report.ok());
}

TEST(MpiWorldTest, RefusesTensorsOfNoMemory) {
  const Ran ran = run_all([](RankContext& rank) {
    auto pg = init_process_group(rank);
    EXPECT_THAT(error_of([&] { (void)pg->all_reduce(TensorView::meta({3}, DType::kFloat32)); }),
                HasSubstr("want memory of this process; tensors without data need a fake group"));
    EXPECT_THAT(pg->text(), HasSubstr("mpi group 0: rank"));
    return Bytes();
  });
  EXPECT_TRUE(ran.report.ok()) << ran.report.text();
}

// Calls that differ in one field each, and what is alike whatever lies in memory.
TEST(LikenessTest, IsThatOfCallsThatAgree) {
  std::vector<float> a(6), b(6), c(5);
  std::vector<double> d(6);
  std::vector<CollectiveCall> calls;
  const auto add = [&calls](auto change) {
    CollectiveCall call;
    change(call);
    calls.push_back(std::move(call));
  };
  for (const OpType op : {OpType::kAllReduce, OpType::kBroadcast, OpType::kBarrier}) {
    for (const TensorView& tensor : {TensorView(a), TensorView(b), TensorView(c), TensorView(d)}) {
      for (const ReduceOp reduce : {ReduceOp(ReduceOp::kSum), ReduceOp(ReduceOp::kMax), ReduceOp::premul_sum(0.5),
                                    ReduceOp::premul_sum(0.25)}) {
        for (const int root : {0, 1}) {
          for (const char* label : {"", "epoch", "hcope"}) {
            add([&](CollectiveCall& call) {
              call.op = op;
              call.inputs = tensor;
              call.outputs = tensor;
              call.reduce_op = reduce;
              call.root = root;
              call.label = std::string(label);
            });
          }
        }
      }
    }
  }
  for (const CollectiveCall& x : calls) {
    const Group group(0, "0", 2);
    const std::unique_ptr<DescribedCall> again = call_described_by(described(x), group);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(likeness_of(again->call), likeness_of(x));
    for (const CollectiveCall& y : calls) {
      const bool same = x.op == y.op && op_row(x.op).same(x, y);
      ASSERT_EQ(likeness_of(x) == likeness_of(y), same) << op_name(x.op) << " and " << op_name(y.op);
    }
  }
  EXPECT_EQ(call_described_by("abc", Group(0, "0", 2)), nullptr);
}

TEST(LikenessTest, OrdersOfReductionDiffer) {
  using Order = ReduceOp::Order;
  std::vector<float> a(6);
  std::set<uint64_t> seen;
  for (const Order& order : {Order{}, Order{.kind = Order::Kind::kSeeded, .seed = 5},
                             Order{.kind = Order::Kind::kSeeded, .seed = 6}, Order{.accumulate_in_float = false}}) {
    CollectiveCall call;
    call.op = OpType::kAllReduce;
    call.inputs = call.outputs = TensorList(TensorView(a));
    call.order = order;
    seen.insert(likeness_of(call));
  }
  EXPECT_EQ(seen.size(), 4U);
}

}  // namespace
}  // namespace rankloom
