#include "fake_store/table_store.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/parker.h"
#include "sim/base/ranks_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/call_scope.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

using Change = FileLog::Change;

constexpr size_t kMaxDigits = 20;  // of an int64 with its sign
// Between two looks of a thread of no world at whether its world was aborted.
constexpr int64_t kLookNs = 50'000'000;

// The number that `text` is; empty counts as 0.
bool parse_number(std::string_view text, int64_t* number) {
  *number = 0;
  if (text.empty()) return true;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

// A task for the length of a wait of a thread that is none.
class TaskScope {
 public:
  TaskScope() {
    if (Task::current() == nullptr) Task::set_current(&own_);
  }
  ~TaskScope() {
    if (Task::current() == &own_) Task::set_current(nullptr);
  }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  Task own_;
};

// Somebody outside the run may end a wait; or a task of the run, which may sleep before.
class OutsideScope {
 public:
  explicit OutsideScope(Scheduler* scheduler) : scheduler_(scheduler) {
    if (scheduler_ != nullptr) scheduler_->add_outside(1, /*in_real_time=*/true);
  }
  ~OutsideScope() {
    if (scheduler_ != nullptr) scheduler_->add_outside(-1, /*in_real_time=*/true);
  }
  OutsideScope(const OutsideScope&) = delete;
  OutsideScope& operator=(const OutsideScope&) = delete;

 private:
  Scheduler* const scheduler_;
};

// A wait in store_barrier(), as reports tell of it: for the ranks that have not come, if they are those of the world.
class BarrierWait final : public WaitsFor {
 public:
  BarrierWait(KeyTable* table, const StoreCall& call) : table_(*table), call_(call) {}

  void append_ranks(std::vector<int>* ranks) const override {
    if (!of_the_world()) return;
    const std::optional<std::string> arrived = this->arrived();
    if (!arrived.has_value()) return;
    const std::vector<int> missing = missing_ranks(*arrived, call_.way.barrier->size);
    ranks->insert(ranks->end(), missing.begin(), missing.end());
  }
  std::string remark() const override {
    if (of_the_world()) return "";
    const std::optional<std::string> arrived = this->arrived();
    if (!arrived.has_value()) return "";
    return absl::StrCat("missing: ", missing_ranks_text(*arrived, call_.way.barrier->size), " of ",
                        call_.way.barrier->size);
  }

 private:
  // The task is the one that was made for the wait.
  bool of_the_world() const {
    return task_ != nullptr && task_->scheduler != nullptr && task_->info.rank == call_.way.barrier->rank &&
           task_->scheduler->options().world_size == call_.way.barrier->size;
  }
  // The numbers that ranks have left. Nothing if that of the one that waits is not among them, as in a store that keeps
  // keys or values in a way of its own.
  std::optional<std::string> arrived() const {
    const std::string key = barrier_arrivals_key(call_.key());
    if (key.empty()) return std::nullopt;
    ObservedMutexLock lock(&table_.mu);
    lock.apart();  // for reports
    const std::string* const arrived = table_.peek(key);
    if (arrived == nullptr || !has_arrived(*arrived, call_.way.barrier->rank)) return std::nullopt;
    return *arrived;
  }

  KeyTable& table_;
  const StoreCall& call_;
  const Task* const task_ = Task::current();
};

std::string listed_keys(const std::vector<std::string_view>& keys) {
  return absl::StrCat(keys.size() == 1 ? "key " : "keys ", quote_list(keys));
}

// A wait for keys that were all missing when it began, as reports tell of it: some may have come.
class KeysWait final : public WaitsFor {
 public:
  KeysWait(KeyTable* table, const std::vector<std::string_view>& keys, KeyTable::Want want)
      : table_(*table), keys_(keys), want_(want) {}

  void append_ranks(std::vector<int>* /*ranks*/) const override {}
  std::string remark() const override {
    if (keys_.size() < 2) return "";
    std::vector<std::string_view> missing;
    ObservedMutexLock lock(&table_.mu);
    lock.apart();  // for reports
    for (const std::string_view key : keys_) {
      if (!table_.holds(key, want_)) missing.push_back(key);
    }
    return missing.empty() || missing.size() == keys_.size() ? ""
                                                             : absl::StrCat("still missing: ", listed_keys(missing));
  }

 private:
  KeyTable& table_;
  const std::vector<std::string_view>& keys_;
  const KeyTable::Want want_;
};

// `detail`, the keys or the barrier's name, lives as long as the wait.
Site wait_site(const StoreCall& call, const std::string& detail, const BarrierWait& barrier, const KeysWait& keys) {
  if (call.way.barrier == nullptr)
    return Site{.what = call.name(), .code = call.code, .detail = detail, .waits_for = &keys};
  return Site{.what = "store_barrier", .code = call.code, .detail = detail, .waits_for = &barrier};
}

// A search takes the step of a wait that finds nothing for one that may come after what it waits for as well. The
// caller's way to the wait is no such step, so the wait has one of its own.
absl::Status come_to_point(const StoreCall& call) {
  const Task* const task = Task::current();
  Scheduler* const world = task != nullptr ? task->scheduler : nullptr;
  if (world == nullptr) return absl::OkStatus();
  const std::string keys = call.keys.size() > 1 ? keys_text(call.keys) : std::string(call.key());
  world->point(Site{.what = call.name(), .code = call.code, .detail = keys});
  return world->aborted() ? world->abort_cause() : absl::OkStatus();
}

// The lines that a scheduler adds to the first: a report of a stuck run.
absl::string_view lines_below(absl::string_view text) {
  const size_t line = text.find('\n');
  return line == absl::string_view::npos ? "" : text.substr(line);
}

}  // namespace

