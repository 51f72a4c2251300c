// Writes run files of programs that are drawn, and beside each what the library itself says of the calls:
//   write_random_runs FOLDER FIRST COUNT    FIRST.rlrun, FIRST.txt, FIRST.log and so on

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/base/printable.h"
#include "tests/explore/small_program.h"
#include "world/world_state.h"

namespace rankloom {
namespace {

using internal::OperationLog;
using internal::RankState;
using internal::StoreOperation;

std::string value_text(const StoreOperation::Value& value) {
  return absl::StrCat("'", internal::printable(value.shown), "' ", value.bytes);
}

// Steps of the rank's calls, and what it did with the store.
void write_log(RankState& rank, std::ofstream* out) {
  for (const internal::FlightEntry& entry : rank.recorder().entries())
    *out << rank.rank() << " call " << entry.issued_step << ' ' << entry.ended_step << '\n';
  for (const StoreOperation& op : rank.log()->store_operations().last) {
    *out << rank.rank() << ' ' << op.op << " '" << internal::printable(op.key) << "' " << op.keys << ' '
         << value_text(op.given) << ' ' << value_text(op.got) << ' ' << "scf"[static_cast<size_t>(op.state)] << ' '
         << op.begun_step << ' ' << op.ended_step << '\n';
  }
}

void write(uint64_t seed, const std::string& folder) {
  after_run = [&](World& world, const RunReport& report) {
    const std::string path = absl::StrCat(folder, "/", seed);
    if (const absl::Status written = report.write_run(path + ".rlrun"); !written.ok()) {
      std::fprintf(stderr, "%s\n", written.ToString().c_str());
      std::exit(1);
    }
    std::ofstream text(path + ".txt"), log(path + ".log");
    for (int rank = 0; rank < world.size(); ++rank) {
      write_log(state_of(world).context(rank), &log);
      for (const std::string& call :
           state_of(world).context(rank).recorder().last_calls(std::numeric_limits<int>::max()))
        text << rank << ' ' << call << '\n';
    }
  };
  run_program(draw_program(seed), Schedule::seeded(seed), {});
}

}  // namespace
}  // namespace rankloom

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t count = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) rankloom::write(seed, argv[1]);
}
