// Writes run files of programs that are drawn, and beside each what the library itself says of the run:
//   write_random_runs FOLDER FIRST COUNT    FIRST.rlrun, FIRST.txt, FIRST.log, FIRST.end and so on

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/tensor.h"
#include "sim/base/printable.h"
#include "sim/base/text.h"
#include "tests/explore/small_program.h"
#include "world/run_data.h"
#include "world/world_state.h"

namespace rankloom {
namespace {

using internal::OperationLog;
using internal::RankState;
using internal::StoreOperation;
using internal::sv;

std::string value_text(const StoreOperation::Value& value) {
  return absl::StrCat("'", internal::printable(value.shown), "' ", value.bytes);
}

// "[2, 3] []": of so many shapes, or lists of splits.
std::string shapes_text(const internal::FlightShapes& shapes, size_t count, size_t* at) {
  std::string text;
  for (size_t i = 0; i < count; ++i)
    absl::StrAppend(&text, i == 0 ? "[" : " [", absl::StrJoin(shapes.take(at), ", "), "]");
  return text;
}

// "float32 root 1 in [2] out [4] [4] splits [1, 3] [3, 1] timeout 1000 members 0 2".
std::string facts_text(const internal::FlightEntry& entry) {
  size_t at = 0;
  std::string text = absl::StrCat(sv(dtype_name(static_cast<DType>(entry.dtype))), " root ",
                                  entry.is_p2p ? -1 : entry.root, " in ", shapes_text(entry.shapes, entry.inputs, &at));
  absl::StrAppend(&text, " out ", shapes_text(entry.shapes, entry.outputs, &at));
  absl::StrAppend(&text, " splits ", at < entry.shapes.size() ? shapes_text(entry.shapes, 2, &at) : "", " timeout ",
                  entry.timeout_ns, " members");
  for (int rank = 0; rank < entry.group->size(); ++rank) absl::StrAppend(&text, " ", entry.group->global_rank(rank));
  return text;
}

// Facts, times and steps of the rank's calls, and what it did with the store.
void write_log(RankState& rank, int64_t begin_ns, std::ofstream* out) {
  const auto since = [begin_ns](int64_t at_ns) { return at_ns < 0 ? -1 : at_ns - begin_ns; };
  const internal::FlightEntries entries = rank.recorder().entries();  // holds the groups
  for (const internal::FlightEntry& entry : entries) {
    *out << rank.rank() << " call " << entry.issued_step << ' ' << entry.ended_step << " at " << since(entry.created_ns)
         << ' ' << since(entry.started_ns) << ' ' << since(entry.completed_ns) << ' ' << facts_text(entry) << '\n';
  }
  for (const StoreOperation& op : rank.log()->store_operations().last) {
    *out << rank.rank() << ' ' << op.op << " '" << internal::printable(op.key) << "' " << op.keys << ' '
         << value_text(op.given) << ' ' << value_text(op.got) << ' ' << "scf"[static_cast<size_t>(op.state)] << ' '
         << op.begun_step << ' ' << op.ended_step << '\n';
  }
}

// How the run ended: a letter a rank, the circle of ranks, numbers, and last the text.
void write_end(const RunReport& report, const std::string& path) {
  std::ofstream out(path);
  for (const RunReport::Outcome& outcome : report.outcomes) out << "urfs"[static_cast<size_t>(outcome.state)];
  out << '\n' << report.first_failed << ' ' << report.steps << ' ' << report.trace.steps().size() << '\n';
  out << "cycle";
  for (const int rank : report.kept->stuck.cycle) out << ' ' << rank;
  out << '\n' << report.schedule << '\n' << internal::utf8_text(report.text()) << '\n';
}

void write(uint64_t seed, const std::string& folder) {
  after_run = [&](World& world, const RunReport& report) {
    const std::string path = absl::StrCat(folder, "/", seed);
    if (const absl::Status written = report.write_run(path + ".rlrun"); !written.ok()) {
      std::fprintf(stderr, "%s\n", written.ToString().c_str());
      std::exit(1);
    }
    write_end(report, path + ".end");
    std::ofstream text(path + ".txt"), log(path + ".log");
    for (int rank = 0; rank < world.size(); ++rank) {
      write_log(state_of(world).context(rank), state_of(world).start_ns(), &log);
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