// The log of a store, locked to write and read to its end. Nothing for a store without one.
class TableStore::Hold {
 public:
  Hold(FileLog* log, KeyTable* table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table->mu) : log_(log) {
    if (log_ == nullptr) return;
    status_ = log_->begin(FileLog::Access::kWrite, table);
    if (!status_.ok()) log_ = nullptr;
  }
  ~Hold() {
    if (log_ != nullptr) log_->end();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  const absl::Status& status() const { return status_; }
  // Comes before the change of the table.
  absl::Status write(Change change, std::string_view key, std::string_view value) {
    return log_ != nullptr ? log_->append(change, key, value) : status_;
  }
  bool logs() const { return log_ != nullptr; }

 private:
  FileLog* log_;
  absl::Status status_;
};

TableStore::TableStore(const char* kind, Scheduler* scheduler, const StoreState& state, std::unique_ptr<FileLog> log,
                       bool shared)
    : kind_(kind), state_(state), table_(scheduler), log_(std::move(log)), shared_(shared) {}

TableStore::~TableStore() {
  if (poller_ != nullptr && !poller_->usable()) (void)poller_.release();  // its thread is the parent's
}

absl::StatusOr<StoreReply> TableStore::execute(const StoreCall& call, const Store& store) {
  if (!is_well_formed(call)) [[unlikely]]
    return why_malformed(kind_, call);
  if (shared_) [[unlikely]] {
    if (const Task* const task = Task::current(); task != nullptr && task->scheduler != nullptr)
      task->scheduler->asked_outside();
  }
  // A call that did not come by a method of this store, which checks that: a store around this one may be of no world.
  if (call.way.at_point != &store && state_.world().foreign()) [[unlikely]] {
    CallScope::check(
        state_.world(), [&] { return called(call); }, /*after_run=*/true);
    CallScope::check_thread(state_.world(), [&] { return called(call); });
  }
  if (call.way.at_point != &store && call.waits() && call.timeout != absl::ZeroDuration()) [[unlikely]] {
    if (absl::Status come = come_to_point(call); !come.ok()) return come;
  }
  Reply reply = carry_out(call);
  table_.deliver_events();
  return reply;
}

CalledHandle TableStore::called(const StoreCall& call) const {
  return {.rank = -1, .handle = std::string(kind_), .op = call.name(), .code = call.code};
}

TableStore::Reply TableStore::carry_out(const StoreCall& call) {
  switch (call.op) {
    case StoreCall::Op::kSet:
      return set(call);
    case StoreCall::Op::kGet:
      return get(call);
    case StoreCall::Op::kAdd:
      return add(call);
    case StoreCall::Op::kCompareSet:
      return compare_set(call);
    case StoreCall::Op::kWait:
      return wait(call);
    case StoreCall::Op::kCheck:
      return check(call);
    case StoreCall::Op::kDeleteKey:
      return delete_key(call);
    case StoreCall::Op::kNumKeys:
      return num_keys(call);
    case StoreCall::Op::kAppend:
      return append(call);
    case StoreCall::Op::kMultiGet:
      return multi_get(call);
    case StoreCall::Op::kMultiSet:
      return multi_set(call);
    case StoreCall::Op::kQueuePush:
      return queue_push(call);
    case StoreCall::Op::kQueuePop:
      return queue_pop(call);
    case StoreCall::Op::kQueueLen:
      return queue_len(call);
    case StoreCall::Op::kListKeys:
      return list_keys(call);
    case StoreCall::Op::kWatchKey:
      return watch_key(call);
  }
  return why_malformed(kind_, call);
}

std::string TableStore::who(const StoreCall& call) const {
  return absl::StrCat(kind_, " ", sv(short_name(call.name())));
}

std::string TableStore::who(const StoreCall& call, std::string_view key) const {
  return absl::StrCat(who(call), " key ", quote(key));
}

absl::Status TableStore::explain(const StoreCall& call, std::string_view key, const absl::Status& status) const {
  return prefixed(status, who(call, key), ": ");
}

absl::Status TableStore::explain(const StoreCall& call, const absl::Status& status) const {
  if (call.op != StoreCall::Op::kNumKeys && call.op != StoreCall::Op::kListKeys)
    return explain(call, call.key(), status);
  return prefixed(status, who(call), ": ");
}

absl::Status TableStore::refresh() { return log_ != nullptr ? log_->refresh(&table_) : absl::OkStatus(); }

std::vector<std::string_view> TableStore::missing_keys(const StoreCall& call, Want want) {
  std::vector<std::string_view> missing;
  for (const std::string_view key : call.keys) {
    if (!table_.holds(key, want)) missing.push_back(key);
  }
  return missing;
}

absl::Status TableStore::await(const StoreCall& call, Want want, std::optional<Deadline>* deadline) {
  // The caller's world counts the time, or, for a thread of none and for a store of several processes, the monotonic
  // clock.
  Scheduler* const world = Task::current() != nullptr ? Task::current()->scheduler : nullptr;
  const bool real_time = shared_ || world == nullptr;
  // RankCondVar limits a hook's wait, but not that of await_log(), which is a task's.
  const AfterRanks* const after = shared_ && !call.timeout.has_value() ? AfterRanks::here() : nullptr;
  const absl::Duration most = after != nullptr ? after->patience() : absl::InfiniteDuration();
  const absl::Duration timeout = call.timeout.has_value() ? *call.timeout : std::min(most, state_.timeout());
  for (;;) {
    const std::vector<std::string_view> missing = missing_keys(call, want);
    // At its deadline a wait that a change has woken might have given up before, whether it goes on now or waits again.
    const bool at_end =
        table_.may_be_explored() && (timeout == absl::ZeroDuration() ||
                                     (!real_time && deadline->has_value() && (*deadline)->at_ns <= world->now_ns()));
    if (at_end || missing.empty()) {
      for (const std::string_view key : call.keys) at_end ? table_.gave_up(key, want) : table_.goes_on(key, want);
    }
    if (missing.empty()) return absl::OkStatus();

    // The text depends on keys that are there, too.
    const auto timed_out = [&](const std::vector<std::string_view>& still_missing,
                               absl::string_view more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu) {
      for (const std::string_view key : call.keys) table_.gave_up(key, want);
      if (after != nullptr && timeout == most) return explain(call, still_missing[0], after->ended(call.name()));
      return make_error(ErrorKind::kTimeout, who(call), ": timed out after ", absl::FormatDuration(timeout),
                        ": missing ", listed_keys(still_missing), more);
    };
    if (timeout == absl::ZeroDuration()) return timed_out(missing, "");
    // No rank is left that could set the key.
    if (!shared_ && world == nullptr && world_has_ended()) return explain(call, missing[0], world_ended());
    const bool looks = !shared_ && world == nullptr && AfterRanks::here() == nullptr && state_.world().known();
    if (looks) check_wait(call);
    if (!deadline->has_value()) {
      const bool weak = !call.timeout.has_value();
      *deadline = real_time ? Deadline::after(monotonic_ns(), timeout, weak) : world->deadline_after(timeout, weak);
    }
    KeyTable::WaitScope waiters(&table_, missing[0]);
    RankCondVar& changed = want == Want::kQueued ? waiters->queued : waiters->present;
    const BarrierWait barrier(&table_, call);
    const KeysWait several(&table_, missing, want);
    const std::string detail = call.way.barrier != nullptr ? quote(call.way.barrier->name) : listed_keys(missing);
    const Site site = wait_site(call, detail, barrier, several);
    // An abort wakes ranks only: a thread of no world looks now and then.
    Deadline until = **deadline;
    if (looks) until.at_ns = std::min(until.at_ns, monotonic_ns() + kLookNs);
    const absl::Status waited = shared_ ? await_log(&changed, missing[0], want, site, (*deadline)->at_ns)
                                        : await_table(&changed, missing, want, site, until);
    if (waited.ok()) continue;
    if (looks) {
      if (const absl::Status cause = abort_cause_of_world(); !cause.ok()) return explain(call, missing[0], cause);
      if (monotonic_ns() < (*deadline)->at_ns) continue;
    }
    if (world != nullptr && world->aborted())
      return error_kind(waited) == ErrorKind::kTimeout ? world->abort_cause() : waited;
    if (error_kind(waited) != ErrorKind::kTimeout) return explain(call, missing[0], waited);
    // Others may have come, while the wait was for the first of them; all, where others go on meanwhile.
    const std::vector<std::string_view> still_missing = missing_keys(call, want);
    if (!still_missing.empty()) return timed_out(still_missing, lines_below(waited.message()));
  }
}

absl::Status TableStore::abort_cause_of_world() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  table_.mu.unlock();
  const absl::Cleanup lock_again = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { table_.mu.lock(); };
  return state_.abort_cause();
}

