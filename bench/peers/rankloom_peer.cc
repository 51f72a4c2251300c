// rankloom's side of the comparison, all checks on.
//   rankloom_peer ENGINE OP RANKS COUNT SECONDS      ENGINE: fibers, threads, or fiber-floor, thread-floor:
//   what no library on these cores can beat with one of them

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/floors.h"
#include "bench/peers/peer_bench.h"
#include "rankloom/rankloom.h"
#include "sim/base/parker.h"

namespace rankloom {

using namespace internal;

namespace {

// One operation of this rank, to its end.
std::function<void()> operation(const peers::Question& question, ProcessGroup& pg, std::vector<float>& x,
                                std::vector<float>& y) {
  const auto part = static_cast<size_t>(question.part());
  const std::span<float> x_part(x.data(), std::min(part, x.size()));
  const std::span<float> y_part(y.data(), std::min(part, y.size()));
  if (question.op == "all_reduce") return [&] { pg.all_reduce(x, ReduceOp::kMax).wait(); };
  if (question.op == "all_gather") return [&pg, &y, x_part] { pg.all_gather_into_tensor(y, x_part).wait(); };
  if (question.op == "reduce_scatter") {
    return [&pg, &x, y_part] { pg.reduce_scatter_tensor(y_part, x, ReduceOp::kMax).wait(); };
  }
  if (question.op == "all_to_all") return [&] { pg.all_to_all_single(y, x).wait(); };
  if (question.op == "broadcast") return [&] { pg.broadcast(x, 0).wait(); };
  if (question.op == "send_recv") {
    return [&] {
      Work sent = pg.send(x, (pg.rank() + 1) % pg.size());
      pg.recv(y, (pg.rank() + pg.size() - 1) % pg.size()).wait();
      sent.wait();
    };
  }
  if (question.op == "barrier") return [&] { pg.barrier().wait(); };
  return nullptr;
}

// Worlds, one after another, in which each rank joins a group and meets the others once.
void time_worlds(EngineKind engine, const peers::Question& question) {
  const auto world = [&] {
    run_world({.world_size = question.ranks, .engine = engine}, [](RankContext& rank) {
      init_process_group(rank)->barrier().wait();
    }).throw_if_failed();
  };
  int64_t begin = monotonic_ns();
  for (int i = 0; i < peers::kWarmUp; ++i) world();
  const int64_t batch = peers::batch_size(question.seconds, static_cast<double>(monotonic_ns() - begin));
  std::vector<double> batches_ns;
  for (int b = 0; b < peers::kBatches; ++b) {
    begin = monotonic_ns();
    for (int64_t i = 0; i < batch; ++i) world();
    batches_ns.push_back(static_cast<double>(monotonic_ns() - begin));
  }
  peers::answer(batches_ns, batch);
}

// The bytes that an operation must read and write, at the speed at which all cores copy; and the cheapest way for all
// ranks to have had their turn: one switch to each fiber, or one meeting of threads.
void answer_floor(EngineKind engine, const peers::Question& question) {
  const auto bytes = static_cast<size_t>(question.elements()) * sizeof(float);
  const auto ranks = static_cast<size_t>(question.ranks);
  size_t copied = ranks * bytes;  // all_reduce in place, all_gather, all_to_all, send_recv
  if (question.op == "reduce_scatter") copied = (ranks * bytes + bytes) / 2;
  if (question.op == "broadcast") copied = (ranks - 1) * bytes;
  if (question.op == "barrier" || question.op == "world") copied = 0;
  const double turns_ns = engine == EngineKind::kThreads
                              ? meeting_ns(question.ranks)
                              : question.ranks * park_unpark_ns(EngineKind::kFibers, question.ranks);
  peers::answer({copy_ns(copied) + turns_ns}, 1);
}

int run(EngineKind engine, const peers::Question& question) {
  if (question.op == "world") {
    time_worlds(engine, question);
    return 0;
  }
  bool known = true;
  run_world({.world_size = question.ranks, .engine = engine}, [&](RankContext& rank) {
    auto pg = init_process_group(rank, {.rooted = GroupOptions::Rooted::kEach});  // as MPI has it
    std::vector<float> x(static_cast<size_t>(question.elements()), 1.0F);
    std::vector<float> y(x.size(), 1.0F);
    const std::function<void()> call = operation(question, *pg, x, y);
    if (call == nullptr) {
      known = false;
      return;
    }
    pg->barrier().wait();
    int64_t begin = monotonic_ns();
    for (int i = 0; i < peers::kWarmUp; ++i) call();
    std::vector<int64_t> batch = {peers::batch_size(question.seconds, static_cast<double>(monotonic_ns() - begin))};
    pg->broadcast(batch, 0).wait();
    std::vector<double> batches_ns;
    for (int b = 0; b < peers::kBatches; ++b) {
      pg->barrier().wait();
      begin = monotonic_ns();
      for (int64_t i = 0; i < batch[0]; ++i) call();
      batches_ns.push_back(static_cast<double>(monotonic_ns() - begin));
    }
    if (rank.rank() == 0) peers::answer(batches_ns, batch[0]);
  }).throw_if_failed();
  return known ? 0 : 2;
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  using rankloom::EngineKind;
  if (argc != 6) return 2;
  const std::string_view engine = argv[1];
  const rankloom::peers::Question question{argv[2], std::atoi(argv[3]), std::atoll(argv[4]), std::atof(argv[5])};
  const EngineKind kind = engine.starts_with("thread") ? EngineKind::kThreads : EngineKind::kFibers;
  if (engine.ends_with("-floor")) {
    rankloom::answer_floor(kind, question);
    return 0;
  }
  return rankloom::run(kind, question);
}
