// Runs small jobs, some of which go wrong, and writes their flight records: FOLDER/CASE/fr_0, ... as pickles and
// FOLDER/CASE_json/fr_0.json, ... as JSON.
//     flight_dump_cases FOLDER

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom {
namespace {

void good(RankContext& rank) {
  auto pg = init_process_group(rank);
  const int r = rank.rank();
  const auto n = static_cast<size_t>(pg->size());
  std::vector<float> x(6, static_cast<float>(r));
  std::vector<float> all(6 * n);
  std::vector<std::vector<float>> parts(n, std::vector<float>(6));
  const std::vector<TensorView> views(parts.begin(), parts.end());
  std::vector<Half> halves(2);
  pg->all_reduce(TensorView(x.data(), {2, 3})).wait();
  pg->broadcast(x, 1).wait();
  pg->reduce(halves, 0).wait();
  pg->all_gather(views, x).wait();
  pg->all_gather_into_tensor(all, x).wait();
  pg->gather(r == 2 ? views : std::vector<TensorView>(), x, 2).wait();
  pg->scatter(x, r == 2 ? views : std::vector<TensorView>(), 2).wait();
  pg->reduce_scatter(x, views).wait();
  pg->reduce_scatter_tensor(x, all).wait();
  std::vector<std::vector<float>> received(n, std::vector<float>(6));
  pg->all_to_all({received.begin(), received.end()}, views).wait();
  // Of different sizes: a member sends i + 1 elements to member i.
  std::vector<int64_t> out_splits(n, r + 1);
  std::vector<int64_t> in_splits;
  for (size_t i = 0; i < n; ++i) in_splits.push_back(static_cast<int64_t>(i + 1));
  std::vector<float> in(n * (n + 1) / 2), out(n * static_cast<size_t>(r + 1));
  pg->all_to_all_single(out, in, out_splits, in_splits).wait();
  pg->all_reduce_coalesced({parts[0], parts[1]}).wait();
  pg->barrier({}, "here").wait();
  pg->monitored_barrier();

  auto even = pg->new_group({0, 2}, {.description = "even"});
  if (even != nullptr) {
    std::vector<int64_t> y(1);
    even->all_reduce(y).wait();
    // As in NCCL's numbering, a send and a collective may have one number.
    if (r == 0) {
      even->send(y, 1).wait();
    } else {
      even->recv(y, 0).wait();
    }
    even->all_reduce(y).wait();
  }
  const DeviceMesh mesh = init_device_mesh(pg, {2, 2}, {"dp", "tp"});
  std::vector<int64_t> z(3);
  mesh.get_group("dp")->all_reduce(z).wait();
}

// Apart from the above: PyTorch's analyzer says nonsense of it if the ranks' files do not lie in the right order in
// their folder.
void coalesced(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(4), y(1);
  pg->start_coalescing();
  (void)pg->all_reduce(x);
  (void)pg->broadcast(y, 1);
  pg->end_coalescing().wait();
}

// Rank 2 leaves before the second all_reduce.
void missing(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(4);
  pg->all_reduce(x).wait();
  if (rank.rank() == 2) return;
  pg->all_reduce(x).wait();
}

// Rank 1 broadcasts where the others reduce.
void mismatch(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(4);
  pg->all_reduce(x).wait();
  if (rank.rank() == 1) {
    pg->broadcast(x, 0).wait();
  } else {
    pg->all_reduce(x).wait();
  }
}

// Rank 3 gives another number of elements.
void sizes(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(rank.rank() == 3 ? 5 : 4);
  pg->all_reduce(x).wait();
}

// Names that other formats have a use for, or cannot hold.
void hostile(RankContext& rank) {
  auto pg = init_process_group(rank);
  std::vector<float> x(1);
  for (const char* name : {"a", "a", "a#2", "\"]}(\xff\n"}) {
    auto group = pg->new_group(GroupOptions{.name = name, .description = "x\xff"});
    group->all_reduce(x, ReduceOp::kSum, {}, {"tr\xffin.py", 7}).wait();
  }
}

void run_case(const std::string& folder, const std::string& name, absl::FunctionRef<void(RankContext&)> program,
              const std::string& backend = "gloo") {
  World world({.world_size = 4, .engine = EngineKind::kFibers});
  (void)world.run(program);
  std::filesystem::create_directories(folder + "/" + name);
  std::filesystem::create_directories(folder + "/" + name + "_json");
  traces::dump_flight_records(world, folder + "/" + name + "/fr_", {.backend = backend});
  traces::dump_flight_records(world, folder + "/" + name + "_json/fr_",
                              {.format = traces::FlightDumpOptions::Format::kJson, .backend = backend});
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "flight_dump_cases FOLDER\n");
    return 2;
  }
  rankloom::run_case(argv[1], "good", &rankloom::good);
  rankloom::run_case(argv[1], "coalesced", &rankloom::coalesced);
  rankloom::run_case(argv[1], "missing", &rankloom::missing);
  rankloom::run_case(argv[1], "mismatch", &rankloom::mismatch);
  rankloom::run_case(argv[1], "sizes", &rankloom::sizes);
  rankloom::run_case(argv[1], "hostile", &rankloom::hostile, "gl\xffoo");
}
