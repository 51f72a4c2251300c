// Fixed programs whose instructions are counted: seconds vary from run to run, these do not.
//   counted_programs NAME ROUNDS
//   counted_programs compiler      what compiled them
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rankloom/process_group.h"
#include "rankloom/world.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS  // nobody counts here
#endif

namespace rankloom {
namespace {

WorldOptions fibers(int ranks) { return {.world_size = ranks, .engine = EngineKind::kFibers}; }

// All checks on. A round: one call on each of 4 ranks.
void all_reduce(int rounds) {
  run_world(fibers(4), [&](RankContext& rank) {
    const auto pg = init_process_group(rank);
    std::vector<float> x(1, static_cast<float>(rank.rank()));
    for (int i = 0; i < rounds; ++i) pg->all_reduce(x, ReduceOp::kMax).wait();
  }).throw_if_failed();
}

// A round: a message there and one back.
void ping_pong(int rounds) {
  run_world(fibers(2), [&](RankContext& rank) {
    const auto pg = init_process_group(rank);
    std::vector<float> x(1, static_cast<float>(rank.rank()));
    const int peer = 1 - rank.rank();
    for (int i = 0; i < rounds; ++i) {
      if (rank.rank() == 0) pg->send(x, peer).wait();
      pg->recv(x, peer).wait();
      if (rank.rank() == 1) pg->send(x, peer).wait();
    }
  }).throw_if_failed();
}

// A round: a world of 4 ranks with a seed of its own, and 10 collectives in it.
void seeded_world(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    WorldOptions options = fibers(4);
    options.schedule = Schedule::seeded(static_cast<uint64_t>(i));
    run_world(options, [&](RankContext& rank) {
      const auto pg = init_process_group(rank);
      std::vector<float> x(1, static_cast<float>(rank.rank()));
      for (int call = 0; call < 10; ++call) pg->all_reduce(x, ReduceOp::kMax).wait();
    }).throw_if_failed();
  }
}

struct Program {
  const char* name;
  void (*run)(int rounds);
};
constexpr Program kPrograms[] = {{"all_reduce", all_reduce}, {"ping_pong", ping_pong}, {"seeded_world", seeded_world}};

int run(const char* name, int rounds) {
  for (const Program& program : kPrograms) {
    if (std::strcmp(program.name, name) != 0) continue;
    CALLGRIND_ZERO_STATS;  // before main() Highway measures its clock, for longer or shorter
    program.run(rounds);
    return 0;
  }
  std::fprintf(stderr, "no program is called %s\n", name);
  return 2;
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "compiler") == 0) return std::puts(__VERSION__) < 0;
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s NAME ROUNDS, or compiler\n", argv[0]);
    return 2;
  }
  return rankloom::run(argv[1], std::atoi(argv[2]));
}