void TableStore::check_wait(const StoreCall& call) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  table_.mu.unlock();
  const absl::Cleanup lock_again = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { table_.mu.lock(); };
  CallScope::check_wait(state_.world(), [&] { return called(call); });
}

bool TableStore::world_has_ended() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!state_.world().known()) return false;
  table_.mu.unlock();
  const absl::Cleanup lock_again = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { table_.mu.lock(); };
  return state_.world().ended();
}

absl::Status TableStore::await_table(RankCondVar* changed, const std::vector<std::string_view>& missing, Want want,
                                     const Site& site, Deadline deadline) {
  const Scheduler* const world = Task::current() != nullptr ? Task::current()->scheduler : nullptr;
  return changed->await(
      &table_.mu,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu) {
        if (table_.holds(missing[0], want)) return true;
        // The value that woke the wait at its deadline may be gone again: as above.
        const bool at_end = table_.may_be_explored() && world != nullptr && deadline.at_ns <= world->now_ns();
        for (const std::string_view key : missing) {
          if (!table_.holds(key, want)) at_end ? table_.gave_up(key, want) : table_.waits_on(key, want);
        }
        return false;
      },
      site, deadline);
}

bool TableStore::deliver_in_wait() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!table_.leave_events()) return false;
  table_.mu.unlock();
  const absl::Cleanup lock_again = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { table_.mu.lock(); };
  table_.deliver_events();
  return true;
}

