// A user's program for the sanitizers: user_sanitizers ENGINE SCHEDULE [BUG]. Ranks meet in all ways in which one may
// see what another wrote. BUG: use_after_free, freed_buffer, small_buffer, race.
#include <rankloom/rankloom.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace rankloom;

namespace {

constexpr int kRanks = 4;

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

struct Shared {
  Mutex mu{"mu"};
  CondVar changed{"changed"};
  Latch latch{kRanks, "latch"};
  Watched<int> watched{0};
  int locked = 0;
  bool go = false;
  std::vector<int> slots = std::vector<int>(kRanks);
};

void meet(RankContext& rank, Shared* shared) {
  const int me = rank.rank();
  const int next = (me + 1) % kRanks;
  const auto pg = init_process_group(rank);
  const auto evens = pg->new_group({0, 2});
  int round = 0;
  const auto written = [&] { shared->slots[static_cast<size_t>(me)] = ++round * 10 + me; };
  const auto seen = [&](int by, const char* what) {
    check(shared->slots[static_cast<size_t>(by)] == round * 10 + by, what);
    pg->barrier().wait();
  };
  written();
  pg->barrier().wait();
  seen(next, "barrier");
  written();
  shared->latch.arrive_and_wait();
  seen(next, "latch");
  written();
  rank.store().set(std::to_string(me), "here");
  (void)rank.store().get(std::to_string(next));
  seen(next, "store");
  written();
  std::vector<float> x = {static_cast<float>(me)};
  if (me % 2 == 0) {
    pg->send(x, next).wait();
    pg->barrier().wait();
  } else {
    pg->recv(x, me - 1).wait();
    check(x[0] == static_cast<float>(me - 1), "recv");
    seen(me - 1, "send");
  }
  shared->mu.lock();
  ++shared->locked;
  if (shared->locked == kRanks) {
    shared->go = true;
    shared->changed.notify_all();
  }
  shared->changed.wait(&shared->mu, [&] { return shared->go; });
  shared->mu.unlock();
  shared->watched.update([](int& n) { ++n; });

  std::vector<float> large(100'000, 1.0f + static_cast<float>(me));  // copied and reduced block by block
  Work reduced = pg->all_reduce(large);
  while (!reduced.is_completed()) rank.yield();
  check(large.front() == 10 && large.back() == 10, "all_reduce");
  if (evens != nullptr) evens->all_reduce(x).wait();
  try {
    if (me == 1) throw std::runtime_error("caught");
  } catch (const std::runtime_error&) {
    pg->barrier().wait();
  }
  if (me != 1) pg->barrier().wait();

  bool helped = false;
  Latch done(1, "helped");
  rank.world().spawn_helper([&] {
    helped = true;
    rank.store().add("helped", me);
    done.count_down();
  });
  done.wait();
  check(helped, "helper");
  destroy_process_group(pg);
}

void use_after_free(RankContext& rank, std::vector<int*>* freed) {
  const auto pg = init_process_group(rank);
  if (rank.rank() == 0) {
    freed->push_back(new int[4]());
    delete[] freed->back();
  }
  pg->barrier().wait();
  if (rank.rank() == 3 && freed->back()[1] != 0) std::puts("not zero");  // the use
  pg->barrier().wait();
}

// One rank frees the buffer of a call that is on its way.
void freed_buffer(RankContext& rank) {
  const auto pg = init_process_group(rank);
  Work work;
  {
    std::vector<float> x(8, 1.0f);  // the buffer
    if (rank.rank() == 3) rank.store().get("freed");
    work = pg->all_reduce(x);
    if (rank.rank() == 0) x = std::vector<float>();
    if (rank.rank() == 0) rank.store().set("freed", "");
    if (rank.rank() != 0) work.wait();
  }
  work.wait();
}

// One rank says that its buffer is larger than it is.
void small_buffer(RankContext& rank) {
  const auto pg = init_process_group(rank);
  std::vector<float> x(rank.rank() == 2 ? 8 : 12);
  const TensorView view(x.data(), DType::kFloat32, {12});
  if (rank.rank() % 2 == 0) pg->send(view, rank.rank() + 1).wait();  // the call
  if (rank.rank() % 2 == 1) pg->recv(view, rank.rank() - 1).wait();
}

void race(RankContext& rank, std::atomic<int>* here, int* count) {
  here->fetch_add(1, std::memory_order_relaxed);
  while (here->load(std::memory_order_relaxed) < kRanks) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) ++*count;  // the race
  rank.store().add("done", 1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string engine = argv[1], schedule = argv[2], bug = argc > 3 ? argv[3] : "";
  WorldOptions options{.world_size = kRanks,
                       .engine = engine == "fibers" ? EngineKind::kFibers : EngineKind::kThreads,
                       .schedule = *Schedule::parse(schedule)};
  for (int run = 0; run < 2; ++run) {
    Shared shared;
    std::vector<int*> freed;
    std::atomic<int> here = 0;
    int count = 0;
    options.stack_bytes = static_cast<size_t>(128 + 64 * run) << 10;  // fibers end, too
    const RunReport report = run_world(options, [&](RankContext& rank) {
      if (bug == "use_after_free") return use_after_free(rank, &freed);
      if (bug == "freed_buffer") return freed_buffer(rank);
      if (bug == "small_buffer") return small_buffer(rank);
      if (bug == "race") return race(rank, &here, &count);
      meet(rank, &shared);
    });
    if (!report.ok()) {
      std::fprintf(stderr, "%s\n", report.text().c_str());
      return 1;
    }
  }
  // A world that fails unwinds ranks in the middle of their calls.
  const RunReport failed = run_world(options, [](RankContext& rank) {
    const auto pg = init_process_group(rank);
    if (rank.rank() == 2) throw std::runtime_error("planted");
    pg->barrier().wait();
  });
  if (failed.first_failed != 2) return 1;
  std::puts("done");
  return 0;
}
