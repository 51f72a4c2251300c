#include "world/operation_log.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {
namespace {

using Value = StoreOperation::Value;
using Op = StoreCall::Op;

constexpr size_t kShownBytes = 64;
constexpr size_t kShownKey = 200;

// The first bytes, without a part of a character at their end.
std::string first_bytes(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > most - 4 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end));
}

Value value_of(std::string_view bytes) {
  return {.shown = first_bytes(bytes, kShownBytes), .bytes = static_cast<int64_t>(bytes.size())};
}

template <typename Values>
Value values_of(const Values& values) {
  if (values.empty()) return {};
  Value all = value_of(values[0]);
  all.bytes = 0;
  for (const auto& value : values) all.bytes += static_cast<int64_t>(value.size());
  return all;
}

Value given_by(const StoreCall& call) {
  if (call.op == Op::kAdd) return value_of(absl::StrCat(call.amount));
  return values_of(call.values);
}

Value got_from(const StoreReply& reply, Op op) {
  switch (op) {
    case Op::kGet:
    case Op::kCompareSet:
      return value_of(reply.value);
    case Op::kQueuePop:
      return reply.found ? value_of(reply.value) : Value();
    case Op::kMultiGet:
      return values_of(reply.values);
    case Op::kAdd:
    case Op::kNumKeys:
    case Op::kQueueLen:
      return value_of(absl::StrCat(reply.number));
    case Op::kListKeys:
      return value_of(absl::StrCat(reply.values.size()));
    case Op::kCheck:
    case Op::kDeleteKey:
      return value_of(reply.found ? "true" : "false");
    case Op::kSet:
    case Op::kWait:
    case Op::kAppend:
    case Op::kMultiSet:
    case Op::kQueuePush:
    case Op::kWatchKey:
      return {};
  }
  return {};
}

}  // namespace

OperationLog::OperationLog(const Scheduler* scheduler, int calls)
    : scheduler_(scheduler),
      calls_(static_cast<size_t>(std::max(calls, 0))),
      operations_(std::min<size_t>(calls_, kMostStoreOperations)),
      mu_(scheduler, LockLevel::kRecorder) {}

int64_t OperationLog::step() const {
  return scheduler_->deterministic() ? static_cast<int64_t>(scheduler_->steps()) : -1;
}

void OperationLog::call_issued(int64_t record_id) {
  const size_t place = static_cast<size_t>(record_id) % calls_;
  if (place >= steps_.size()) steps_.resize(place + 1);
  steps_[place] = {.issued = step()};
}

void OperationLog::call_ended(int64_t record_id) { steps_[static_cast<size_t>(record_id) % calls_].ended = step(); }

OperationLog::Steps OperationLog::steps_of(int64_t record_id) const {
  return steps_[static_cast<size_t>(record_id) % calls_];
}

int64_t OperationLog::begin(const StoreCall& call) {
  StoreOperation begun{.op = call.name(),
                       .code = call.code,
                       .key = first_bytes(call.key(), kShownKey),
                       .keys = static_cast<int64_t>(call.keys.size()),
                       .given = given_by(call),
                       .got = {},
                       .begun_ns = scheduler_->now_ns(),
                       .begun_step = step()};
  RankMutexLock lock(&mu_);
  const int64_t number = made_++;
  if (operations_ == 0) return number;
  const size_t place = static_cast<size_t>(number) % operations_;
  if (place == ring_.size()) {
    ring_.push_back(std::move(begun));
  } else {
    ring_[place] = std::move(begun);
  }
  return number;
}

void OperationLog::end(int64_t number, const StoreCall& call, const absl::StatusOr<StoreReply>& reply) {
  Value got = reply.ok() ? got_from(*reply, call.op) : Value();
  const int64_t now_ns = scheduler_->now_ns();
  RankMutexLock lock(&mu_);
  if (number + static_cast<int64_t>(operations_) < made_ || operations_ == 0) return;  // others took its place
  StoreOperation& ended = ring_[static_cast<size_t>(number) % operations_];
  ended.got = std::move(got);
  ended.state = reply.ok() ? StoreOperation::State::kDone : StoreOperation::State::kFailed;
  ended.ended_ns = now_ns;
  ended.ended_step = step();
}

OperationLog::StoreOperations OperationLog::store_operations() const {
  RankMutexLock lock(&mu_);
  StoreOperations all{.last = {}, .made = made_};
  const auto kept = static_cast<int64_t>(ring_.size());
  for (int64_t number = made_ - kept; number < made_; ++number)
    all.last.push_back(ring_[static_cast<size_t>(number) % operations_]);
  return all;
}

}  // namespace rankloom::internal
