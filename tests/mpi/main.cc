// Runs the tests of this program in every process of a job: a failure in one fails the job. Process 0 tells of all,
// the others of failures only. A job without a test fails. `--worlds=N` fails a job in which fewer worlds have run:
// tests whose worlds have more ranks than the job has processes are left out. `--ranks-per-process=N`: so many ranks
// of a world are fibers of one process.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/mpi/mpi_world.h"
#include "gtest/gtest.h"
#include "tests/world/every_world.h"

namespace {

class OfOtherProcess final : public testing::EmptyTestEventListener {
 public:
  explicit OfOtherProcess(int process) : process_(process) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "process %d: %s:%d: %s\n", process_, result.file_name() != nullptr ? result.file_name() : "?",
                 result.line_number(), result.message());
  }

 private:
  const int process_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  rankloom::internal::need_mpi();
  if (const int process = rankloom::internal::process_of_job(); process > 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new OfOtherProcess(process));
  }
  const auto number = [&](std::string_view name, int without) {
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]).starts_with(name)) return std::atoi(argv[i] + name.size());
    }
    return without;
  };
  const int wanted = number("--worlds=", 0);
  rankloom::ranks_per_process = number("--ranks-per-process=", 1);
  bool failed = RUN_ALL_TESTS() != 0;
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "no test has run: --gtest_filter=%s names none\n", GTEST_FLAG_GET(filter).c_str());
    failed = true;
  }
  if (rankloom::worlds_run < wanted) {
    std::fprintf(stderr, "%d worlds of processes have run, want %d or more\n", rankloom::worlds_run, wanted);
    failed = true;
  }
  return rankloom::internal::any_process(failed) ? 1 : 0;
}
