#include "collectives/mpi/wire.h"

#include <bit>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/blame.h"
#include "sim/base/dist_error.h"
#include "sim/base/fnv.h"
#include "sim/base/lock_order.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

uint64_t text_hash(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = fnv_step(hash, static_cast<unsigned char>(c));
  return fnv_step(hash, text.size());
}

// FNV of whole words moves high bits nowhere: neighbours must not cancel out.
uint64_t mixed(uint64_t hash, uint64_t word) { return std::rotl(fnv_step(hash, word ^ (word >> 32)), 29); }

// The value of the field, as CallFieldRow::equal compares it.
uint64_t field_hash(CallField field, const CollectiveCall& call) {
  uint64_t hash = mixed(kFnvBasis, static_cast<uint64_t>(field));
  switch (field) {
    case CallField::kOp:
      return mixed(hash, static_cast<uint64_t>(call.op));
    case CallField::kReduceOp:
      return mixed(mixed(hash, static_cast<uint64_t>(call.reduce_op.kind())),
                   std::bit_cast<uint64_t>(call.reduce_op.factor()));
    case CallField::kOrder:
      hash = mixed(hash, static_cast<uint64_t>(call.order.kind));
      return mixed(mixed(hash, call.order.seed), call.order.accumulate_in_float ? 1 : 0);
    case CallField::kRoot:
      return mixed(hash, static_cast<uint64_t>(call.root));
    case CallField::kDType:
      for (const TensorView& tensor : common_tensors(call)) hash = mixed(hash, static_cast<uint64_t>(tensor.dtype()));
      return hash;
    case CallField::kDevice:
      return hash;  // always the CPU: a group over MPI takes no other
    case CallField::kShape:
      for (const TensorView& tensor : common_tensors(call)) hash = mixed(hash, static_cast<uint64_t>(tensor.numel()));
      return hash;
    case CallField::kTag:
      return mixed(hash, static_cast<uint64_t>(call.tag));
    case CallField::kLabel:
      return text_hash(hash, call.label);
    case CallField::kParts:
      for (const CollectiveCall* part : collective_parts(call)) hash = mixed(hash, likeness_of(*part));
      return hash;
    case CallField::kRanks:
      if (call.way.request == nullptr) return hash;
      hash = mixed(hash, 1 + static_cast<uint64_t>(call.way.request->kind));
      for (const int rank : call.way.request->ranks) hash = mixed(hash, static_cast<uint64_t>(rank));
      return hash;
  }
  return hash;
}

void write_tensors(const TensorList& tensors, WireWriter* out) {
  out->number(static_cast<int32_t>(tensors.size()));
  for (const TensorView& tensor : tensors) {
    out->number(tensor.dtype()).number(static_cast<int32_t>(tensor.sizes().size()));
    for (const int64_t size : tensor.sizes()) out->number(size);
  }
}

TensorList read_tensors(WireReader* in) {
  // Rules and comparisons of calls look at shapes; no byte is read.
  static char nowhere;
  const auto count = in->number<int32_t>();
  std::vector<TensorView> tensors;
  for (int32_t i = 0; i < count && in->ok(); ++i) {
    const auto dtype = in->number<DType>();
    const auto dims = in->number<int32_t>();
    std::vector<int64_t> sizes;
    for (int32_t d = 0; d < dims && in->ok(); ++d) sizes.push_back(in->number<int64_t>());
    tensors.push_back(TensorView(&nowhere, dtype, Dims(sizes.begin(), sizes.end())));
  }
  if (tensors.size() == 1) return tensors[0];
  return tensors;
}

template <typename List>
void write_numbers(const List& list, WireWriter* out) {
  out->number(static_cast<int32_t>(list.size()));
  for (const auto number : list) out->number(static_cast<int64_t>(number));
}

template <typename T>
std::vector<T> read_numbers(WireReader* in) {
  const auto count = in->number<int32_t>();
  std::vector<T> list;
  for (int32_t i = 0; i < count && in->ok(); ++i) list.push_back(static_cast<T>(in->number<int64_t>()));
  return list;
}

void write_call(const CollectiveCall& call, WireWriter* out) {
  out->number(call.op).number(call.reduce_op).number(call.order).number(call.root).number(call.peer).number(call.tag);
  out->number(call.seq);
  write_tensors(call.inputs, out);
  write_tensors(call.outputs, out);
  write_numbers(call.in_splits.get(), out);
  write_numbers(call.out_splits.get(), out);
  out->text(call.label).text(call.code.file != nullptr ? call.code.file : "").number(call.code.line);
  const GroupRequest* const request = call.way.request;
  out->number(request != nullptr);
  if (request != nullptr) {
    out->number(request->kind).number(request->color).number(request->key);
    write_numbers(request->ranks, out);
  }
  out->number(static_cast<int32_t>(call.parts.size()));
  for (const CollectiveCall& part : call.parts) write_call(part, out);
}

