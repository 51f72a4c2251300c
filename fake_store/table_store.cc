#include "fake_store/table_store.h"

#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fake_store/store_text.h"
#include "sim/dist_error.h"
#include "sim/parker.h"
#include "sim/scheduler.h"
#include "sim/text.h"

namespace rankloom::internal {
namespace {

constexpr size_t kMaxDigits = 20;  // of an int64 with its sign

// The number that `text` is; absent and empty count as 0.
bool parse_number(std::string_view text, int64_t* number) {
  *number = 0;
  if (text.empty()) return true;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

Deadline deadline_of(const Scheduler* scheduler, absl::Duration timeout, bool weak) {
  if (scheduler != nullptr) return scheduler->deadline_after(timeout, weak);
  const int64_t ns = absl::ToInt64Nanoseconds(timeout);
  const int64_t now = monotonic_ns();
  return {.at_ns = ns > Deadline::kNever - now ? Deadline::kNever : now + ns, .weak = weak};
}

}  // namespace

std::string TableStore::who(const char* op, std::string_view key) const {
  return absl::StrCat(sv(kind()), " ", op, " key ", quoted(key));
}

bool TableStore::has(std::string_view key, Want want) const {
  switch (want) {
    case Want::kValue:
      return table_.find(key) != nullptr;
    case Want::kPresent:
      return table_.present(key);
    case Want::kQueued:
      return table_.queue_len(key) > 0;
  }
  fatal("unknown Want");
}

absl::Status TableStore::await(const char* op, const StringList& keys, Want want, const StoreWait& wait) {
  const std::string_view name = std::string_view(op).substr(std::string_view("store ").size());
  std::optional<Deadline> deadline;
  for (;;) {
    std::vector<std::string_view> missing;
    for (std::string_view key : keys) {
      if (!has(key, want)) missing.push_back(key);
    }
    if (missing.empty()) return absl::OkStatus();

    const absl::Duration timeout = wait.timeout.value_or(this->timeout());
    const std::string detail = absl::StrCat(missing.size() == 1 ? "key " : "keys ", quoted_list(missing));
    const auto timed_out = [&](absl::string_view more) {
      return make_error(ErrorKind::kTimeout, absl::StrCat(sv(kind()), " ", sv(name), ": timed out after ",
                                                          absl::FormatDuration(timeout), ": missing ", detail, more));
    };
    if (timeout == absl::ZeroDuration()) return timed_out("");
    if (!deadline.has_value()) deadline = deadline_of(scheduler(), timeout, /*weak=*/!wait.timeout.has_value());

    KeyTable::WaitScope waiters(&table_, missing[0]);
    RankCondVar& changed = want == Want::kQueued ? waiters->queued : waiters->present;
    const absl::Status waited = changed.await(
        &table_.mu, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu) { return has(missing[0], want); },
        Site{.what = op, .code = wait.code, .detail = detail}, *deadline);
    if (waited.ok()) continue;
    if (scheduler() != nullptr && scheduler()->aborted()) return waited;
    // What a scheduler adds to the first line, a report of a stuck run, is kept.
    const size_t line = waited.message().find('\n');
    return timed_out(line == absl::string_view::npos ? "" : waited.message().substr(line));
  }
}

absl::Status TableStore::set_status(std::string_view key, std::string_view value) {
  {
    RankMutexLock lock(&table_.mu);
    table_.set(key, value);
  }
  table_.deliver_events();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TableStore::get_status(std::string_view key, const StoreWait& wait) {
  RankMutexLock lock(&table_.mu);
  const std::string* value = table_.find(key);
  if (value == nullptr) {
    if (absl::Status s = await("store get", {key}, Want::kValue, wait); !s.ok()) return s;
    value = table_.find(key);
  }
  return *value;
}

absl::StatusOr<int64_t> TableStore::add_status(std::string_view key, int64_t amount) {
  int64_t sum = 0;
  {
    RankMutexLock lock(&table_.mu);
    int64_t have = 0;
    const std::string* const text = table_.find(key);
    if (text != nullptr && !parse_number(*text, &have)) [[unlikely]] {
      return store_error(who("add", key), absl::StrCat("have ", quoted(*text), ", want a decimal int64"));
    }
    if (__builtin_add_overflow(have, amount, &sum)) [[unlikely]] {
      return store_error(who("add", key), absl::StrCat("have ", have, ", want ", amount, " more: that is no int64"));
    }
    char digits[kMaxDigits];
    const char* const end = std::to_chars(digits, digits + kMaxDigits, sum).ptr;
    table_.set(key, {digits, static_cast<size_t>(end - digits)});
  }
  table_.deliver_events();
  return sum;
}

absl::StatusOr<std::string> TableStore::compare_set_status(std::string_view key, std::string_view expected,
                                                           std::string_view desired) {
  {
    RankMutexLock lock(&table_.mu);
    const std::string* const value = table_.find(key);
    if (value == nullptr && !expected.empty()) return std::string(expected);
    if (value != nullptr && *value != expected) return *value;
    table_.set(key, desired);
  }
  table_.deliver_events();
  return std::string(desired);
}

absl::Status TableStore::wait_status(const StringList& keys, const StoreWait& wait) {
  RankMutexLock lock(&table_.mu);
  return await("store wait", keys, Want::kPresent, wait);
}

absl::StatusOr<bool> TableStore::check_status(const StringList& keys) {
  RankMutexLock lock(&table_.mu);
  for (std::string_view key : keys) {
    if (!table_.present(key)) return false;
  }
  return true;
}

absl::StatusOr<bool> TableStore::delete_key_status(std::string_view key) {
  bool existed = false;
  {
    RankMutexLock lock(&table_.mu);
    existed = table_.erase(key);
  }
  table_.deliver_events();
  return existed;
}

absl::StatusOr<int64_t> TableStore::num_keys_status() {
  RankMutexLock lock(&table_.mu);
  return static_cast<int64_t>(table_.size());
}

absl::Status TableStore::append_status(std::string_view key, std::string_view value) {
  {
    RankMutexLock lock(&table_.mu);
    table_.append(key, value);
  }
  table_.deliver_events();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> TableStore::multi_get_status(const StringList& keys, const StoreWait& wait) {
  std::vector<std::string> values;
  values.reserve(keys.size());
  RankMutexLock lock(&table_.mu);
  if (absl::Status s = await("store multi_get", keys, Want::kValue, wait); !s.ok()) return s;
  for (std::string_view key : keys) values.push_back(*table_.find(key));
  return values;
}

absl::Status TableStore::multi_set_status(const StringList& keys, const StringList& values) {
  {
    RankMutexLock lock(&table_.mu);
    for (size_t i = 0; i < keys.size(); ++i) table_.set(keys[i], values[i]);
  }
  table_.deliver_events();
  return absl::OkStatus();
}

absl::Status TableStore::queue_push_status(std::string_view key, std::string_view value) {
  RankMutexLock lock(&table_.mu);
  table_.push(key, value);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> TableStore::queue_pop_status(std::string_view key, bool block,
                                                                        const StoreWait& wait) {
  RankMutexLock lock(&table_.mu);
  if (block) {
    if (absl::Status s = await("store queue_pop", {key}, Want::kQueued, wait); !s.ok()) return s;
  }
  return table_.pop(key);
}

absl::StatusOr<int64_t> TableStore::queue_len_status(std::string_view key) {
  RankMutexLock lock(&table_.mu);
  return static_cast<int64_t>(table_.queue_len(key));
}

absl::StatusOr<std::vector<std::string>> TableStore::list_keys_status() {
  RankMutexLock lock(&table_.mu);
  return table_.sorted_keys();
}

absl::Status TableStore::watch_key_status(std::string_view key, WatchCallback callback) {
  RankMutexLock lock(&table_.mu);
  table_.watch(key, std::move(callback));
  return absl::OkStatus();
}

}  // namespace rankloom::internal
