#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "gtest/gtest.h"
#include "rankloom/options.h"
#include "rankloom/world.h"
#include "sim/base/lock_order.h"

namespace rankloom::internal {

// Thrown by GTEST_SKIP on a rank, to unwind it. No std::exception on purpose: a rank program that catches those must
// still end. RankFailures::run_guarded() catches it.
struct RankSkipped {};

// A failed assertion or a skip: all failures at one place are one, by what they say.
struct RankFailure {
  // The failures that say the same.
  struct Said {
    std::string message;       // as GoogleTest has it, with the traces of the rank
    bool after_abort = false;  // reported only after the world was aborted: likely no cause, but a consequence
    // Poisoned runs: the calls that ranks had not waited for when they reported it.
    std::map<std::string, std::vector<int>> open = {};
    std::vector<int> ranks = {};  // ascending; empty: a thread that is no rank
    int times = 0;                // by all ranks together
    std::string text() const;
  };
  testing::TestPartResult::Type type = testing::TestPartResult::kNonFatalFailure;
  std::string file;  // empty: unknown
  int line = -1;
  std::vector<Said> said = {};  // by their lowest ranks

  bool failed() const { return type != testing::TestPartResult::kSkip; }
  bool after_abort() const {
    return std::all_of(said.begin(), said.end(), [](const Said& one) { return one.after_abort; });
  }
  // "ranks 0-2: <message>", once for each message; of many, the first few.
  std::string text() const;
};

// Keeps the failures of one world's ranks while it runs, instead of letting them reach GoogleTest one by one: a rank's
// own thread is not the test's, and N ranks that fail alike are one failure. While a RankFailuresScope lives, all
// threads of the process report there; a thread of no world is kept without a rank.
//   EXPECT_* on a rank: kept, the rank goes on.
//   ASSERT_*, FAIL: kept, and throws testing::AssertionException, so that the rank unwinds and the world is aborted. On
//     a helper nobody would catch that: the world is aborted and ASSERT_* returns. So it does in a destructor of a rank
//     that unwinds already.
//   GTEST_SKIP: kept, aborts the world and throws RankSkipped; what ranks report later is dropped.
// Thread-safety: record(), add_trace() and remove_trace() from any thread; the rest by the test's thread, before and
// after the run.
class RankFailures {
 public:
  explicit RankFailures(World* world) : world_(world) {}
  RankFailures(const RankFailures&) = delete;
  RankFailures& operator=(const RankFailures&) = delete;

  // The one that listens to this world; null: none. Shared: threads that outlive the run, and traces that a world
  // keeps, may have it last.
  static std::shared_ptr<RankFailures> of(const World& world);

  // Runs set-up, body and tear-down of a rank, each as GoogleTest does: the body only after a good set-up, the
  // tear-down always. The world is aborted before the tear-down of a failed rank, so that it may wait for no one.
  void run_guarded(RankContext& rank, absl::FunctionRef<void(RankContext&)> set_up_and_body,
                   absl::FunctionRef<void(RankContext&)> tear_down);

  // By the reporter. Throws as described above.
  void record(const testing::TestPartResult& result, RankContext* rank);

  void add_trace(const void* owner, int rank, std::string text);
  void remove_trace(const void* owner, int rank);

  // In the order in which their places came first.
  std::vector<RankFailure> folded() const;
  // A skip, and no failure, ended the run.
  bool skip_ended_run() const;

 private:
  struct Trace {
    const void* owner;
    std::string text;
  };

  World* const world_;
  mutable OrderedMutex mu_{LockLevel::kTestFailures};  // taken under GoogleTest's own
  std::vector<RankFailure> failures_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, size_t> index_
      ABSL_GUARDED_BY(mu_);  // place -> failures_; with the message: -> said
  absl::flat_hash_map<int, std::vector<Trace>> traces_ ABSL_GUARDED_BY(mu_);
  bool skip_ended_run_ ABSL_GUARDED_BY(mu_) = false;
};

// Listens to a world: before its run, until its failures are read.
class RankFailuresScope {
 public:
  explicit RankFailuresScope(World* world);
  ~RankFailuresScope();
  RankFailuresScope(const RankFailuresScope&) = delete;
  RankFailuresScope& operator=(const RankFailuresScope&) = delete;

  RankFailures* operator->() const { return failures_.get(); }

 private:
  const std::shared_ptr<RankFailures> failures_;
};

// Adds the defaults of tests to options that leave them unset.
void add_test_defaults(WorldOptions* options);

// How many runs and searches of the harness the running test has begun; set back by seeds(), whose rounds are alike.
// Thread-safety: all threads, once a test has begun its first.
std::atomic<int>& runs_of_this_test();
// The number of the run or search that begins: among this test's, or outside of tests next_run().
int next_run_of_test();

// Reports to GoogleTest from the calling thread.
void report_part(testing::TestPartResult::Type type, const std::string& file, int line, const std::string& text);

// Whether the exception is a failed assertion, which is reported where it was thrown.
bool is_assertion(const std::exception_ptr& exception);

// " --gtest_filter=..." of the running test, in place of the filter that `command` has. Empty stays empty.
std::string for_this_test(std::string command);

}  // namespace rankloom::internal