void read_call(WireReader* in, const Group& parent, DescribedCall* made) {
  CollectiveCall& call = made->call;
  call.op = in->number<OpType>();
  call.reduce_op = in->number<ReduceOp>();
  call.order = in->number<ReduceOp::Order>();
  call.root = in->number<int>();
  call.peer = in->number<int>();
  call.tag = in->number<int>();
  call.seq = in->number<int64_t>();
  call.inputs = read_tensors(in);
  call.outputs = read_tensors(in);
  call.in_splits = read_numbers<int64_t>(in);
  call.out_splits = read_numbers<int64_t>(in);
  call.label = in->text();
  made->file = in->text();
  call.code.line = in->number<decltype(call.code.line)>();
  call.code.file = made->file.c_str();
  if (in->number<bool>()) {
    made->request.parent = &parent;
    made->request.kind = in->number<GroupRequest::Kind>();
    made->request.color = in->number<int>();
    made->request.key = in->number<int>();
    made->request.ranks = read_numbers<int>(in);
    call.way.request = &made->request;
  }
  const auto parts = in->number<int32_t>();
  for (int32_t i = 0; i < parts && in->ok(); ++i) {
    made->parts.push_back(std::make_unique<DescribedCall>());
    read_call(in, parent, made->parts.back().get());
    call.parts.mutable_get().push_back(made->parts.back()->call);
  }
}

}  // namespace

const char* kept_text(std::string text) {
  static OrderedMutex mu(LockLevel::kMpi);
  static auto* const texts = new std::set<std::string>;
  OrderedMutexLock lock(&mu);
  return texts->insert(std::move(text)).first->c_str();
}

void write_code(CodeSite code, WireWriter* out) {
  out->text(code.file != nullptr ? code.file : "").number(static_cast<int32_t>(code.line));
}
CodeSite read_code(WireReader* in) {
  std::string file = in->text();
  return {kept_text(std::move(file)), in->number<int32_t>()};
}

void write_ints(const std::vector<int>& values, WireWriter* out) {
  out->number(static_cast<uint32_t>(values.size()));
  for (const int value : values) out->number(value);
}
std::vector<int> read_ints(WireReader* in) {
  std::vector<int> values;
  for (auto left = in->number<uint32_t>(); left > 0 && in->ok(); --left) values.push_back(in->number<int>());
  return values;
}

void write_texts(const std::vector<std::string>& texts, WireWriter* out) {
  out->number(static_cast<uint64_t>(texts.size()));
  for (const std::string& text : texts) out->text(text);
}

std::vector<std::string> read_texts(WireReader* in) {
  std::vector<std::string> texts;
  for (auto left = in->number<uint64_t>(); left > 0 && in->ok(); --left) texts.push_back(in->text());
  return texts;
}

void write_status(const absl::Status& status, WireWriter* out) {
  out->number(status.ok());
  if (status.ok()) return;
  out->number(error_kind(status)).text(message_of(status));
  const std::optional<Blame> blame = blame_of(status);
  out->number(blame.has_value());
  if (!blame.has_value()) return;
  out->number(blame->rank).number(error_kind(blame->status)).text(message_of(blame->status));
}

absl::Status read_status(WireReader* in) {
  if (in->number<bool>() || !in->ok()) return absl::OkStatus();
  const auto kind = in->number<ErrorKind>();
  absl::Status status = make_error(kind, in->text());
  if (!in->number<bool>()) return status;
  const int rank = in->number<int>();
  const auto blamed = in->number<ErrorKind>();
  return blamed_as(std::move(status), blamed_on(rank, make_error(blamed, in->text())));
}

void write_outcome(const RunReport::Outcome& outcome, WireWriter* out) {
  out->number(outcome.state).text(outcome.text);
  absl::Status failure;
  if (outcome.exception != nullptr) {
    failure = make_error(ErrorKind::kRankFailed, outcome.text);
    try {
      std::rethrow_exception(outcome.exception);
    } catch (const DistError& error) {
      failure = error.status();
    } catch (...) {  // an exception of the program
    }
  }
  write_status(failure, out);
}

RunReport::Outcome read_outcome(int rank, WireReader* in) {
  RunReport::Outcome outcome;
  outcome.state = in->number<RunReport::Outcome::State>();
  outcome.text = in->text();
  if (const absl::Status failure = read_status(in); !failure.ok())
    outcome.exception = std::make_exception_ptr(DistError(failure, {.rank = rank, .group = {}, .op = {}}));
  return outcome;
}

uint64_t likeness_of(const CollectiveCall& call) {
  const OpRow& row = op_row(call.op);
  uint64_t hash = mixed(kFnvBasis, static_cast<uint64_t>(call.op));
  for (const CallFieldRow& field : kCallFields) {
    if (row.compares(field.field)) hash = mixed(hash, field_hash(field.field, call));
  }
  return hash;
}

std::string described(const CollectiveCall& call, const std::vector<std::string>& last_calls) {
  WireWriter out;
  write_call(call, &out);
  out.number(static_cast<int32_t>(last_calls.size()));
  for (const std::string& line : last_calls) out.text(line);
  return out.take();
}

std::unique_ptr<DescribedCall> call_described_by(std::string_view bytes, const Group& parent) {
  WireReader in(bytes);
  auto made = std::make_unique<DescribedCall>();
  read_call(&in, parent, made.get());
  for (auto left = in.number<int32_t>(); left > 0 && in.ok(); --left) made->last_calls.push_back(in.text());
  if (!in.ok() || static_cast<int>(made->call.op) >= kOpTypeCount) return nullptr;
  return made;
}

}  // namespace rankloom::internal