absl::Status TableStore::await_log(RankCondVar* changed, std::string_view key, Want want, const Site& site,
                                   int64_t deadline_ns) {
  // Behind callbacks that took long, and behind which there may be more of them each time.
  const Task* const caller = Task::current();
  if (caller != nullptr && caller->scheduler != nullptr && caller->scheduler->aborted())
    return caller->scheduler->abort_cause();
  if (monotonic_ns() >= deadline_ns) {
    const absl::Status refreshed = refresh();
    if (!refreshed.ok() || table_.holds(key, want)) return refreshed;
    return make_error(ErrorKind::kTimeout, "timed out");
  }
  if (deliver_in_wait()) return absl::OkStatus();
  if (poller_ == nullptr || !poller_->usable()) {
    (void)poller_.release();
    poller_ = std::make_unique<FilePoller>([log = log_.get()] { return log->changed(); });
  }
  TaskScope as_task;
  Task* const self = Task::current();
  OutsideScope outside(self->scheduler);
  FilePoller::Scope polled(poller_.get(), self, deadline_ns);
  absl::Status refreshed;
  bool expired = false;
  const absl::Status waited = changed->await(
      &table_.mu,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu) {
        if (table_.holds(key, want)) return true;
        refreshed = refresh();
        const bool undelivered = table_.leave_events();  // filed by the task of this wait
        if (undelivered || !refreshed.ok() || table_.holds(key, want)) return true;
        expired = monotonic_ns() >= deadline_ns;
        return expired;
      },
      site);
  if (!waited.ok()) return waited;
  if (!refreshed.ok()) return refreshed;
  return expired ? make_error(ErrorKind::kTimeout, "timed out") : absl::OkStatus();
}

