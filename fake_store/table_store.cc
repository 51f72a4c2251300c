#include "fake_store/table_store.h"

#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/parker.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

using Change = FileLog::Change;

constexpr size_t kMaxDigits = 20;  // of an int64 with its sign

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
    if (Task::current() == nullptr) Task::set_current(&stranger_);
  }
  ~TaskScope() {
    if (Task::current() == &stranger_) Task::set_current(nullptr);
  }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  Task stranger_;
};

// Somebody outside the run may end a wait.
class OutsideScope {
 public:
  explicit OutsideScope(Scheduler* scheduler) : scheduler_(scheduler) {
    if (scheduler_ != nullptr) scheduler_->add_outside(1);
  }
  ~OutsideScope() {
    if (scheduler_ != nullptr) scheduler_->add_outside(-1);
  }
  OutsideScope(const OutsideScope&) = delete;
  OutsideScope& operator=(const OutsideScope&) = delete;

 private:
  Scheduler* const scheduler_;
};

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

TableStore::TableStore(Scheduler* scheduler, std::unique_ptr<FileLog> log, bool shared)
    : Store(scheduler), table_(scheduler), log_(std::move(log)), shared_(shared) {}

TableStore::~TableStore() {
  if (poller_ != nullptr && !poller_->usable()) (void)poller_.release();  // its thread is the parent's
}

std::string TableStore::who(const char* op, std::string_view key) const {
  return absl::StrCat(sv(kind()), " ", op, " key ", quote(key));
}

absl::Status TableStore::explain(const char* op, std::string_view key, const absl::Status& status) const {
  if (status.ok()) return status;
  return make_error(error_kind(status), absl::StrCat(who(op, key), ": ", status.message()));
}

absl::Status TableStore::explain(const char* op, const absl::Status& status) const {
  return make_error(error_kind(status), absl::StrCat(sv(kind()), " ", op, ": ", status.message()));
}

absl::Status TableStore::refresh() { return log_ != nullptr ? log_->refresh(&table_) : absl::OkStatus(); }

absl::Status TableStore::await(const char* op, const StringList& keys, Want want, const StoreWait& wait,
                               std::optional<Deadline>* deadline) {
  const char* const name = op + std::string_view("store ").size();
  // The caller's world counts the time, or, for a thread of none and for a store of several processes, the monotonic clock.
  Scheduler* const world = Task::current() != nullptr ? Task::current()->scheduler : nullptr;
  const bool real_time = shared_ || world == nullptr;
  const absl::Duration timeout = wait.timeout.has_value() ? *wait.timeout : timeout_now();
  for (;;) {
    std::vector<std::string_view> missing;
    for (std::string_view key : keys) {
      if (!table_.holds(key, want)) missing.push_back(key);
    }
    if (missing.empty()) {
      // At its deadline a wait might have given up as well.
      const bool at_end = timeout == absl::ZeroDuration() ||
                          (!real_time && deadline->has_value() && (*deadline)->at_ns <= world->now_ns());
      for (std::string_view key : keys) at_end ? table_.gave_up(key, want) : table_.goes_on(key, want);
      return absl::OkStatus();
    }

    const std::string detail = absl::StrCat(missing.size() == 1 ? "key " : "keys ", quote_list(missing));
    const auto timed_out = [&](absl::string_view more) {
      return make_error(ErrorKind::kTimeout, absl::StrCat(sv(kind()), " ", name, ": timed out after ",
                                                          absl::FormatDuration(timeout), ": missing ", detail, more));
    };
    if (timeout == absl::ZeroDuration()) {
      for (const std::string_view key : missing) table_.gave_up(key, want);
      return timed_out("");
    }
    if (!deadline->has_value()) {
      *deadline = real_time ? Deadline::after(monotonic_ns(), timeout, /*weak=*/true)
                            : world->deadline_after(timeout, /*weak=*/!wait.timeout.has_value());
    }

    KeyTable::WaitScope waiters(&table_, missing[0]);
    RankCondVar& changed = want == Want::kQueued ? waiters->queued : waiters->present;
    const Site site{.what = op, .code = wait.code, .group = {}, .detail = detail};
    absl::Status waited;
    if (shared_) {
      waited = await_log(&changed, missing[0], want, site, (*deadline)->at_ns);
    } else {
      waited = changed.await(
          &table_.mu,
          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu) {
            if (table_.holds(missing[0], want)) return true;
            for (const std::string_view key : missing) {
              if (!table_.holds(key, want)) table_.waits_on(key, want);
            }
            return false;
          },
          site, **deadline);
    }
    if (waited.ok()) continue;
    if (world != nullptr && world->aborted()) return waited;
    if (error_kind(waited) != ErrorKind::kTimeout) return explain(name, missing[0], waited);
    for (const std::string_view key : missing) table_.gave_up(key, want);
    // What a scheduler adds to the first line, a report of a stuck run, is kept.
    const size_t line = waited.message().find('\n');
    return timed_out(line == absl::string_view::npos ? "" : waited.message().substr(line));
  }
}

