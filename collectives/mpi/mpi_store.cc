#include "collectives/mpi/mpi_store.h"

#include <climits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/wire.h"
#include "fake_store/store_state.h"
#include "fake_store/store_text.h"
#include "rankloom/error.h"
#include "rankloom/work.h"
#include "sim/base/dist_error.h"
#include "sim/base/text.h"

namespace rankloom::internal {

int64_t most_store_bytes = INT_MAX - 4095;

namespace {

// A call of the store, as it travels.
struct TravellingCall {
  StoreCall::Op op = StoreCall::Op::kGet;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  std::string expected;
  int64_t amount = 0;
  bool block = true;
  std::string barrier_name;
  std::optional<StoreBarrier> barrier;
  std::string file;  // of the caller's line
  int line = 0;
};

}  // namespace

std::string written_call(const StoreCall& call) {
  WireWriter out;
  out.number(call.op).number(static_cast<uint32_t>(call.keys.size()));
  for (const std::string_view key : call.keys) out.text(key);
  out.number(static_cast<uint32_t>(call.values.size()));
  for (const std::string_view value : call.values) out.text(value);
  out.text(call.expected).number(call.amount).number(call.block).number(call.way.barrier != nullptr);
  if (const StoreBarrier* const barrier = call.way.barrier; barrier != nullptr)
    out.text(barrier->name).number(barrier->rank).number(barrier->size);
  out.text(call.code.file != nullptr ? call.code.file : "").number(call.code.line);
  return out.take();
}

namespace {

std::optional<TravellingCall> read(std::string_view bytes) {
  WireReader in(bytes);
  TravellingCall call;
  call.op = in.number<StoreCall::Op>();
  for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) call.keys.push_back(in.text());
  for (auto left = in.number<uint32_t>(); left > 0 && in.ok(); --left) call.values.push_back(in.text());
  call.expected = in.text();
  call.amount = in.number<int64_t>();
  call.block = in.number<bool>();
  if (in.number<bool>()) {
    call.barrier_name = in.text();
    const auto rank = in.number<int>();
    const auto size = in.number<int>();
    call.barrier = {.name = {}, .rank = rank, .size = size};
  }
  call.file = in.text();
  call.line = in.number<int>();
  if (!in.ok()) return std::nullopt;
  return call;
}

// `code`: the caller's line.
absl::StatusOr<StoreReply> execute(Store& store, const TravellingCall& call, std::optional<absl::Duration> timeout,
                                   CodeSite code) {
  std::optional<StoreBarrier> barrier = call.barrier;
  if (barrier.has_value()) barrier->name = call.barrier_name;
  const std::vector<std::string_view> keys(call.keys.begin(), call.keys.end());
  const std::vector<std::string_view> values(call.values.begin(), call.values.end());
  return store.execute({.op = call.op,
                        .keys = keys,
                        .values = values,
                        .expected = call.expected,
                        .amount = call.amount,
                        .block = call.block,
                        .timeout = timeout,
                        .code = code,
                        .way = {.barrier = barrier.has_value() ? &*barrier : nullptr}});
}

// Looks once, whatever the call waits for.
absl::StatusOr<StoreReply> look(Store& store, const TravellingCall& call) {
  return execute(store, call, absl::ZeroDuration(), CodeSite());
}

// "MpiStore set key "a": have 3000000000 bytes of keys and values, want at most 2147479552 in one call over MPI".
absl::Status too_large(StoreCall::Op op, std::string_view key, int64_t bytes, const char* of, const char* in) {
  const StoreCall named{.op = op};
  return store_error(
      absl::StrCat("MpiStore ", sv(short_name(named.name())), " key ", quote(key)),
      absl::StrCat("have ", bytes, " bytes of ", of, ", want at most ", most_store_bytes, " in one ", in, " over MPI"));
}

// Of each text the messages have its length, too.
template <typename Texts>
int64_t bytes_of(const Texts& texts) {
  int64_t bytes = 0;
  for (const auto& text : texts) bytes += static_cast<int64_t>(sizeof(uint64_t) + text.size());
  return bytes;
}

}  // namespace

absl::Status fits(const StoreCall& call) {
  if (!is_well_formed(call)) return why_malformed("MpiStore", call);
  const int64_t bytes = bytes_of(call.keys) + bytes_of(call.values) + static_cast<int64_t>(call.expected.size());
  if (bytes > most_store_bytes) return too_large(call.op, call.key(), bytes, "keys and values", "call");
  return absl::OkStatus();
}

absl::Status refused_watch(const StoreCall& call) {
  return make_error(ErrorKind::kStoreError, "MpiStore watch_key key \"", sv(call.key()),
                    "\": no process hears of the changes of others, want get() or wait()");
}

void write_reply(const absl::StatusOr<StoreReply>& reply, WireWriter* out) {
  write_status(reply.status(), out);
  if (!reply.ok()) return;
  out->text(reply->value);
  write_texts(reply->values, out);
  out->number(reply->number).number(reply->found);
}

absl::StatusOr<StoreReply> read_reply(WireReader* in) {
  if (absl::Status error = read_status(in); !error.ok()) return error;
  StoreReply reply;
  reply.value = in->text();
  reply.values = read_texts(in);
  reply.number = in->number<int64_t>();
  reply.found = in->number<bool>();
  return reply;
}

