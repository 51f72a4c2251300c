#include "harness/rank_failures.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest-spi.h"
#include "harness/coloured_failures.h"
#include "sim/base/exception_text.h"
#include "sim/base/library_scope.h"
#include "sim/base/lock_order.h"
#include "sim/base/ranks_text.h"
#include "sim/base/task.h"
#include "sim/base/text.h"
#include "sim/engine/fiber_hook.h"
#include "sim/scheduler/stall_watch.h"
#include "world/poison_hint.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom::internal {
namespace {

// Replaces GoogleTest's process-wide reporter. The per-thread one would not do: helpers and threads of the caller
// report too.
class RankReporter final : public testing::ScopedFakeTestPartResultReporter {
 public:
  // The base class would append to an array; ReportTestPartResult() below takes its place.
  explicit RankReporter(InterceptMode mode = INTERCEPT_ALL_THREADS) : ScopedFakeTestPartResultReporter(mode, nullptr) {}

  void ReportTestPartResult(const testing::TestPartResult& result) override;
};

// GoogleTest has one reporter a process, but worlds may nest or run side by side: the reporter is there as long as any
// RankFailures is.
struct Listeners {
  OrderedMutex mu{
      LockLevel::kTestListeners};  // taken under GoogleTest's own mutex; GoogleTest's reporter mutex is taken under it
  std::vector<std::pair<const World*, std::shared_ptr<RankFailures>>> all ABSL_GUARDED_BY(mu);
  std::unique_ptr<RankReporter> reporter ABSL_GUARDED_BY(mu);

  static Listeners& instance() {
    static Listeners* listeners = new Listeners;
    return *listeners;
  }
};

// Called with GoogleTest's mutex held: must not report itself.
void RankReporter::ReportTestPartResult(const testing::TestPartResult& result) {
  const LibraryScope library;
  if (result.passed()) return;  // SUCCEED()
  RankContext* rank = RankContext::current();
  // A watch of the store runs as the rank that changed the key, and is the other one's.
  if (rank != nullptr && Task::current()->for_rank >= 0)
    rank = &state_of(rank->world()).context(Task::current()->for_rank);
  // Held: the run of a thread that reports may end meanwhile.
  std::shared_ptr<RankFailures> failures = rank != nullptr ? RankFailures::of(rank->world()) : nullptr;
  if (failures == nullptr) {
    rank = nullptr;
    Listeners& listeners = Listeners::instance();
    OrderedMutexLock lock(&listeners.mu);
    if (listeners.all.empty()) return;
    failures = listeners.all.back().second;
  }
  failures->record(result, rank);
}

// GoogleTest also keeps a reporter per thread, as a stack of scopes (ASSERT_NO_FATAL_FAILURE, EXPECT_FATAL_FAILURE,
// ...). Fibers share their thread's, and their scopes do not nest: one that ends would put back another fiber's, long
// gone. So each fiber of a rank has its own, put aside at every switch. GoogleTest can only set one for a scope, so
// "put aside" is a scope opened when the fiber stops; when the fiber goes on it is closed, which puts back what the
// fiber had.
class FiberReporters {
 public:
  static FiberReporters& of_this_thread() {
    static thread_local FiberReporters* reporters = new FiberReporters;  // of a pool thread: until the process ends
    return *reporters;
  }

  static void begin(const Task* task) {
    static constexpr FiberHook kHook = {.leave = &leave, .arrive = &arrive};
    fiber_hook.store(&kHook, std::memory_order_release);
    FiberReporters& self = of_this_thread();
    if (self.fibers_.empty()) self.thread_ = reporter();
    self.fibers_[task].base = reporter();
  }
  static void end(const Task* task) {
    FiberReporters& self = of_this_thread();
    self.fibers_.erase(task);
    self.between_.reset();
    // The task that runs next may not know of all this (a helper): it must not find the reporter of a fiber that is
    // gone.
    if (self.fibers_.empty()) {
      self.thread_.reset();
    } else {
      self.between_ = reporter();
    }
  }

 private:
  struct Fiber {
    std::unique_ptr<RankReporter> base;   // below all scopes of the fiber
    std::unique_ptr<RankReporter> aside;  // while the fiber is stopped
  };

