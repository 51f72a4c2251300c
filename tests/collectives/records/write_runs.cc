// Writes run files for tests of the command `rankloom` and of its page, one of each kind of end:
//   write_runs FOLDER                  all of them
//   write_runs FOLDER big RANKS CALLS  big.rlrun, of so many calls of each rank; prints its seconds of processor time

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rankloom/device_mesh.h"
#include "rankloom/explore.h"
#include "rankloom/fake.h"
#include "rankloom/process_group.h"
#include "rankloom/records.h"
#include "rankloom/world.h"

namespace rankloom {
namespace {

using Program = absl::FunctionRef<void(RankContext&)>;

void write(const RunReport& report, const std::string& path) {
  if (const absl::Status written = report.write_run(path); !written.ok()) {
    std::fprintf(stderr, "%s\n", written.ToString().c_str());
    std::exit(1);
  }
}

WorldOptions fibers(int ranks, Schedule schedule = Schedule::seeded(7)) {
  return {.world_size = ranks, .engine = EngineKind::kFibers, .schedule = std::move(schedule)};
}

void reduce(ProcessGroup& pg, int calls) {
  std::vector<float> x(8, static_cast<float>(pg.rank()));
  for (int i = 0; i < calls; ++i) pg.all_reduce(x).wait();
}

// Ranks 0 to 2 wait for each other in a circle, rank 3 for rank 0; rank 4 has returned.
void stuck(RankContext& rank) {
  auto pg = init_process_group(rank);
  reduce(*pg, 3);
  std::vector<int64_t> x = {rank.rank(), 0};
  const int me = rank.rank();
  if (me == 1) pg->send(x, 3, 5).wait();
  if (me == 3) pg->recv(x, 1, 5).wait();
  rank.sleep_for(absl::Milliseconds(me + 1));
  if (me < 3) pg->recv(x, (me + 1) % 3).wait();
  if (me == 3) pg->recv(x, 0, 9).wait();
}

void different(RankContext& rank) {
  auto pg = init_process_group(rank);
  auto half = pg->split_group(rank.rank() / 2);
  reduce(*half, rank.rank() < 2 ? 2 : 1);
  reduce(*pg, 2);
  std::vector<float> x(rank.rank() == 2 ? 6 : 4, 1.0F);
  if (rank.rank() == 1) {
    pg->broadcast(x, 0).wait();
  } else {
    pg->all_reduce(x).wait();
  }
}

void throws(RankContext& rank, const std::string& what) {
  auto pg = init_process_group(rank);
  reduce(*pg, 2);
  if (rank.rank() == 2) {
    rank.sleep_for(absl::Milliseconds(1));  // the others come to their barrier
    throw std::runtime_error(what);
  }
  pg->barrier().wait();
}

// Rank 2 writes into what it still sends.
void changes_input(RankContext& rank) {
  auto pg = init_process_group(rank);
  reduce(*pg, 1);
  std::vector<float> in(2, static_cast<float>(rank.rank())), out(8);
  if (rank.rank() != 2) rank.store().wait({"changed"});
  Work work = pg->all_gather_into_tensor(out, in);
  if (rank.rank() == 2) {
    in[0] = 7;
    rank.store().set("changed", "");
  }
  work.wait();
}

// Rank i sends i + j + 1 elements to rank j, but rank 3, of which rank 1 wants one more.
void exchanges(RankContext& rank) {
  auto pg = init_process_group(rank);
  const int me = rank.rank(), n = pg->size();
  std::vector<std::vector<float>> sent, got;
  for (int peer = 0; peer < n; ++peer) {
    sent.emplace_back(static_cast<size_t>(me + peer + 1), 1.0F);
    got.emplace_back(static_cast<size_t>(me + peer + 1 + (me == 1 && peer == 3 ? 1 : 0)));
  }
  pg->all_to_all({got.begin(), got.end()}, {sent.begin(), sent.end()}).wait();
}

// Rank i sends i + j + 1 rows of two elements to rank j.
// Rank 2 wants one more of rank 0, and one less of rank 1.
void exchanges_splits(RankContext& rank) {
  auto pg = init_process_group(rank);
  const int me = rank.rank(), n = pg->size();
  std::vector<int64_t> send, want;
  int64_t rows_in = 0, rows_out = 0;
  for (int peer = 0; peer < n; ++peer) {
    send.push_back(me + peer + 1);
    want.push_back(me + peer + 1 + (me != 2 ? 0 : peer == 0 ? 1 : peer == 1 ? -1 : 0));
    rows_in += send.back();
    rows_out += want.back();
  }
  std::vector<float> in(static_cast<size_t>(2 * rows_in), 1.0F), out(static_cast<size_t>(2 * rows_out));
  pg->all_to_all_single(TensorView(out.data(), DType::kFloat32, {rows_out, 2}),
                        ConstTensorView(in.data(), DType::kFloat32, {rows_in, 2}), want, send)
      .wait();
}

// All but rank 3 wait for a key that rank 3 sets under another name; rank 3 waits for them in a barrier.
void waits_for_a_key(RankContext& rank) {
  auto pg = init_process_group(rank);
  reduce(*pg, 2);
  if (rank.rank() == 3) {
    rank.store().set("checkpoint/path", "/tmp/checkpoint");
  } else {
    (void)rank.store().get("checkpoint/file");
  }
  pg->barrier().wait();
}

// Rank 1 fails behind an operation on the store, not behind a call.
void fails_at_the_store(RankContext& rank) {
  auto pg = init_process_group(rank);
  Store& store = rank.store();
  reduce(*pg, 1);
  if (rank.rank() == 0) store.set("config", "{\"lr\": 0.1, \"note\": \"</script>\xff\"}" + std::string(1000, ' '));
  const std::string config = store.get("config");
  store.add("seen", 1);
  store.multi_set({"a/" + std::to_string(rank.rank()), "b/" + std::to_string(rank.rank())}, {"1", "22"});
  pg->barrier().wait();
  if (rank.rank() == 1 && store.get("a/1") == "1") throw std::runtime_error("no learning rate in the config");
  pg->barrier().wait();
}

// Ranks count themselves with get and set, where add is wanted.
void counts(RankContext& rank) {
  auto pg = init_process_group(rank);
  Store& store = rank.store();
  if (rank.rank() == 0) store.set("count", "0");
  pg->barrier().wait();
  store.set("count", std::to_string(std::stoi(store.get("count")) + 1));
  pg->barrier().wait();
  if (const std::string found = store.get("count"); found != std::to_string(pg->size()))
    throw std::runtime_error("counted " + found + " ranks");
}

// Steps of a training loop: a message around the ring, a gradient.
void step(RankContext& rank, ProcessGroup& pg, int odd_at, int steps) {
  std::vector<float> x(16, 1.0F);
  const int n = pg.size();
  for (int i = 0; i < steps; ++i) {
    Work sent = pg.send(x, (pg.rank() + 1) % n);
    std::vector<float> y(16);
    pg.recv(y, (pg.rank() + n - 1) % n).wait();
    sent.wait();
    rank.sleep_for(absl::Microseconds(10 * (rank.rank() + 1)));
    if (i == odd_at && rank.rank() == 1) {
      pg.barrier().wait();
    } else {
      pg.all_reduce(x).wait();
    }
  }
}

void write_explored(const std::string& folder) {
  // The counts that only files have are counted if failures leave files.
  setenv("RANKLOOM_REPORT", (folder + "/of_explore").c_str(), 1);
  const ExploreReport explored = explore({.world = fibers(2), .progress = [](const auto&) {}}, [](RankContext& rank) {
    auto pg = init_process_group(rank);
    reduce(*pg, 1);
    observe(rank, "place", rank.store().add("arrived", 1));
  });
  const ExploreReport counted =
      explore({.world = fibers(3), .max_time = absl::Hours(1), .min_ranks = 2, .progress = [](const auto&) {}}, counts);
  unsetenv("RANKLOOM_REPORT");
  write(explored.failure.value().report, folder + "/explored.rlrun");
  write(counted.failure.value().report, folder + "/counted.rlrun");
  const ExploreReport drawn =
      explore({.world = fibers(3), .strategies = {Strategy::random()}, .progress = [](const auto&) {}}, counts);
  write(drawn.failure.value().report, folder + "/drawn.rlrun");
}

void write_others(const std::string& folder) {
  WorldOptions poisoned = fibers(4);
  poisoned.poison = true;
  write(run_world(poisoned, changes_input), folder + "/changed_input.rlrun");
  write(run_world(fibers(4), exchanges), folder + "/exchange.rlrun");
  write(run_world(fibers(4), exchanges_splits), folder + "/splits.rlrun");
  WorldOptions kept = fibers(4);
  kept.keep_run = true;
  write(run_world(kept, waits_for_a_key), folder + "/key.rlrun");
  write(run_world(kept, fails_at_the_store), folder + "/store.rlrun");
  for (const auto& [name, by_rank_2] : {std::pair("adds", 2), std::pair("adds_otherwise", 7)}) {
    const auto adds = [more = by_rank_2](RankContext& rank) { rank.store().add("n", rank.rank() == 2 ? more : 1); };
    write(run_world(kept, adds), folder + "/" + name + ".rlrun");
  }

  // Many groups and ranks: halves, and pairs within.
  write(run_world(fibers(64),
                  [](RankContext& rank) {
                    auto pg = init_process_group(rank);
                    for (int i = 0; i < 20; ++i) {
                      rank.sleep_for(absl::Microseconds(rank.rank() % 7));
                      reduce(*pg, 1);
                    }
                    if (rank.rank() != 41) reduce(*pg, 1);
                  }),
        folder + "/many.rlrun");
}

// The first rank of each of two stages, of four ranks each. The numbers that tests expect are worked out by hand.
void write_fake(const std::string& folder) {
  const CostModel model{.link = links::Link{.latency = absl::Microseconds(1), .bytes_per_second = 1e9}};
  std::vector<std::shared_ptr<CallRecord>> records;
  for (const int rank : {0, 4}) {
    CallRecord& record = *records.emplace_back(std::make_shared<CallRecord>(model));
    const auto pg = make_fake_process_group({.rank = rank, .world_size = 8, .options = {.record = records.back()}});
    const DeviceMesh mesh = init_device_mesh(pg, {2, 4}, {"pp", "tp"});
    const auto &pp = mesh.get_group("pp"), &tp = mesh.get_group("tp");
    if (rank == 0) {
      record.compute(absl::Microseconds(10), "forward");
      Work reduced = tp->all_reduce(TensorView::meta({1000}, DType::kFloat32));
      record.compute(absl::Microseconds(5), "more");
      reduced.wait();
      pp->send(TensorView::meta({10, 25}, DType::kFloat32), 1, 3).wait();
    } else {
      pp->recv(TensorView::meta({10, 25}, DType::kFloat32), 0, 3).wait();
      record.compute(absl::Microseconds(20), "forward");
      std::vector<Work> open;
      for (int i = 0; i < 2; ++i) open.push_back(tp->all_reduce(TensorView::meta({2000}, DType::kFloat32)));
      for (Work& work : open) work.wait();
    }
  }
  traces::write_run(records, folder + "/fake.rlrun");
}

void all(const std::string& folder) {
  write(run_world(fibers(5), stuck), folder + "/deadlock.rlrun");
  write(run_world(fibers(4), different), folder + "/mismatch.rlrun");
  write(run_world(fibers(4), [](RankContext& rank) { throws(rank, "no batch left"); }), folder + "/exception.rlrun");
  write(run_world({.world_size = 4, .schedule = Schedule::free()}, [](RankContext& rank) { throws(rank, "free"); }),
        folder + "/free.rlrun");
  // An exception's text ends at a NUL, a note does not.
  const std::string hostile = "</script><script>document.title='owned'</script><!--\xff\x1b[31m\u2028 & \"'\\";
  write(run_world(fibers(4),
                  [&](RankContext& rank) {
                    if (rank.rank() == 0) rank.world().note(hostile + std::string(1, '\0') + "behind");
                    throws(rank, hostile);
                  }),
        folder + "/hostile.rlrun");

  WorldOptions kept = fibers(4);
  kept.keep_run = true;
  write(run_world(kept, [](RankContext& rank) { step(rank, *init_process_group(rank), -1, 5); }),
        folder + "/passes.rlrun");
  write(run_world(fibers(4), [](RankContext& rank) { step(rank, *init_process_group(rank), 3, 5); }),
        folder + "/fails.rlrun");
  write(run_world(fibers(4), [](RankContext& rank) { step(rank, *init_process_group(rank), -1, 1); }),
        folder + "/not_kept.rlrun");

  WorldOptions few = fibers(4);
  few.recorded_calls = 8;
  write(run_world(few, [](RankContext& rank) { step(rank, *init_process_group(rank), 9, 10); }),
        folder + "/dropped.rlrun");

  WorldOptions faulty = fibers(3);
  faulty.faults = {{.kind = Fault::Kind::kCrash, .rank = 1, .op = "all_reduce", .seq = 2}};
  write(run_world(faulty, [](RankContext& rank) { reduce(*init_process_group(rank), 4); }), folder + "/faults.rlrun");

  write_explored(folder);
  write_others(folder);
  write_fake(folder);
}

void big(const std::string& folder, int ranks, int calls) {
  WorldOptions options = fibers(ranks, Schedule::fifo());
  options.recorded_calls = calls;
  options.keep_run = true;
  const RunReport report = run_world(options, [calls](RankContext& rank) {
    auto pg = init_process_group(rank);
    std::vector<float> x(8, 1.0F);
    for (int i = 0; i < calls / 2; ++i) {
      rank.sleep_for(absl::Nanoseconds(1000 + 37 * ((rank.rank() * 31 + i) % 101)));
      pg->all_reduce(x).wait();
      pg->barrier().wait();
    }
  });
  const std::clock_t begin = std::clock();
  write(report, folder + "/big.rlrun");
  std::printf("%.3f\n", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  if (argc == 5) {
    rankloom::big(folder, std::atoi(argv[3]), std::atoi(argv[4]));
  } else {
    rankloom::all(folder);
  }
}