absl::StatusOr<StoreReply> execute_written(Store& store, std::string_view bytes,
                                           std::optional<absl::Duration> timeout) {
  const std::optional<TravellingCall> call = read(bytes);
  if (!call.has_value()) {
    return make_error(ErrorKind::kStoreError, "MpiStore: a call of another process cannot be read, of ", bytes.size(),
                      " bytes");
  }
  absl::StatusOr<StoreReply> reply = execute(store, *call, timeout, {kept_text(call->file), call->line});
  if (!reply.ok()) return reply;
  const int64_t most = bytes_of(reply->values) + static_cast<int64_t>(reply->value.size());
  const std::string_view key = call->keys.empty() ? std::string_view() : call->keys[0];
  if (most > most_store_bytes) return too_large(call->op, key, most, "values", "reply");
  return reply;
}

absl::StatusOr<StoreReply> MpiStore::execute(const StoreCall& call) {
  if (call.op == StoreCall::Op::kWatchKey) return refused_watch(call);
  return engine_.store_call(call, own_timeout());
}

absl::StatusOr<StoreReply> MpiEngine::store_call(const StoreCall& call, absl::Duration own_timeout) {
  const absl::Duration timeout = call.timeout.value_or(own_timeout);
  // The same for all ranks, though rank 0's call does not travel: its value may, to another one.
  if (absl::Status fit = fits(call); !fit.ok()) return fit;
  if (rank_ == 0) {
    StoreCall mine = call;
    mine.timeout = timeout;
    absl::StatusOr<StoreReply> reply = keys_of_all_->execute(mine);
    if (call.writes()) wake();  // others may wait for the key
    return reply;
  }
  absl::StatusOr<StoreReply> reply;
  Promise answered(&world_->scheduler(), rank_);
  const std::shared_ptr<WorkState> work = WorkState::shared(answered.work());
  uint64_t number = 0;
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    number = ++store_number_;
    store_waits_[number] = {.work = work, .reply = &reply};
    WireWriter out = message(Kind::kStoreCall);
    out.number(number)
        .number(timeout == absl::InfiniteDuration() ? int64_t{-1} : absl::ToInt64Nanoseconds(timeout))
        .text(written_call(call));
    tell(0, std::move(out));
  });
  drive([&] { return work->is_over(); }, kDriveNs);
  const absl::Status waited = work->wait(absl::InfiniteDuration(), /*timeout_is_default=*/true, call.code);
  locked([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { store_waits_.erase(number); });
  if (!waited.ok()) return waited;
  return reply;
}

void MpiEngine::handle_store(Kind kind, int from, WireReader* in) {
  const auto number = in->number<uint64_t>();
  if (kind == Kind::kStoreCall) {
    const auto timeout_ns = in->number<int64_t>();
    const absl::Duration timeout = timeout_ns < 0 ? absl::InfiniteDuration() : absl::Nanoseconds(timeout_ns);
    const Deadline deadline = Deadline::after(monotonic_ns(), timeout, /*weak=*/true);
    store_calls_.push_back(
        {.from = from, .number = number, .call = in->text(), .deadline_ns = deadline.at_ns, .timeout = timeout});
    serve_store();
    return;
  }
  const auto at = store_waits_.find(number);
  if (at == store_waits_.end()) return;  // the rank waits no longer
  *at->second.reply = read_reply(in);
  finished(at->second.work, absl::OkStatus());
}

void MpiEngine::answer_store(int from, uint64_t number, const absl::StatusOr<StoreReply>& reply) {
  WireWriter out = message(Kind::kStoreReply);
  out.number(number);
  write_reply(reply, &out);
  tell(from, std::move(out));
}

// Those that wait are looked at whenever something may have changed, in the order in which they came: the first of two
// that wait for a queue gets its value.
bool MpiEngine::serve_store() {
  bool moved = false;
  const int64_t now_ns = monotonic_ns();
  for (auto waiting = store_calls_.begin(); waiting != store_calls_.end();) {
    const std::optional<TravellingCall> call = read(waiting->call);
    if (!call.has_value())
      end_job(absl::StrCat("a call of rank ", waiting->from, " on the store cannot be read, of ", waiting->call.size(),
                           " bytes"));
    absl::StatusOr<StoreReply> reply = look(*keys_of_all_, *call);
    if (!reply.ok() && error_kind(reply.status()) == ErrorKind::kTimeout) {
      if (now_ns < waiting->deadline_ns) {
        ++waiting;
        continue;
      }
      std::string text = message_of(reply.status());
      constexpr std::string_view kNoTime = "timed out after 0";
      if (const size_t at = text.find(kNoTime); at != std::string::npos)
        text.replace(at, kNoTime.size(), absl::StrCat("timed out after ", absl::FormatDuration(waiting->timeout)));
      reply = make_error(ErrorKind::kTimeout, text);
    }
    if (reply.ok()) {
      const int64_t bytes = bytes_of(reply->values) + static_cast<int64_t>(reply->value.size());
      const std::string_view key = call->keys.empty() ? std::string_view() : call->keys[0];
      if (bytes > most_store_bytes) reply = too_large(call->op, key, bytes, "values", "reply");
    }
    answer_store(waiting->from, waiting->number, reply);
    waiting = store_calls_.erase(waiting);
    moved = true;
  }
  return moved;
}

}  // namespace rankloom::internal