TableStore::Reply TableStore::set(const StoreCall& call) {
  absl::Status status;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.write(Change::kSet, call.key(), call.value());
    if (status.ok()) table_.set(call.key(), call.value());
  }
  if (!status.ok()) return explain(call, status);
  return StoreReply();
}

TableStore::Reply TableStore::get(const StoreCall& call) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  if (!table_.may_be_explored()) [[likely]] {
    if (const std::string* const value = table_.find(call.key()); value != nullptr) return StoreReply{.value = *value};
  }
  if (absl::Status s = await(call, Want::kValue, &deadline); !s.ok()) return s;
  return StoreReply{.value = *table_.find(call.key())};
}

TableStore::Reply TableStore::add(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain(call, hold.status());
  int64_t have = 0;
  const std::string* const text = table_.find(call.key());
  if (text != nullptr && !parse_number(*text, &have)) [[unlikely]] {
    return store_error(who(call, call.key()), absl::StrCat("have ", quote(*text), ", want a decimal int64"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(have, call.amount, &sum)) [[unlikely]] {
    return store_error(who(call, call.key()),
                       absl::StrCat("have ", have, " and ", call.amount, ", want a sum that is an int64"));
  }
  char digits[kMaxDigits];
  const char* const end = std::to_chars(digits, digits + kMaxDigits, sum).ptr;
  const std::string_view sum_text(digits, static_cast<size_t>(end - digits));
  if (absl::Status s = hold.write(Change::kSet, call.key(), sum_text); !s.ok()) return explain(call, s);
  table_.set(call.key(), sum_text);
  return StoreReply{.number = sum};
}

TableStore::Reply TableStore::compare_set(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain(call, hold.status());
  const std::string* const value = table_.find(call.key());
  if (value == nullptr && !call.expected.empty()) return StoreReply{.value = std::string(call.expected)};
  if (value != nullptr && *value != call.expected) return StoreReply{.value = *value};
  if (absl::Status s = hold.write(Change::kSet, call.key(), call.value()); !s.ok()) return explain(call, s);
  table_.set(call.key(), call.value());
  return StoreReply{.value = std::string(call.value())};
}

TableStore::Reply TableStore::wait(const StoreCall& call) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (call.keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  if (absl::Status s = await(call, Want::kPresent, &deadline); !s.ok()) return s;
  return StoreReply();
}

TableStore::Reply TableStore::check(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  if (call.keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  for (const std::string_view key : call.keys) {
    if (!table_.present(key)) return StoreReply{.found = false};
  }
  return StoreReply{.found = true};
}

TableStore::Reply TableStore::delete_key(const StoreCall& call) {
  absl::Status status;
  bool existed = false;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.status();
    existed = status.ok() && table_.find(call.key()) != nullptr;
    if (existed) {
      status = hold.write(Change::kErase, call.key(), "");
      if (status.ok()) table_.erase(call.key());
    }
  }
  if (!status.ok()) return explain(call, status);
  return StoreReply{.found = existed};
}

TableStore::Reply TableStore::num_keys(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  return StoreReply{.number = static_cast<int64_t>(table_.size())};
}

TableStore::Reply TableStore::append(const StoreCall& call) {
  absl::Status status;
  StoreReply reply;
  // The list of who came to a barrier, unless a store around this one writes it in another way.
  const StoreBarrier* const barrier = call.way.barrier;
  const bool counts = barrier != nullptr && call.value() == absl::StrCat(barrier->rank, " ");
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    if (counts && hold.status().ok()) {
      const std::string* const arrived = table_.peek(call.key());
      reply.found = arrived != nullptr && has_arrived(*arrived, barrier->rank);
      reply.number = arrived != nullptr ? std::count(arrived->begin(), arrived->end(), ' ') : 0;
    }
    if (reply.found) {          // the list holds each rank once
      table_.find(call.key());  // the refusal is a read, as an append is a write
      return reply;
    }
    status = hold.write(Change::kAppend, call.key(), call.value());
    if (status.ok()) table_.append(call.key(), call.value());
  }
  if (!status.ok()) return explain(call, status);
  if (counts) ++reply.number;
  return reply;
}

TableStore::Reply TableStore::multi_get(const StoreCall& call) {
  StoreReply reply;
  reply.values.reserve(call.keys.size());
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (call.keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  if (absl::Status s = await(call, Want::kValue, &deadline); !s.ok()) return s;
  for (const std::string_view key : call.keys) reply.values.push_back(*table_.find(key));
  return reply;
}

TableStore::Reply TableStore::multi_set(const StoreCall& call) {
  if (call.keys.empty()) return StoreReply();
  absl::Status status;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.status();
    if (status.ok() && hold.logs()) {
      const absl::StatusOr<std::string> batch = log_->encode_batch(call.keys, call.values);
      status = batch.ok() ? hold.write(Change::kBatch, "", *batch) : batch.status();
    }
    for (size_t i = 0; status.ok() && i < call.keys.size(); ++i) table_.set(call.keys[i], call.values[i]);
  }
  if (!status.ok()) return explain(call, status);
  return StoreReply();
}

TableStore::Reply TableStore::queue_push(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  Hold hold(log_.get(), &table_);
  if (absl::Status s = hold.write(Change::kPush, call.key(), call.value()); !s.ok()) return explain(call, s);
  table_.push(call.key(), call.value());
  return StoreReply();
}

TableStore::Reply TableStore::pop_locked(const StoreCall& call) {
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain(call, hold.status());
  if (table_.holds(call.key(), Want::kQueued)) {
    if (absl::Status s = hold.write(Change::kPop, call.key(), ""); !s.ok()) return explain(call, s);
  }
  std::optional<std::string> value = table_.pop(call.key());
  if (!value.has_value()) return StoreReply{.found = false};
  return StoreReply{.value = *std::move(value), .found = true};
}

TableStore::Reply TableStore::queue_pop(const StoreCall& call) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  for (;;) {
    if (call.block) {
      if (absl::Status s = await(call, Want::kQueued, &deadline); !s.ok()) return s;
    }
    Reply value = pop_locked(call);
    // Another process may be faster when the wait is over.
    if (!call.block || !value.ok() || value->found) return value;
  }
}

TableStore::Reply TableStore::queue_len(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  return StoreReply{.number = static_cast<int64_t>(table_.queue_len(call.key()))};
}

TableStore::Reply TableStore::list_keys(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  return StoreReply{.values = table_.sorted_keys()};
}

TableStore::Reply TableStore::watch_key(const StoreCall& call) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain(call, s);
  table_.watch(call.key(), std::move(*call.watch));
  return StoreReply();
}

}  // namespace rankloom::internal