  static std::unique_ptr<RankReporter> reporter() {
    return std::make_unique<RankReporter>(RankReporter::INTERCEPT_ONLY_CURRENT_THREAD);
  }
  static void leave(Task& task) {
    FiberReporters& self = of_this_thread();
    if (const auto it = self.fibers_.find(&task); it != self.fibers_.end()) it->second.aside = reporter();
  }
  static void arrive(Task& task) {
    FiberReporters& self = of_this_thread();
    if (const auto it = self.fibers_.find(&task); it != self.fibers_.end()) it->second.aside.reset();
  }

  absl::flat_hash_map<const Task*, Fiber> fibers_;
  std::unique_ptr<RankReporter> thread_;   // puts back what the thread had, when the last fiber has ended
  std::unique_ptr<RankReporter> between_;  // after the end of a fiber
};

}  // namespace

std::string RankFailure::Said::text() const {
  if (ranks.empty()) return message;
  std::string who = ranks_text(ranks);
  if (after_abort) absl::StrAppend(&who, ", after the world was aborted");
  if (times > static_cast<int>(ranks.size())) absl::StrAppend(&who, " (", times, " times)");
  std::vector<std::pair<std::string, std::string>> had;
  for (const auto& [calls, by] : open) had.emplace_back(ranks_text(by), calls);
  return absl::StrCat(who, ": ", message, open_outputs_hint(had));
}

std::string RankFailure::text() const {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, said.size()); ++i)
    absl::StrAppend(&text, text.empty() ? "" : "\n", said[i].text());
  if (said.size() <= kShown) return text;
  std::vector<int> others;
  for (size_t i = kShown; i < said.size(); ++i) others.insert(others.end(), said[i].ranks.begin(), said[i].ranks.end());
  std::sort(others.begin(), others.end());
  others.erase(std::unique(others.begin(), others.end()), others.end());
  return absl::StrCat(text, "\n", said.size() - kShown, " more with other values",
                      others.empty() ? "" : absl::StrCat(", of ", ranks_text(others)));
}

RankFailuresScope::RankFailuresScope(World* world) : failures_(std::make_shared<RankFailures>(world)) {
  Listeners& listeners = Listeners::instance();
  OrderedMutexLock lock(&listeners.mu);
  listeners.all.emplace_back(world, failures_);
  if (listeners.reporter == nullptr) listeners.reporter = std::make_unique<RankReporter>();
}

RankFailuresScope::~RankFailuresScope() {
  Listeners& listeners = Listeners::instance();
  OrderedMutexLock lock(&listeners.mu);
  std::erase_if(listeners.all, [this](const auto& entry) { return entry.second == failures_; });
  if (listeners.all.empty()) listeners.reporter.reset();
}

std::shared_ptr<RankFailures> RankFailures::of(const World& world) {
  Listeners& listeners = Listeners::instance();
  OrderedMutexLock lock(&listeners.mu);
  for (const auto& [listened, failures] : listeners.all) {
    if (listened == &world) return failures;
  }
  return nullptr;
}

