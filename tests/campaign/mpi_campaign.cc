// Random jobs over MPI: a process a rank, each with run_mpi_world() for one job after another. The ranks' sights must
// be those of the oracle, which has no part of MPI in it; and each all_reduce of all ranks that MPI has an operation
// for is made by MPI_Allreduce() as well, for a comparison of the bits.
//   python3 tests/mpi/mpi_job.py ompi 4 build/tests/campaign/mpi_campaign_ompi [--jobs N] [--seed S]

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "rankloom/mpi.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/todays_seed.h"

namespace {

using namespace rankloom;

// MPI's own type and operation for a reduction; false: it has none.
bool has_own(const JobCall& call, MPI_Datatype* type, MPI_Op* op) {
  switch (call.element()) {
    case DType::kFloat32:
      *type = MPI_FLOAT;
      break;
    case DType::kFloat64:
      *type = MPI_DOUBLE;
      break;
    case DType::kInt8:
      *type = MPI_INT8_T;
      break;
    case DType::kUInt8:
      *type = MPI_UINT8_T;
      break;
    case DType::kInt16:
      *type = MPI_INT16_T;
      break;
    case DType::kInt32:
      *type = MPI_INT32_T;
      break;
    case DType::kInt64:
      *type = MPI_INT64_T;
      break;
    default:
      return false;
  }
  switch (static_cast<ReduceOp::Kind>(call.reduce)) {
    case ReduceOp::Kind::kSum:
      *op = MPI_SUM;
      return true;
    case ReduceOp::Kind::kProduct:
      *op = MPI_PROD;
      return true;
    case ReduceOp::Kind::kMin:
      *op = MPI_MIN;
      return true;
    case ReduceOp::Kind::kMax:
      *op = MPI_MAX;
      return true;
    case ReduceOp::Kind::kBand:
      *op = MPI_BAND;
      return true;
    case ReduceOp::Kind::kBor:
      *op = MPI_BOR;
      return true;
    case ReduceOp::Kind::kBxor:
      *op = MPI_BXOR;
      return true;
    default:
      return false;
  }
}

// The reductions of all ranks in a job, once more by MPI alone: how many, and how many had other bits.
struct Own {
  int64_t made = 0;
  std::map<std::string, int64_t> differ;  // [dtype, operation and kind of values]
};

void reduce_by_mpi(const Plan& plan, int rank, Own* own) {
  Given given;
  oracle(plan, &given);
  const Job& job = plan.job();
  for (size_t i = 0; i < job.acts.size(); ++i) {
    const Act& act = job.acts[i];
    const Partition* const where = plan.where(i);
    MPI_Datatype type = MPI_BYTE;
    MPI_Op op = MPI_SUM;
    const bool wanted = act.type() == ActKind::kCollective && act.call.type() == OpType::kAllReduce &&
                        where != nullptr && where->sets.size() == 1 &&
                        static_cast<int>(where->sets[0].size()) == job.world_size && where->sets[0][0] == 0 &&
                        act.call.order == 0;
    if (!wanted || !has_own(act.call, &type, &op)) continue;
    std::vector<std::vector<Bytes>> inputs;
    for (int r = 0; r < job.world_size; ++r) inputs.push_back(given.at({r, act.id})[0]);
    const std::string want = result_of(act.call, act.id, inputs, rank);
    Bytes got(want.size());
    MPI_Allreduce(inputs[static_cast<size_t>(rank)][0].data(), got.data(),
                  static_cast<int>(got.size() / dtype_size(act.call.element())), type, op, MPI_COMM_WORLD);
    ++own->made;
    if (std::string(got.begin(), got.end()) == want) continue;
    static constexpr const char* kValues[] = {"small", "any bits", "special"};
    ++own->differ[absl::StrCat(std::string(dtype_name(act.call.element())), " ", reduce_of(act.call).name(), ", ",
                               kValues[act.call.values], " values")];
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int size = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  uint64_t jobs = 200, seed = todays_seed();
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t number = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--jobs") jobs = number;
    if (std::string(argv[i]) == "--seed") seed = number;
  }
  MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);  // midnight may come between two processes
  int wrong = 0;
  size_t acts = 0;
  Own own;
  for (uint64_t i = 0; i < jobs; ++i) {
    const Job job = draw_job(seed + i, Palette::kMpi, size);
    const Plan plan(job);
    const JobLog expected = oracle(plan);
    JobRun run;
    run.log = expected;  // other ranks' sights are those of their processes
    RankLog& mine = run.log[static_cast<size_t>(rank)];
    mine = {};
    std::string drawn;
    run.report = run_mpi_world({.seed = static_cast<uint64_t>(job.seed)},
                               [&](RankContext& context) { run_rank(plan, context, &mine, &drawn); });
    acts += job.acts.size();
    if (const auto what = wrong_with(plan, expected, run)) {
      ++wrong;
      std::printf("seed %lu, rank %d: %s\n%s", seed + i, rank, what->c_str(), to_text(job).c_str());
    }
    reduce_by_mpi(plan, rank, &own);
  }
  int all_wrong = 0;
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("%lu jobs of %zu acts by %d processes, seeds from %lu on: %d wrong; %ld reductions by MPI itself\n",
                jobs, acts, size, seed, all_wrong, own.made);
    for (const auto& [what, times] : own.differ) std::printf("  MPI has other bits: %s: %ld\n", what.c_str(), times);
  }
  MPI_Finalize();
  return all_wrong == 0 ? 0 : 1;
}
