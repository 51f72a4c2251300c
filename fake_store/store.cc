#include "rankloom/store.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fake_store/store_state.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"
#include "sim/base/library_scope.h"
#include "sim/base/require.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom {

using namespace internal;

namespace {

// How many keys or values an operation needs. Others that are there are of no use.
enum class Many : uint8_t { kAny, kOne, kEachKey };

// The properties of an operation, beside what it does.
struct Row {
  StoreCall::Op op;
  const char* name;
  Many keys = Many::kOne;
  Many values = Many::kAny;
  bool waits = false;
  bool writes = false;
  bool polls = false;  // asks whether something has happened yet, and may ask again: Scheduler::poll
};

constexpr Row kRows[] = {
    {.op = StoreCall::Op::kSet, .name = "store set", .values = Many::kOne, .writes = true},
    {.op = StoreCall::Op::kGet, .name = "store get", .waits = true},
    {.op = StoreCall::Op::kAdd, .name = "store add", .writes = true},
    {.op = StoreCall::Op::kCompareSet, .name = "store compare_set", .values = Many::kOne, .writes = true},
    {.op = StoreCall::Op::kWait, .name = "store wait", .keys = Many::kAny, .waits = true},
    {.op = StoreCall::Op::kCheck, .name = "store check", .keys = Many::kAny, .polls = true},
    {.op = StoreCall::Op::kDeleteKey, .name = "store delete_key", .writes = true},
    {.op = StoreCall::Op::kNumKeys, .name = "store num_keys", .keys = Many::kAny, .polls = true},
    {.op = StoreCall::Op::kAppend, .name = "store append", .values = Many::kOne, .writes = true},
    {.op = StoreCall::Op::kMultiGet, .name = "store multi_get", .keys = Many::kAny, .waits = true},
    {.op = StoreCall::Op::kMultiSet,
     .name = "store multi_set",
     .keys = Many::kAny,
     .values = Many::kEachKey,
     .writes = true},
    {.op = StoreCall::Op::kQueuePush, .name = "store queue_push", .values = Many::kOne, .writes = true},
    {.op = StoreCall::Op::kQueuePop, .name = "store queue_pop", .waits = true, .writes = true},
    {.op = StoreCall::Op::kQueueLen, .name = "store queue_len", .polls = true},
    {.op = StoreCall::Op::kListKeys, .name = "store list_keys", .keys = Many::kAny},
    {.op = StoreCall::Op::kWatchKey, .name = "store watch_key"},
};

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].op != static_cast<StoreCall::Op>(i)) return false;
  }
  return true;
}
static_assert(rows_are_in_order() && std::size(kRows) == static_cast<size_t>(StoreCall::Op::kWatchKey) + 1);

const Row& row_of(StoreCall::Op op) {
  static constexpr Row kUnknown = {.op = {}, .name = "store ?"};
  return op <= StoreCall::Op::kWatchKey ? kRows[static_cast<size_t>(op)] : kUnknown;
}

bool is_many(Many many, size_t have, size_t keys) {
  switch (many) {
    case Many::kOne:
      return have == 1;
    case Many::kAny:
      return true;
    case Many::kEachKey:
      return have == keys;
  }
  return false;
}

}  // namespace

bool internal::is_well_formed(const StoreCall& call) {
  const Row& row = row_of(call.op);
  return is_many(row.keys, call.keys.size(), call.keys.size()) &&
         is_many(row.values, call.values.size(), call.keys.size()) && call.op <= StoreCall::Op::kWatchKey &&
         (call.op != StoreCall::Op::kWatchKey || (call.watch != nullptr && *call.watch != nullptr)) &&
         (!call.timeout.has_value() || *call.timeout >= absl::ZeroDuration());
}