absl::Status TableStore::await_log(RankCondVar* changed, std::string_view key, Want want, const Site& site,
                                   int64_t deadline_ns) {
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
        if (!refreshed.ok() || table_.holds(key, want)) return true;
        expired = monotonic_ns() >= deadline_ns;
        return expired;
      },
      site);
  if (!waited.ok()) return waited;
  if (!refreshed.ok()) return refreshed;
  return expired ? make_error(ErrorKind::kTimeout, "timed out") : absl::OkStatus();
}

absl::Status TableStore::set_status(std::string_view key, std::string_view value) {
  absl::Status status;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.write(Change::kSet, key, value);
    if (status.ok()) table_.set(key, value);
  }
  table_.deliver_events();
  return explain("set", key, status);
}

absl::StatusOr<std::string> TableStore::get_status(std::string_view key, const StoreWait& wait) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("get", key, s);
  if (!table_.may_be_explored()) [[likely]] {
    if (const std::string* const value = table_.find(key); value != nullptr) return *value;
  }
  if (absl::Status s = await("store get", {key}, Want::kValue, wait, &deadline); !s.ok()) return s;
  return *table_.find(key);
}

absl::StatusOr<int64_t> TableStore::add_locked(std::string_view key, int64_t amount) {
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain("add", key, hold.status());
  int64_t have = 0;
  const std::string* const text = table_.find(key);
  if (text != nullptr && !parse_number(*text, &have)) [[unlikely]] {
    return store_error(who("add", key), absl::StrCat("have ", quote(*text), ", want a decimal int64"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(have, amount, &sum)) [[unlikely]] {
    return store_error(who("add", key), absl::StrCat("have ", have, " and ", amount, ", want a sum that is an int64"));
  }
  char digits[kMaxDigits];
  const char* const end = std::to_chars(digits, digits + kMaxDigits, sum).ptr;
  const std::string_view sum_text(digits, static_cast<size_t>(end - digits));
  if (absl::Status s = hold.write(Change::kSet, key, sum_text); !s.ok()) return explain("add", key, s);
  table_.set(key, sum_text);
  return sum;
}

absl::StatusOr<int64_t> TableStore::add_status(std::string_view key, int64_t amount) {
  absl::StatusOr<int64_t> sum = [&] {
    ObservedMutexLock lock(&table_.mu);
    return add_locked(key, amount);
  }();
  table_.deliver_events();
  return sum;
}

absl::StatusOr<std::string> TableStore::compare_set_locked(std::string_view key, std::string_view expected,
                                                           std::string_view desired) {
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain("compare_set", key, hold.status());
  const std::string* const value = table_.find(key);
  if (value == nullptr && !expected.empty()) return std::string(expected);
  if (value != nullptr && *value != expected) return *value;
  if (absl::Status s = hold.write(Change::kSet, key, desired); !s.ok()) return explain("compare_set", key, s);
  table_.set(key, desired);
  return std::string(desired);
}

absl::StatusOr<std::string> TableStore::compare_set_status(std::string_view key, std::string_view expected,
                                                           std::string_view desired) {
  absl::StatusOr<std::string> value = [&] {
    ObservedMutexLock lock(&table_.mu);
    return compare_set_locked(key, expected, desired);
  }();
  table_.deliver_events();
  return value;
}

absl::Status TableStore::wait_status(const StringList& keys, const StoreWait& wait) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain("wait", keys.empty() ? "" : keys[0], s);
  if (absl::Status s = await("store wait", keys, Want::kPresent, wait, &deadline); !s.ok()) return s;
  return absl::OkStatus();
}

absl::StatusOr<bool> TableStore::check_status(const StringList& keys) {
  ObservedMutexLock lock(&table_.mu);
  if (keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain("check", keys.empty() ? "" : keys[0], s);
  for (std::string_view key : keys) {
    if (!table_.present(key)) return false;
  }
  return true;
}

absl::StatusOr<bool> TableStore::delete_key_status(std::string_view key) {
  absl::Status status;
  bool existed = false;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.status();
    existed = status.ok() && table_.find(key) != nullptr;
    if (existed) {
      status = hold.write(Change::kErase, key, "");
      if (status.ok()) table_.erase(key);
    }
  }
  table_.deliver_events();
  if (!status.ok()) return explain("delete_key", key, status);
  return existed;
}

absl::StatusOr<int64_t> TableStore::num_keys_status() {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("num_keys", s);
  return static_cast<int64_t>(table_.size());
}

absl::Status TableStore::append_status(std::string_view key, std::string_view value) {
  absl::Status status;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.write(Change::kAppend, key, value);
    if (status.ok()) table_.append(key, value);
  }
  table_.deliver_events();
  return explain("append", key, status);
}

