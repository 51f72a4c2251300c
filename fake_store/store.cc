#include "rankloom/store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

namespace {

// Why the caller's run was aborted; OK if it was not, or for a thread of no run, unless that of the store was.
absl::Status abort_cause(const Store& store) {
  const Task* const task = Task::current();
  if (task != nullptr && task->scheduler != nullptr)
    return task->scheduler->aborted() ? task->scheduler->abort_cause() : absl::OkStatus();
  const WorldPin alive(store.world_ref());
  return alive && store.scheduler()->aborted() ? store.scheduler()->abort_cause() : absl::OkStatus();
}

}  // namespace

Store::Store(Scheduler* scheduler)
    : world_(scheduler), timeout_object_(scheduler != nullptr ? ObjectName(scheduler->record()) : ObjectName()) {}

Store::Store(const WorldRef& world) : world_(world) {}

void Store::enter_world(const char* op, std::string_view key, CodeSite code, bool polls) const {
  if (world_.foreign()) [[unlikely]]
    enter_as_stranger(op);
  const Task* const task = Task::current();
  Scheduler* const world = task != nullptr ? task->scheduler : nullptr;
  if (world == nullptr) return;
  const Site site{.what = op, .code = code, .detail = key};
  polls ? world->poll(site) : world->point(site);
  if (world->aborted()) [[unlikely]]
    fail(world->abort_cause(), op);
}

void Store::enter_as_stranger(const char* op) const {
  CallScope::check(
      world_, [&] { return CalledHandle{.rank = -1, .handle = std::string(kind()), .op = op}; }, /*after_run=*/true);
  if (const absl::Status cause = abort_cause(*this); !cause.ok()) fail(cause, op);
}

void Store::fail(const absl::Status& status, const char* op) const {
  const Task* const task = Task::current();
  const int rank = task != nullptr ? task->info.rank : -1;
  const ErrorOrigin origin{.rank = rank, .group = {}, .op = op};
  // The cause of an abort has its own "who".
  if (rank < 0 || abort_cause(*this) == status) throw_dist_error(status, origin);
  throw_dist_error(make_error(error_kind(status), absl::StrCat("rank ", rank, ", ", status.message())), origin);
}

void Store::set(std::string_view key, std::string_view value, CodeSite code) {
  enter("store set", key, code);
  check_ok(set_status(key, value), "store set");
}

std::string Store::get(std::string_view key, CodeSite code) {
  enter("store get", key, code);
  return value_of(get_status(key, {.code = code}), "store get");
}

int64_t Store::add(std::string_view key, int64_t amount, CodeSite code) {
  enter("store add", key, code);
  return value_of(add_status(key, amount), "store add");
}

std::string Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               CodeSite code) {
  enter("store compare_set", key, code);
  return value_of(compare_set_status(key, expected, desired), "store compare_set");
}

void Store::wait(const StringList& keys, CodeSite code) {
  enter("store wait", keys.empty() ? "" : keys[0], code);
  check_ok(wait_status(keys, {.code = code}), "store wait");
}

void Store::wait(const StringList& keys, absl::Duration timeout, CodeSite code) {
  enter("store wait", keys.empty() ? "" : keys[0], code);
  if (timeout < absl::ZeroDuration()) {
    fail(internal::negative_timeout(absl::StrCat(sv(kind()), " wait"), timeout), "store wait");
  }
  check_ok(wait_status(keys, {.timeout = timeout, .code = code}), "store wait");
}

bool Store::check(const StringList& keys, CodeSite code) {
  enter("store check", keys.empty() ? "" : keys[0], code, /*polls=*/true);
  return value_of(check_status(keys), "store check");
}

bool Store::delete_key(std::string_view key, CodeSite code) {
  enter("store delete_key", key, code);
  return value_of(delete_key_status(key), "store delete_key");
}

int64_t Store::num_keys(CodeSite code) {
  enter("store num_keys", "", code, /*polls=*/true);
  return value_of(num_keys_status(), "store num_keys");
}

void Store::append(std::string_view key, std::string_view value, CodeSite code) {
  enter("store append", key, code);
  check_ok(append_status(key, value), "store append");
}

std::vector<std::string> Store::multi_get(const StringList& keys, CodeSite code) {
  enter("store multi_get", keys.empty() ? "" : keys[0], code);
  return value_of(multi_get_status(keys, {.code = code}), "store multi_get");
}

void Store::multi_set(const StringList& keys, const StringList& values, CodeSite code) {
  enter("store multi_set", keys.empty() ? "" : keys[0], code);
  if (keys.size() != values.size()) {
    fail(internal::store_error(
             absl::StrCat(sv(kind()), " multi_set"),
             absl::StrCat("have ", values.size(), " values, want one for each of ", keys.size(), " keys")),
         "store multi_set");
  }
  check_ok(multi_set_status(keys, values), "store multi_set");
}

void Store::queue_push(std::string_view key, std::string_view value, CodeSite code) {
  enter("store queue_push", key, code);
  check_ok(queue_push_status(key, value), "store queue_push");
}

std::string Store::queue_pop(std::string_view key, bool block, CodeSite code) {
  enter("store queue_pop", key, code);
  std::optional<std::string> value = value_of(queue_pop_status(key, block, {.code = code}), "store queue_pop");
  if (!value.has_value()) {
    fail(internal::store_error(absl::StrCat(sv(kind()), " queue_pop key ", internal::quote(key)),
                               "the queue is empty: have 0 values, want 1"),
         "store queue_pop");
  }
  return *std::move(value);
}

