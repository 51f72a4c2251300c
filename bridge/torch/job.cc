#include "bridge/torch/job.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bridge/torch/python_frames.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/task.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"
#include "world/run_options.h"
#include "world/world_state.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

// The exception of a rank's Python. Reports show no type of it: its text has one.
struct PythonFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Which rank a thread is. A thread that ends while it is one has returned.
struct Binding {
  std::shared_ptr<Job> job;
  int rank = -1;
  bool multithreaded_autograd = true;  // what it was before
  ~Binding() {
    if (job != nullptr) Job::detach("");
  }
};
thread_local Binding binding;

std::mutex jobs_mu;
std::map<const Scheduler*, std::weak_ptr<Job>>& jobs() {
  static auto* const value = new std::map<const Scheduler*, std::weak_ptr<Job>>;
  return *value;
}
std::optional<JobReport>& last() {
  static auto* const value = new std::optional<JobReport>;
  return *value;
}
std::atomic<int64_t> next_id{1};

WorldOptions with_whereabouts(WorldOptions options, std::function<std::string()> whereabouts) {
  options.whereabouts = std::move(whereabouts);
  return options;
}

}  // namespace

struct Job::RandomState {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static RandomState current() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    return {impl->engine(), impl->next_float_normal_sample(), impl->next_double_normal_sample()};
  }
  // Bytes between its fields may differ where nothing else does: then two states count as two.
  bool is(const RandomState& other) const {
    static_assert(std::is_trivially_copyable_v<at::mt19937>);
    return std::memcmp(&engine, &other.engine, sizeof(engine)) == 0 && next_float == other.next_float &&
           next_double == other.next_double;
  }
  void restore() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    impl->set_engine(engine);
    impl->set_next_float_normal_sample(next_float);
    impl->set_next_double_normal_sample(next_double);
  }
};

std::atomic<int>& runs_begun() {
  static std::atomic<int> runs{0};
  return runs;
}

PythonHooks& python_hooks() {
  static auto* const hooks = new PythonHooks;
  return *hooks;
}

std::optional<JobReport> last_report() {
  const std::lock_guard<std::mutex> lock(jobs_mu);
  return last();
}

void set_last_report(JobReport report) {
  const std::lock_guard<std::mutex> lock(jobs_mu);
  last() = std::move(report);
}

namespace {

// A job waits for its helper threads when it goes. The last reference may be a callback's, on such a thread: then it
// goes with the next job.
std::mutex graves_mu;
std::vector<Job*>& graves() {
  static auto* const value = new std::vector<Job*>;
  return *value;
}

void let_go(Job* job) {
  const GilRelease no_gil;
  std::vector<Job*> gone;
  {
    const std::lock_guard<std::mutex> lock(graves_mu);
    graves().push_back(job);
    if (Task::current() != nullptr) return;
    gone.swap(graves());
  }
  for (const Job* old : gone) delete old;
}

}  // namespace

std::shared_ptr<Job> Job::make(WorldOptions options, int number, bool swap_python_random) {
  return entered(new Job(std::move(options), number, swap_python_random));
}

std::shared_ptr<Job> Job::explored(std::shared_ptr<World> world, bool swap_python_random) {
  return entered(new Job(std::move(world), /*number=*/0, swap_python_random));
}

std::shared_ptr<Job> Job::entered(Job* made) {
  std::shared_ptr<Job> job(made, &let_go);
  const std::lock_guard<std::mutex> lock(jobs_mu);
  jobs()[&job->world_->scheduler()] = job;
  return job;
}

Job::Job(WorldOptions options, int number, bool swap_python_random)
    : Job(std::make_shared<World>(with_whereabouts(std::move(options), [this] { return stacks(); }), python_site()),
          number, swap_python_random) {
  Scheduler& scheduler = world_->scheduler();
  scheduler.set_rerun(rerun_of_run(number, scheduler.rerun()));
}

Job::Job(std::shared_ptr<World> world, int number, bool swap_python_random)
    : id_(next_id.fetch_add(1)),
      swap_python_random_(swap_python_random),
      number_(number),
      world_(std::move(world)),
      device_streams_(world_.get()),
      swaps_random_(world_->scheduler().deterministic()),
      failed_calls_(static_cast<size_t>(world_->size())),
      good_calls_(static_cast<size_t>(world_->size())),
      given_up_(static_cast<size_t>(world_->size())),
      failed_(static_cast<size_t>(world_->size())),
      told_(static_cast<size_t>(world_->size()) + 1) {
  if (swaps_random_)
    random_.assign(static_cast<size_t>(world_->size()) + 1,
                   std::make_shared<const RandomState>(RandomState::current()));
}

