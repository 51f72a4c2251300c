// Worlds that live long, and many of them: memory, descriptors and threads of the process must stay where they are.
//   soak [--calls N] [--worlds N] [--at-once N] [--csv FILE]
// Prints a table for each part, with a line for every twentieth of it, or round, and ends with 1 if the last one shows
// more than the one in the middle. FILE, of the last flag, gets all of them.

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/rankloom.h"
#include "tests/campaign/compare.h"
#include "tests/campaign/number_flags.h"

namespace {

using namespace rankloom;

constexpr int kSamples = 20;
constexpr int kRanks = 4;
constexpr int kRounds = 40;
constexpr int kJobs = 125;  // random ones, which may fail: a twentieth of 10,000 worlds has each in four gears
// Pools of threads and of memory fill for long, by what happened to be used at once: a tenth, and so much.
constexpr long kSlackKb = 1'024;
constexpr int kSlackThreads = 4;
bool grew(long from_kb, long to_kb) { return to_kb > from_kb + from_kb / 10 + kSlackKb; }

struct Sample {
  int64_t done = 0;
  long resident_kb = 0;
  long allocated_kb = 0;  // and not freed
  int descriptors = 0;
  int threads = 0;
};

Sample sample(int64_t done) {
  Sample now{.done = done};
  std::ifstream statm("/proc/self/statm");
  long pages = 0;
  statm >> pages >> now.resident_kb;
  now.resident_kb *= sysconf(_SC_PAGESIZE) / 1024;
  now.allocated_kb = static_cast<long>(mallinfo2().uordblks / 1024);
  const auto entries = [](const char* path) {
    int count = -2;  // "." and ".."
    DIR* const folder = opendir(path);
    if (folder == nullptr) return 0;
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
  };
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  return now;
}

class Part {
 public:
  Part(const char* name, const char* unit, std::ofstream* csv) : name_(name), csv_(csv) {
    std::printf("%s\n%14s %12s %12s %12s %8s\n", name, unit, "resident KB", "allocated KB", "descriptors", "threads");
  }
  void add(const Sample& at) {
    samples_.push_back(at);
    std::printf("%14ld %12ld %12ld %12d %8d\n", at.done, at.resident_kb, at.allocated_kb, at.descriptors, at.threads);
    std::fflush(stdout);
    if (csv_->is_open()) {
      *csv_ << '"' << name_ << "\"," << at.done << "," << at.resident_kb << "," << at.allocated_kb << ","
            << at.descriptors << "," << at.threads << "\n";
    }
  }
  // Nothing grew in the second half.
  bool flat() const {
    const Sample& early = samples_[samples_.size() / 2];
    const Sample& last = samples_.back();
    const bool flat = !grew(early.resident_kb, last.resident_kb) && !grew(early.allocated_kb, last.allocated_kb) &&
                      last.descriptors <= early.descriptors && last.threads <= early.threads + kSlackThreads;
    if (!flat) std::printf("%s: NOT FLAT\n", name_.c_str());
    return flat;
  }