absl::Status internal::why_malformed(std::string_view kind, const StoreCall& call) {
  const Row& row = row_of(call.op);
  if (call.op > StoreCall::Op::kWatchKey)
    return invalid_argument(sv(kind), ": StoreCall::op has the unknown value ", static_cast<int>(call.op));
  const std::string who = absl::StrCat(sv(kind), " ", sv(short_name(row.name)));
  if (call.timeout.has_value() && *call.timeout < absl::ZeroDuration()) return negative_timeout(who, *call.timeout);
  if (!is_many(row.keys, call.keys.size(), call.keys.size())) {
    return store_error(who, absl::StrCat("have ", call.keys.size(), " keys, want one"));
  }
  if (row.values == Many::kEachKey && call.keys.size() != call.values.size()) {
    return store_error(
        who, absl::StrCat("have ", call.values.size(), " values, want one for each of ", call.keys.size(), " keys"));
  }
  if (!is_many(row.values, call.values.size(), call.keys.size())) {
    return store_error(who, absl::StrCat("have ", call.values.size(), " values, want one"));
  }
  return invalid_argument(who, ": StoreCall::watch is null, want a callback");
}

const char* StoreCall::name() const { return row_of(op).name; }
bool StoreCall::waits() const { return row_of(op).waits; }
bool StoreCall::writes() const { return row_of(op).writes; }

internal::StoreState& internal::StoreAccess::state(const Store& store) { return *store.state_; }

absl::StatusOr<StoreReply> internal::StoreAccess::submit(Store& store, StoreCall&& call) {
  return store.submit(StoreCall(call));
}

StringList::StringList(std::initializer_list<std::string_view> items) { assign(items); }

std::string_view* StringList::room_for_many() {
  many_.resize(size_);
  return many_.data();
}

Store::Store(Scheduler* scheduler) : state_(internal::make_kept<internal::StoreState>(scheduler)) {}

namespace {

const Store& given(const Store* wrapped, CodeSite code) {
  require(wrapped, {.rank = -1, .group = {}, .op = "store wrap"}, code, "Store: the wrapped store");
  return *wrapped;
}

}  // namespace

Store::Store(const Store* wrapped, CodeSite code) : state_(given(wrapped, code).state_) {}

Store::~Store() = default;

absl::Duration Store::own_timeout() const { return state_->timeout(); }

void Store::enter(const char* op, std::string_view key, CodeSite code, bool polls) const {
  const WorldRef& own = state_->world();
  if (own.foreign() || is_forked_thread()) [[unlikely]]
    enter_from_elsewhere(op, code);
  const Task* const task = Task::current();
  Scheduler* const world = task != nullptr ? task->scheduler : nullptr;
  if (world == nullptr) return;
  const Site site{.what = op, .code = code, .detail = key};
  polls ? world->poll(site) : world->point(site);
  if (world->aborted()) [[unlikely]]
    fail(world->abort_cause(), op);
}

void Store::enter_from_elsewhere(const char* op, CodeSite code) const {
  const WorldRef& world = state_->world();
  const auto called = [&] { return CalledHandle{.rank = -1, .handle = std::string(kind()), .op = op, .code = code}; };
  CallScope::check(world, called, /*after_run=*/true);
  CallScope::check_thread(world, called);
  if (const absl::Status cause = state_->abort_cause(); !cause.ok()) fail(cause, op);
}

void Store::fail(const absl::Status& status, const char* op) const {
  const Task* const task = Task::current();
  const int rank = task != nullptr ? task->info.rank : -1;
  const ErrorOrigin origin{.rank = rank, .group = {}, .op = op};
  // The cause of an abort names its own rank.
  if (rank < 0 || state_->abort_cause() == status) throw_dist_error(status, origin);
  throw_dist_error(prefixed(status, "rank ", rank, ", "), origin);
}

void Store::check_arguments(const StoreCall& call) const {
  if (is_well_formed(call)) [[likely]]
    return;
  fail(at_line(why_malformed(kind(), call), call.code), call.name());
}

absl::StatusOr<StoreReply> Store::submit(StoreCall&& call) {
  const LibraryScope library;
  const Row& row = row_of(call.op);
  if (call.keys.size() > 1) [[unlikely]] {
    enter(row.name, keys_text(call.keys), call.code, row.polls);
  } else {
    enter(row.name, call.key(), call.code, row.polls);
  }
  if (call.timeout.has_value() || call.op == StoreCall::Op::kMultiSet) check_arguments(call);
  call.way.at_point = this;
  absl::StatusOr<StoreReply> reply = execute(call);
  if (!reply.ok()) [[unlikely]]
    fail(reply.status() == state_->abort_cause() ? reply.status() : at_line(reply.status(), call.code), row.name);
  return reply;
}