Job::~Job() {
  const std::lock_guard<std::mutex> lock(jobs_mu);
  jobs().erase(&world_->scheduler());
}

void Job::attach(int rank) {
  if (binding.job != nullptr) {
    throw_to_torch(DistError(invalid_argument("attach: this thread is rank ", binding.rank,
                                              " already, want a thread without a rank"),
                             {.rank = rank, .group = {}, .op = "attach"}),
                   this);
  }
  const GilRelease no_gil;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ++attached_;
    ++running_;
    threads_[rank] = PyThread_get_thread_ident();
  }
  try {
    world_->attach(rank, python_site());
  } catch (const DistError& error) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      --attached_;
      --running_;
      threads_.erase(rank);
    }
    throw_to_torch(error, this);
  }
  binding.job = shared_from_this();
  binding.rank = rank;
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  binding.multithreaded_autograd = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
  after_point(rank);
}

std::shared_ptr<Job> Job::acting(int* rank) {
  *rank = binding.rank;
  if (binding.job != nullptr) return binding.job;
  const Task* const task = Task::current();
  if (task == nullptr || task->info.rank < 0) return nullptr;
  const std::lock_guard<std::mutex> lock(jobs_mu);
  const auto it = jobs().find(task->scheduler);
  std::shared_ptr<Job> job = it != jobs().end() ? it->second.lock() : nullptr;
  if (job != nullptr) *rank = task->info.rank;
  return job;
}

std::pair<int64_t, int> Job::acts_for() {
  int rank = -1;
  const std::shared_ptr<Job> job = acting(&rank);
  return job != nullptr ? std::pair<int64_t, int>{job->id_, rank} : std::pair<int64_t, int>{-1, -1};
}

std::shared_ptr<Job> Job::current(int* rank) {
  *rank = binding.rank;
  return binding.job;
}

void Job::detach(std::string_view failure) {
  if (binding.job == nullptr) return;
  const std::shared_ptr<Job> job = std::move(binding.job);
  binding.job = nullptr;
  const int rank = std::exchange(binding.rank, -1);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(binding.multithreaded_autograd);
  job->leave(rank, failure);
}

void Job::leave(int rank, std::string_view failure) {
  if (!failure.empty()) fail(rank, failure);
  const GilRelease no_gil;
  std::exception_ptr failed;
  bool is_last = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    threads_.erase(rank);
    failed = failed_[static_cast<size_t>(rank)];
    is_last = --running_ == 0;
  }
  if (is_last && swaps_random_) {
    random_over_ = true;
    random_.back()->restore();
    const int from = random_owner_.load(std::memory_order_relaxed);
    if (from >= 0 && swap_python_random_ && python_hooks().swap_random) python_hooks().swap_random(id_, from, -1);
  }
  world_->detach(failed);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    is_last = --attached_ == 0;  // once it has detached: all others have, too
  }
  if (!is_last || number_ == 0) return;  // last_report() is not told of the runs of a search
  set_last_report(report());
}

void Job::fail(int rank, std::string_view text) {
  const GilRelease no_gil;
  const std::exception_ptr failure = failure_of(rank, std::string(text));
  {
    const std::lock_guard<std::mutex> lock(mu_);
    std::exception_ptr& slot = failed_[static_cast<size_t>(rank)];
    if (slot != nullptr) return;
    slot = failure;
  }
  world_->rank_failed(rank, failure);
}

std::exception_ptr Job::failure_of(int rank, const std::string& text) {
  const auto of_core = [rank](const absl::Status& status) {
    return std::make_exception_ptr(DistError(status, {.rank = rank, .group = {}, .op = {}}));
  };
  // An error that only passes on why the world was aborted keeps its kind, so that the report folds it.
  const absl::Status cause = world_->scheduler().abort_cause();
  if (!cause.ok() && absl::StrContains(text, cause.message())) return of_core(cause);
  if (const std::optional<absl::Status> status = remembered(rank, text); status.has_value()) return of_core(*status);
  return std::make_exception_ptr(PythonFailure(text));
}

void Job::remember(int rank, const absl::Status& status, std::string text) {
  constexpr size_t kKept = 4;
  const std::lock_guard<std::mutex> lock(mu_);
  const bool known = rank >= 0 && rank < world_->size();
  std::deque<Told>& told = known ? told_[static_cast<size_t>(rank)] : told_.back();
  if (told.size() == kKept) told.pop_front();
  told.push_back({std::move(text), status});
}