void RankFailures::run_guarded(RankContext& rank, absl::FunctionRef<void(RankContext&)> set_up_and_body,
                               absl::FunctionRef<void(RankContext&)> tear_down) {
  const Task* const fiber = world_->options().engine == EngineKind::kFibers ? Task::current() : nullptr;
  if (fiber != nullptr) FiberReporters::begin(fiber);
  const absl::Cleanup end_fiber = [fiber] {
    if (fiber != nullptr) FiberReporters::end(fiber);
  };
  std::exception_ptr failure;
  try {
    set_up_and_body(rank);
  } catch (const RankSkipped&) {  // the world is aborted already
  } catch (...) {
    failure = handled_exception();
    world_->rank_failed(rank.rank(), failure);
  }
  try {
    tear_down(rank);
  } catch (const RankSkipped&) {  // as above
  } catch (...) {
    // After a failure the first one counts. A tear-down that ran into the end of a skipped run has done nothing wrong.
    if (failure == nullptr && !skip_ended_run()) throw;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void RankFailures::record(const testing::TestPartResult& result, RankContext* rank) {
  const bool aborted = rank != nullptr && world_->scheduler().aborted();
  std::string message = result.message();
  const std::string open = rank != nullptr && !result.skipped() ? state_of(*rank).open_calls_text() : "";
  if (rank != nullptr && !result.skipped() && open.empty() && state_of(*world_).poison())
    absl::StrAppend(&message, poison_hint(message));
  {
    OrderedMutexLock lock(&mu_);
    if (skip_ended_run_ && !result.skipped()) return;
    if (rank != nullptr) {
      if (const auto traces = traces_.find(rank->rank()); traces != traces_.end()) {
        absl::StrAppend(&message, "\nRank trace:");
        for (auto trace = traces->second.rbegin(); trace != traces->second.rend(); ++trace) {
          absl::StrAppend(&message, "\n", trace->text);
        }
      }
    }
    const char* const file = result.file_name() != nullptr ? result.file_name() : "";
    const std::string key = absl::StrCat(result.type(), " ", rank != nullptr, " ", result.line_number(), " ", file);
    const auto [place, new_place] = index_.try_emplace(key, failures_.size());
    if (new_place) failures_.push_back({.type = result.type(), .file = file, .line = result.line_number()});
    RankFailure& failure = failures_[place->second];
    const auto [at, new_text] = index_.try_emplace(absl::StrCat(key, "\n", message), failure.said.size());
    if (new_text) failure.said.push_back({.message = message, .after_abort = true});
    RankFailure::Said* const said = &failure.said[at->second];
    if (!aborted || result.skipped()) said->after_abort = false;
    ++said->times;
    if (rank != nullptr) said->ranks.push_back(rank->rank());
    if (!open.empty()) said->open[open].push_back(rank->rank());
    if (result.skipped() && !aborted) skip_ended_run_ = true;
  }
  if (rank == nullptr || result.nonfatally_failed()) return;
  if (std::uncaught_exceptions() > 0) return;  // in a destructor: the rank unwinds already, for its own reason
  // Only a rank's main task can unwind: a helper and a late completion have nobody to catch it.
  const bool may_throw = Task::current()->info.kind == TaskKind::kRank;
  if (result.skipped()) {
    state_of(*world_).abort(absl::StrCat("rank ", rank->rank(), " skipped the test: ", result.message()));
    if (may_throw) throw RankSkipped();
    return;
  }
  // --gtest_break_on_failure stops in the debugger right after this; an exception would pass it by.
  if (GTEST_FLAG_GET(break_on_failure)) return;
  const testing::AssertionException failed(
      testing::TestPartResult(result.type(), result.file_name(), result.line_number(), message.c_str()));
  if (may_throw) throw failed;
  world_->rank_failed(rank->rank(), std::make_exception_ptr(failed));
}

void RankFailures::add_trace(const void* owner, int rank, std::string text) {
  const LibraryScope library;
  OrderedMutexLock lock(&mu_);
  traces_[rank].push_back({owner, std::move(text)});
}

void RankFailures::remove_trace(const void* owner, int rank) {
  const LibraryScope library;
  OrderedMutexLock lock(&mu_);
  std::vector<Trace>& traces = traces_[rank];
  std::erase_if(traces, [owner](const Trace& trace) { return trace.owner == owner; });
  if (traces.empty()) traces_.erase(rank);
}

std::vector<RankFailure> RankFailures::folded() const {
  OrderedMutexLock lock(&mu_);
  std::vector<RankFailure> folded = failures_;
  const auto sort = [](std::vector<int>* ranks) {
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  };
  for (RankFailure& failure : folded) {
    for (RankFailure::Said& one : failure.said) {
      sort(&one.ranks);
      for (auto& [calls, had] : one.open) sort(&had);
    }
    std::stable_sort(failure.said.begin(), failure.said.end(),
                     [](const RankFailure::Said& a, const RankFailure::Said& b) { return a.ranks < b.ranks; });
  }
  return folded;
}

bool RankFailures::skip_ended_run() const {
  OrderedMutexLock lock(&mu_);
  return skip_ended_run_;
}

void add_test_defaults(WorldOptions* options) {
  if (!options->stall_is_fatal.has_value()) options->stall_is_fatal = absl::Minutes(1);
  running_test.store([]() -> std::string {
    const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
    return test == nullptr ? "" : absl::StrCat(test->test_suite_name(), ".", test->name());
  });
}

std::atomic<int>& runs_of_this_test() {
  static std::atomic<const testing::TestInfo*> of{nullptr};
  static std::atomic<testing::TimeInMillis> begun{0};  // tells repetitions of the test apart
  static std::atomic<int> runs{0};
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  const testing::TimeInMillis now = test != nullptr ? test->result()->start_timestamp() : 0;
  const bool other = of.exchange(test) != test;
  if (begun.exchange(now) != now || other) runs = 0;
  return runs;
}

int next_run_of_test() {
  if (Task::current() != nullptr) return next_run();
  return testing::UnitTest::GetInstance()->current_test_info() != nullptr ? ++runs_of_this_test() : next_run();
}

void report_part(testing::TestPartResult::Type type, const std::string& file, int line, const std::string& text) {
  const ColouredFailure coloured(text);
  // As the macros expand. ADD_FAILURE_AT has no fatal form that does not return, and GTEST_SKIP none with a line.
  testing::internal::AssertHelper(type, file.empty() ? nullptr : file.c_str(), line, text.c_str()) = testing::Message();
}

bool is_assertion(const std::exception_ptr& exception) {
  if (exception == nullptr) return false;
  try {
    std::rethrow_exception(exception);
  } catch (const testing::internal::GoogleTestFailureException&) {  // AssertionException, or --gtest_throw_on_failure
    return true;
  } catch (...) {
    return false;
  }
}

namespace {

// Whether a word of a shell's command is a flag that says which tests a session runs, how often, and where it reports.
bool of_the_session(std::string_view word) {
  if (word.starts_with('\'')) word.remove_prefix(1);
  if (!word.starts_with("--gtest_")) return false;
  word.remove_prefix(std::string_view("--gtest_").size());
  const std::string_view flag = word.substr(0, word.find_first_of("='"));
  constexpr std::string_view kFlags[] = {"filter", "repeat", "shuffle", "random_seed", "output", "stream_result_to"};
  return std::find(std::begin(kFlags), std::end(kFlags), flag) != std::end(kFlags);
}

// The end of the word that begins at `begin`, quoted for a shell or not.
size_t end_of_word(std::string_view command, size_t begin) {
  bool quoted = false;
  size_t at = begin;
  for (; at < command.size() && (quoted || command[at] != ' '); ++at) {
    if (command[at] == '\'') quoted = !quoted;
    if (command[at] == '\\' && !quoted) ++at;
  }
  return std::min(at, command.size());
}

}  // namespace

std::string for_this_test(std::string command) {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (command.empty() || test == nullptr) return command;
  std::string kept;
  for (size_t begin = 0; begin < command.size();) {
    const size_t end = end_of_word(command, begin);
    const std::string_view word = std::string_view(command).substr(begin, end - begin);
    if (!of_the_session(word)) absl::StrAppend(&kept, kept.empty() ? "" : " ", sv(word));
    begin = end + 1;
  }
  // A test for each engine is there for one only where the environment names one: a search of it on another engine has
  // that from the program.
  for (const EngineKind engine : {EngineKind::kThreads, EngineKind::kFibers}) {
    const std::string named = absl::StrCat("RANKLOOM_ENGINE=", sv(engine_kind_name(engine)), " ");
    const std::string other = engine == EngineKind::kThreads ? "/fibers" : "/threads";
    const size_t at = kept.find(named);
    const bool is_word = at == 0 || (at != std::string::npos && kept[at - 1] == ' ');
    if (is_word && std::string_view(test->name()).ends_with(other)) kept.erase(at, named.size());
  }
  // GTEST_ALSO_RUN_DISABLED_TESTS of the environment is not in the command.
  constexpr std::string_view kDisabled = " --gtest_also_run_disabled_tests";
  const bool asked = GTEST_FLAG_GET(also_run_disabled_tests) && !absl::StrContains(kept, sv(kDisabled));
  return absl::StrCat(kept, asked ? sv(kDisabled) : "", " --gtest_filter=", test->test_suite_name(), ".", test->name());
}

}  // namespace rankloom::internal
