// Writes run files of programs that are drawn, and beside each what the library itself says of the calls:
//   write_random_runs FOLDER FIRST COUNT    FIRST.rlrun, FIRST.txt and so on

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/explore/small_program.h"
#include "world/world_state.h"

namespace rankloom {
namespace {

void write(uint64_t seed, const std::string& folder) {
  after_run = [&](World& world, const RunReport& report) {
    const std::string path = absl::StrCat(folder, "/", seed);
    if (const absl::Status written = report.write_run(path + ".rlrun"); !written.ok()) {
      std::fprintf(stderr, "%s\n", written.ToString().c_str());
      std::exit(1);
    }
    std::ofstream text(path + ".txt");
    for (int rank = 0; rank < world.size(); ++rank) {
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