absl::StatusOr<std::vector<std::string>> TableStore::multi_get_status(const StringList& keys, const StoreWait& wait) {
  std::vector<std::string> values;
  values.reserve(keys.size());
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (keys.empty()) lock.apart();
  if (absl::Status s = refresh(); !s.ok()) return explain("multi_get", keys.empty() ? "" : keys[0], s);
  if (absl::Status s = await("store multi_get", keys, Want::kValue, wait, &deadline); !s.ok()) return s;
  for (std::string_view key : keys) values.push_back(*table_.find(key));
  return values;
}

absl::Status TableStore::multi_set_status(const StringList& keys, const StringList& values) {
  if (keys.empty()) return absl::OkStatus();
  absl::Status status;
  {
    ObservedMutexLock lock(&table_.mu);
    Hold hold(log_.get(), &table_);
    status = hold.logs() ? hold.write(Change::kBatch, "", FileLog::encode_batch(keys, values)) : hold.status();
    for (size_t i = 0; status.ok() && i < keys.size(); ++i) table_.set(keys[i], values[i]);
  }
  table_.deliver_events();
  return explain("multi_set", keys[0], status);
}

absl::Status TableStore::queue_push_status(std::string_view key, std::string_view value) {
  ObservedMutexLock lock(&table_.mu);
  Hold hold(log_.get(), &table_);
  if (absl::Status s = hold.write(Change::kPush, key, value); !s.ok()) return explain("queue_push", key, s);
  table_.push(key, value);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> TableStore::pop_locked(std::string_view key) {
  Hold hold(log_.get(), &table_);
  if (!hold.status().ok()) return explain("queue_pop", key, hold.status());
  if (!table_.holds(key, Want::kQueued)) return table_.pop(key);
  if (absl::Status s = hold.write(Change::kPop, key, ""); !s.ok()) return explain("queue_pop", key, s);
  return table_.pop(key);
}

absl::StatusOr<std::optional<std::string>> TableStore::queue_pop_status(std::string_view key, bool block,
                                                                        const StoreWait& wait) {
  std::optional<Deadline> deadline;
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("queue_pop", key, s);
  for (;;) {
    if (block) {
      if (absl::Status s = await("store queue_pop", {key}, Want::kQueued, wait, &deadline); !s.ok()) return s;
    }
    absl::StatusOr<std::optional<std::string>> value = pop_locked(key);
    // Another process may be faster when the wait is over.
    if (!block || !value.ok() || value->has_value()) return value;
  }
}

absl::StatusOr<int64_t> TableStore::queue_len_status(std::string_view key) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("queue_len", key, s);
  return static_cast<int64_t>(table_.queue_len(key));
}

absl::StatusOr<std::vector<std::string>> TableStore::list_keys_status() {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("list_keys", s);
  return table_.sorted_keys();
}

absl::Status TableStore::watch_key_status(std::string_view key, WatchCallback callback) {
  ObservedMutexLock lock(&table_.mu);
  if (absl::Status s = refresh(); !s.ok()) return explain("watch_key", key, s);
  table_.watch(key, std::move(callback));
  return absl::OkStatus();
}

}  // namespace rankloom::internal