 private:
  const std::string name_;
  std::ofstream* const csv_;
  std::vector<Sample> samples_;
};

// Calls of one rank: collectives, messages, a store, a stream; groups and helpers now and then.
void call_on(RankContext& rank, int64_t calls, Part* part) {
  auto pg = init_process_group(rank, {.eager_bytes = 64});
  std::vector<float> x(16, 1.0f), all(16 * kRanks);
  std::vector<int64_t> y(8), z(8);
  const int next = (rank.rank() + 1) % kRanks, before = (rank.rank() + kRanks - 1) % kRanks;
  SimStream stream(rank);
  for (int64_t i = 0; i < calls / 8; ++i) {
    if (rank.rank() == 0 && i % std::max<int64_t>(1, calls / 8 / kSamples) == 0) part->add(sample(8 * i * kRanks));
    x.assign(x.size(), 1.0f);
    pg->all_reduce(x).wait();
    pg->all_gather_into_tensor(all, x).wait();
    pg->broadcast(x, static_cast<int>(i % kRanks)).wait();
    Work send = pg->send(y, next);
    pg->recv(z, before).wait();
    send.wait();
    rank.store().add("calls", 1);
    pg->barrier().wait();
    (void)pg->all_reduce(x, ReduceOp::kMax, {.stream = &stream});
    stream.synchronize();
    if (i % 1'000 == 0) {
      auto half = pg->split_group(rank.rank() % 2);
      half->all_reduce(x).wait();
      destroy_process_group(half);
      auto latch = std::make_shared<Latch>(1);
      rank.world().spawn_helper([latch] { latch->count_down(); });
      latch->wait();
    }
  }
  if (rank.rank() == 0) part->add(sample(calls * kRanks));
}

bool one_world(const char* name, EngineKind engine, const Schedule& schedule, int64_t calls, std::ofstream* csv) {
  Part part(name, "calls", csv);
  WorldOptions options{.world_size = kRanks, .engine = engine, .schedule = schedule, .trace_limit = 0};
  const RunReport report =
      run_world(std::move(options), [&](RankContext& rank) { call_on(rank, calls / kRanks, &part); });
  if (!report.ok()) std::printf("%s\n", report.text().c_str());
  return part.flat() && report.ok();
}

bool many_worlds(int64_t worlds, std::ofstream* csv) {
  Part part("worlds one after another, of random jobs", "worlds", csv);
  bool well = true;
  const Gear gears[] = {{EngineKind::kFibers, Schedule::fifo()},
                        {EngineKind::kFibers, Schedule::seeded(1)},
                        {EngineKind::kThreads, Schedule::seeded(1)},
                        {EngineKind::kThreads, Schedule::free()}};
  for (int64_t i = 0; i < worlds; ++i) {
    if (i % std::max<int64_t>(1, worlds / kSamples) == 0) part.add(sample(i));
    // The same jobs in each part of the table.
    const Job job = draw_job(static_cast<uint64_t>(1 + i / 4 % kJobs));
    const Plan plan(job);
    const auto wrong = wrong_with(plan, oracle(plan), run_job(plan, gears[i % 4]));
    if (wrong.has_value()) std::printf("%s\n", wrong->c_str());
    well = well && !wrong.has_value();
  }
  part.add(sample(worlds));
  return part.flat() && well;
}

// Worlds that live at the same time, half of them made and run by each of two threads, in rounds.
bool worlds_at_once(int64_t worlds, std::ofstream* csv) {
  Part part("worlds at once, by two threads", "worlds", csv);
  bool well[2] = {true, true};
  for (int round = 0; round < kRounds; ++round) {
    const auto half = [worlds](bool* went_well) {
      std::vector<std::unique_ptr<World>> own;
      for (int64_t i = 0; i < worlds / 2; ++i) {
        own.push_back(
            std::make_unique<World>(WorldOptions{.world_size = kRanks,
                                                 .engine = i % 2 == 0 ? EngineKind::kFibers : EngineKind::kThreads,
                                                 .schedule = Schedule::seeded(static_cast<uint64_t>(i))}));
      }
      for (const std::unique_ptr<World>& world : own) {
        const RunReport report = world->run([](RankContext& rank) {
          std::vector<int32_t> x = {rank.rank() + 1};
          init_process_group(rank)->all_reduce(x).wait();
          if (x[0] != kRanks * (kRanks + 1) / 2) throw std::runtime_error("the sum is wrong");
        });
        *went_well = *went_well && report.ok();
      }
    };
    std::thread other(half, &well[0]);
    half(&well[1]);
    other.join();
    part.add(sample(worlds * (round + 1)));
  }
  return part.flat() && well[0] && well[1];
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t calls = 10'000'000, worlds = 10'000, at_once = 1'000;
  std::ofstream csv;
  if (argc > 2 && std::string_view(argv[argc - 2]) == "--csv") {
    csv.open(argv[argc - 1]);
    if (!csv) return std::fprintf(stderr, "--csv %s: %s\n", argv[argc - 1], std::strerror(errno)), 2;
    csv << "part,done,resident_kb,allocated_kb,descriptors,threads\n";
    argc -= 2;
  }
  if (!read_number_flags(argc, argv, {{"--calls", &calls}, {"--worlds", &worlds}, {"--at-once", &at_once}})) return 2;
  const auto n = [](uint64_t number) { return static_cast<int64_t>(number); };
  bool flat = one_world("one world, fibers, fifo", EngineKind::kFibers, Schedule::fifo(), n(calls), &csv);
  flat &= one_world("one world, fibers, seeded", EngineKind::kFibers, Schedule::seeded(7), n(calls / 10), &csv);
  flat &= one_world("one world, threads, free", EngineKind::kThreads, Schedule::free(), n(calls / 50), &csv);
  flat &= many_worlds(n(worlds), &csv);
  flat &= worlds_at_once(n(at_once), &csv);
  std::printf(flat ? "flat\n" : "not flat\n");
  return flat ? 0 : 1;
}