void Store::set(std::string_view key, std::string_view value, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kSet, .keys = {&key, 1}, .values = {&value, 1}, .code = code});
}

std::string Store::get(std::string_view key, CodeSite code) {
  return std::move(submit({.op = StoreCall::Op::kGet, .keys = {&key, 1}, .code = code})->value);
}

int64_t Store::add(std::string_view key, int64_t amount, CodeSite code) {
  return submit({.op = StoreCall::Op::kAdd, .keys = {&key, 1}, .amount = amount, .code = code})->number;
}

std::string Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               CodeSite code) {
  return std::move(submit({.op = StoreCall::Op::kCompareSet,
                           .keys = {&key, 1},
                           .values = {&desired, 1},
                           .expected = expected,
                           .code = code})
                       ->value);
}

void Store::wait(const StringList& keys, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kWait, .keys = keys, .code = code});
}

void Store::wait(const StringList& keys, absl::Duration timeout, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kWait, .keys = keys, .timeout = timeout, .code = code});
}

bool Store::check(const StringList& keys, CodeSite code) {
  return submit({.op = StoreCall::Op::kCheck, .keys = keys, .code = code})->found;
}

bool Store::delete_key(std::string_view key, CodeSite code) {
  return submit({.op = StoreCall::Op::kDeleteKey, .keys = {&key, 1}, .code = code})->found;
}

int64_t Store::num_keys(CodeSite code) { return submit({.op = StoreCall::Op::kNumKeys, .code = code})->number; }

void Store::append(std::string_view key, std::string_view value, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kAppend, .keys = {&key, 1}, .values = {&value, 1}, .code = code});
}

std::vector<std::string> Store::multi_get(const StringList& keys, CodeSite code) {
  return std::move(submit({.op = StoreCall::Op::kMultiGet, .keys = keys, .code = code})->values);
}

void Store::multi_set(const StringList& keys, const StringList& values, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kMultiSet, .keys = keys, .values = values, .code = code});
}

void Store::queue_push(std::string_view key, std::string_view value, CodeSite code) {
  (void)submit({.op = StoreCall::Op::kQueuePush, .keys = {&key, 1}, .values = {&value, 1}, .code = code});
}

std::string Store::queue_pop(std::string_view key, bool block, CodeSite code) {
  absl::StatusOr<StoreReply> reply =
      submit({.op = StoreCall::Op::kQueuePop, .keys = {&key, 1}, .block = block, .code = code});
  if (!reply->found) {
    fail(at_line(internal::empty_queue_error(kind(), key), code), "store queue_pop");
  }
  return std::move(reply->value);
}

int64_t Store::queue_len(std::string_view key, CodeSite code) {
  return submit({.op = StoreCall::Op::kQueueLen, .keys = {&key, 1}, .code = code})->number;
}

std::vector<std::string> Store::list_keys(CodeSite code) {
  return std::move(submit({.op = StoreCall::Op::kListKeys, .code = code})->values);
}

void Store::watch_key(std::string_view key, WatchCallback callback, CodeSite code) {
  require(callback, {.rank = -1, .group = {}, .op = "store watch_key"}, code, sv(kind()), " watch_key: callback");
  (void)submit({.op = StoreCall::Op::kWatchKey, .keys = {&key, 1}, .code = code, .watch = &callback});
}

void Store::set_timeout(absl::Duration timeout, CodeSite code) {
  if (timeout < absl::ZeroDuration())
    fail(at_line(internal::negative_timeout(absl::StrCat(sv(kind()), " set_timeout"), timeout), code),
         "store set_timeout");
  enter("store set_timeout", "", code, /*polls=*/false);
  state_->set_timeout(timeout);
}

absl::Duration Store::timeout(CodeSite code) const {
  enter("store timeout", "", code, /*polls=*/false);
  return state_->timeout();
}

}  // namespace rankloom