int64_t Store::queue_len(std::string_view key, CodeSite code) {
  enter("store queue_len", key, code, /*polls=*/true);
  return value_of(queue_len_status(key), "store queue_len");
}

std::vector<std::string> Store::list_keys(CodeSite code) {
  enter("store list_keys", "", code);
  return value_of(list_keys_status(), "store list_keys");
}

void Store::watch_key(std::string_view key, WatchCallback callback, CodeSite code) {
  enter("store watch_key", key, code);
  check_ok(watch_key_status(key, std::move(callback)), "store watch_key");
}

void Store::set_timeout(absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration()) {
    fail(internal::negative_timeout(absl::StrCat(sv(kind()), " set_timeout"), timeout), "store set_timeout");
  }
  enter("store set_timeout", "", code);
  set_timeout_now(timeout);
}

absl::Duration Store::timeout(CodeSite code) const {
  enter("store timeout", "", code);
  return timeout_now();
}

void Store::tell_timeout(Access how) const {
  const Task* const task = Task::current();
  StepRecord* const record = task != nullptr ? task->record : nullptr;
  if (record == nullptr || (world_.known() && world_.scheduler() != task->scheduler)) return;
  record->access(timeout_object_.in(*record), how);
}

void Store::set_timeout_now(absl::Duration timeout) {
  tell_timeout(Access::kWrite);
  constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
  const int64_t ns = absl::ToInt64Nanoseconds(timeout);  // saturates
  timeout_ns_.store(timeout == absl::InfiniteDuration() ? kForEver : std::min(ns, kForEver - 1),
                    std::memory_order_relaxed);
}

absl::Duration Store::timeout_now() const {
  tell_timeout(Access::kRead);
  const int64_t ns = timeout_ns_.load(std::memory_order_relaxed);
  return ns == std::numeric_limits<int64_t>::max() ? absl::InfiniteDuration() : absl::Nanoseconds(ns);
}

namespace {

// The ranks of 0..size-1 that are not in `arrived`: "0 3 1 ".
std::string missing_ranks(std::string_view arrived, int size) {
  std::vector<bool> here(static_cast<size_t>(size));
  for (absl::string_view word : absl::StrSplit(sv(arrived), ' ', absl::SkipEmpty())) {
    int rank = -1;
    if (absl::SimpleAtoi(word, &rank) && rank >= 0 && rank < size) here[static_cast<size_t>(rank)] = true;
  }
  constexpr int kShown = 16;
  std::string text;
  int missing = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (here[static_cast<size_t>(rank)]) continue;
    if (missing++ < kShown) absl::StrAppend(&text, text.empty() ? "" : ", ", rank);
  }
  if (missing > kShown) absl::StrAppend(&text, " and ", missing - kShown, " more");
  return absl::StrCat(missing == 1 ? "rank " : "ranks ", text);
}

}  // namespace

void store_barrier(Store& store, std::string_view name, int rank, int size, std::optional<absl::Duration> timeout,
                   CodeSite code) {
  const std::string who = absl::StrCat(sv(store.kind()), " store_barrier ", internal::quote(name));
  const ErrorOrigin origin{.rank = rank, .group = {}, .op = "store_barrier"};
  if (size < 1 || rank < 0 || rank >= size) {
    throw_dist_error(
        internal::store_error(who, absl::StrCat("have rank ", rank, " of ", size, ", want 0 <= rank < size")), origin);
  }
  if (timeout.has_value() && *timeout < absl::ZeroDuration()) {
    throw_dist_error(internal::negative_timeout(who, *timeout), origin);
  }
  // Ranks come in rounds of `size`. A rank comes to a round only after it left the one before, so whoever completes a
  // round may remove what the one before left behind.
  const std::string count_key = absl::StrCat(sv(name), "/count");
  const int64_t arrival = store.add(count_key, 1, code);
  const int64_t round = (arrival - 1) / size;
  const auto round_key = [&](const char* what, int64_t n) { return absl::StrCat(sv(name), "/", what, "/", n); };
  const std::string arrived_key = round_key("arrived", round);
  const std::string go_key = round_key("go", round);
  store.append(arrived_key, absl::StrCat(rank, " "), code);
  if (arrival % size == 0) {
    if (round > 0) {
      store.delete_key(round_key("arrived", round - 1), code);
      store.delete_key(round_key("go", round - 1), code);
    }
    store.set(go_key, "", code);
    return;
  }
  const absl::Status waited = store.wait_status({go_key}, {.timeout = timeout, .code = code});
  if (waited.ok()) return;
  if (!abort_cause(store).ok() || error_kind(waited) != ErrorKind::kTimeout) throw_dist_error(waited, origin);
  const absl::StatusOr<std::string> arrived =
      store.get_status(arrived_key, {.timeout = absl::ZeroDuration(), .code = code});
  throw_dist_error(
      make_error(ErrorKind::kTimeout,
                 absl::StrCat("rank ", rank, ", ", who, ": timed out after ",
                              absl::FormatDuration(timeout.has_value() ? *timeout : store.timeout_now()), ": missing ",
                              missing_ranks(arrived.ok() ? *arrived : "", size), " of ", size)),
      origin);
}

}  // namespace rankloom