std::optional<absl::Status> Job::remembered(int rank, std::string_view text) const {
  const std::string_view type = text.substr(0, text.find(": "));
  constexpr std::string_view kTypes[] = {"DistBackendError", "DistStoreError", "QueueEmptyError", "DistNetworkError"};
  if (type.size() == text.size() || !absl::c_linear_search(kTypes, type)) return std::nullopt;
  const std::string_view what = text.substr(type.size() + 2);
  const std::lock_guard<std::mutex> lock(mu_);
  for (const std::deque<Told>* const told : {&told_[static_cast<size_t>(rank)], &told_.back()}) {
    for (auto one = told->rbegin(); one != told->rend(); ++one) {
      if (one->text == what) return one->status;
    }
  }
  return std::nullopt;
}

void Job::note_error(int rank, bool polls) {
  if (rank < 0 || rank >= world_->size()) return;
  if (!polls) failed_calls_[static_cast<size_t>(rank)].fetch_add(1, std::memory_order_relaxed);
  if (!given_up_[static_cast<size_t>(rank)]) return;
  const GilRelease no_gil;
  static auto* const mu = new std::mutex;
  static auto* const never = new std::condition_variable;
  std::unique_lock<std::mutex> lock(*mu);
  never->wait(lock, [] { return false; });
}

void Job::skip(std::string_view reason) {
  const GilRelease no_gil;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!skip_reason_.has_value()) skip_reason_ = std::string(reason);
  }
  const absl::string_view why(reason.data(), reason.size());
  world_->scheduler().abort(make_error(ErrorKind::kAborted, "a rank skipped: ", why));
}

std::map<int, uint64_t> Job::running() {
  const GilRelease no_gil;
  std::vector<Outstanding> outstanding;
  world_->scheduler().append_outstanding(&outstanding);
  std::map<int, uint64_t> steps;
  for (const Outstanding& who : outstanding) {
    if (who.attached && who.info.kind == TaskKind::kRank) steps[who.info.rank] = who.steps;
  }
  return steps;
}

std::string Job::describe() {
  const GilRelease no_gil;
  const std::string text = world_->scheduler().describe(), more = stacks();
  return absl::StrCat(text, more.empty() ? "" : "\n", more);
}

std::string Job::skip_reason() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return skip_reason_.value_or("");
}

// A state is 2.5 KiB. Ranks that have drawn the same numbers, or none, share one, and nothing is put back between them.
void Job::swap_random(int rank) {
  int acting_rank = -1;
  if (acting(&acting_rank).get() != this || acting_rank != rank) return;  // a thread beside the ranks
  if (random_over_) return;  // a helper that outlasts the ranks: the state is the process's again
  const int from = random_owner_.load(std::memory_order_relaxed);
  const std::shared_ptr<const RandomState>& next = random_[static_cast<size_t>(rank)];
  std::shared_ptr<const RandomState> here;
  if (from >= 0) {
    std::shared_ptr<const RandomState>& last = random_[static_cast<size_t>(from)];
    const RandomState now = RandomState::current();
    if (last != next && now.is(*next)) {
      last = next;
    } else if (!now.is(*last)) {
      last = std::make_shared<const RandomState>(now);
    }
    here = last;
  }
  if (next != here) next->restore();
  random_owner_.store(rank, std::memory_order_relaxed);
  if (swap_python_random_ && python_hooks().swap_random) python_hooks().swap_random(id_, from, rank);
}

std::string Job::stacks() const {
  std::vector<std::pair<int, uint64_t>> threads;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    threads.assign(threads_.begin(), threads_.end());
  }
  return python_hooks().stacks ? python_hooks().stacks(threads) : "";
}

std::shared_ptr<ProcessGroup> Job::make_group(int rank, const std::string& name, std::vector<int> ranks) {
  return init_process_group(world_->context(rank), {.name = name, .ranks = std::move(ranks)}, python_site());
}

void Job::set_default_ranks(int rank, std::vector<int> ranks) {
  const std::lock_guard<std::mutex> lock(mu_);
  default_ranks_.insert_or_assign(rank, std::move(ranks));
}

std::vector<int> Job::ranks_of(int rank, absl::Span<const int64_t> in_default) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = default_ranks_.find(rank);
  std::vector<int> ranks;
  for (const int64_t one : in_default) {
    TORCH_CHECK(found == default_ranks_.end() || (one >= 0 && static_cast<size_t>(one) < found->second.size()), "rank ",
                one, " is not in the default group of ", found->second.size(), " ranks");
    ranks.push_back(found == default_ranks_.end() ? static_cast<int>(one) : found->second[static_cast<size_t>(one)]);
  }
  return ranks;
}

JobReport Job::report() {
  const GilRelease no_gil;  // helpers that the report waits for may need the interpreter lock
  const std::lock_guard<std::mutex> lock(report_mu_);
  return {world_->report(), flight()};
}

std::vector<std::string> Job::flight() {
  std::vector<std::string> all;
  for (int rank = 0; rank < world_->size(); ++rank) all.push_back(traces::flight_records(*world_, rank));
  return all;
}

void Job::arrive(const std::string& name, int rank) {
  const std::lock_guard<std::mutex> lock(mu_);
  arrived_[name].insert(rank);
}

std::set<int> Job::arrived(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto it = arrived_.find(name);
  return it != arrived_.end() ? it->second : std::set<int>();
}

namespace {

// Whether `text` names the line, with the file's name or its whole path.
bool names_place(std::string_view text, CodeSite code) {
  const std::string_view file = code.file;
  const std::string place = absl::StrCat(absl::string_view(file.substr(file.rfind('/') + 1).data()), ":", code.line);
  for (size_t at = text.find(place); at != std::string_view::npos; at = text.find(place, at + 1)) {
    const size_t end = at + place.size();
    const bool begins = at == 0 || text[at - 1] == '/' || text[at - 1] == ' ' || text[at - 1] == '[';
    if (begins && (end == text.size() || !absl::ascii_isdigit(static_cast<unsigned char>(text[end])))) return true;
  }
  return false;
}

// For the time when the exception with this text ends the rank.
void remember_told(Job& job, const DistError& error, const std::string& text) {
  const std::string_view what = error.what();
  absl::Status status = error.status();
  if (text.size() > what.size()) {  // the caller's line
    status = blamed_as(make_error(error.kind(), message_of(status), text.substr(what.size())), status);
  }
  int rank = -1;
  if (Job::current(&rank).get() != &job) rank = error.rank();
  job.remember(rank, status, text);
}

}  // namespace

std::exception_ptr to_torch(const DistError& error, Job* job, CodeSite code) {
  const bool queue_is_empty =
      error.op() == "store queue_pop" && absl::StrContains(error.what(), ": the queue is empty: have 0 values, want 1");
  if (job != nullptr) {
    int rank = -1;
    if (Job::current(&rank).get() == job) job->note_error(rank, queue_is_empty || error.kind() == ErrorKind::kTimeout);
    if (const std::string reason = job->skip_reason(); !reason.empty()) {
      const py::gil_scoped_acquire gil;
      PyErr_SetString(py::module_::import("unittest").attr("SkipTest").ptr(), reason.c_str());
      return std::make_exception_ptr(py::error_already_set());
    }
  }
  std::string text = error.what();
  // A mismatch is all members' error, and names the line of each: with another line for each rank they would not fold.
  if (code.line != 0 && error.kind() != ErrorKind::kMismatch && !names_place(text, code)) {
    // After a text of several lines on one of its own: what repeats a text must hold it whole.
    absl::StrAppend(&text, absl::StrContains(text, '\n') ? "\n  " : " ", "[", code.file, ":", code.line, "]");
  }
  if (job != nullptr) remember_told(*job, error, text);
  // Without a backtrace: the place that matters is the caller's, and symbolizing takes seconds.
  if (queue_is_empty) return std::make_exception_ptr(c10::DistQueueEmptyError(std::move(text)));
  if (error.kind() == ErrorKind::kStoreError || absl::StartsWith(error.op(), "store")) {
    return std::make_exception_ptr(c10::DistStoreError(std::move(text)));
  }
  return std::make_exception_ptr(c10::DistBackendError(std::move(text)));
}

void throw_to_torch(const DistError& error, Job* job, CodeSite code) {
  std::rethrow_exception(to_torch(error, job, code));
}

void rethrow_to_torch(Job* job, int rank, CodeSite code) {
  if (job != nullptr) job->after_point(rank);
  try {
    throw;
  } catch (const DistError& error) {
    throw_to_torch(error, job, code);
  } catch (const RankCrashed&) {
    const py::gil_scoped_acquire gil;
    const py::object type = py::module_::import("rankloom.torch._ranks").attr("RankCrashedError");
    PyErr_SetString(type.ptr(), "the rank crashed (injected)");
    throw py::error_already_set();
  }
}

}  // namespace rankloom::bridge
