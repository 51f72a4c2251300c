#include <algorithm>
#include <bit>
#include <map>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "collectives/ops/op_table.h"
#include "rankloom/records.h"
#include "rankloom/world.h"
#include "sim/base/text.h"

namespace rankloom {
namespace {

// ---- keys

// A key tells a kind of call from others: the words of its head, then the shapes and splits, each list with its length first.
// Nothing follows from their order but that of decode().
enum Head : size_t { kOp, kGroup, kReduceOp, kFactor, kRoot, kPeer, kTag, kFile, kLine, kInPlace, kHeadWords };
constexpr int64_t kCompute = -1;  // in place of an operation; then the index of its name

bool in_place(const CollectiveCall& call) {
  if (call.inputs.empty() || call.outputs.empty()) return false;
  const TensorView& a = call.inputs[0];
  const TensorView& b = call.outputs[0];
  if (a.data() == nullptr || b.data() == nullptr) return false;
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data());
  const auto begin_b = reinterpret_cast<uintptr_t>(b.data());
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

// Calls `word` with each word of the call's key until it returns false.
template <typename Word>
bool for_each_word(const CollectiveCall& call, int group, Word word) {
  const int64_t head[kHeadWords] = {static_cast<int64_t>(call.op),
                                    group,
                                    static_cast<int64_t>(call.reduce_op.kind()),
                                    std::bit_cast<int64_t>(call.reduce_op.factor()),
                                    call.root,
                                    call.peer,
                                    call.tag,
                                    static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.code.file)),
                                    call.code.line,
                                    in_place(call)};
  for (const int64_t one : head) {
    if (!word(one)) return false;
  }
  for (const TensorList* const list : {&call.inputs, &call.outputs}) {
    if (!word(list->size())) return false;
    for (const TensorView& tensor : *list) {
      if (!word(static_cast<int64_t>(tensor.dtype()) << 32 | static_cast<int64_t>(tensor.sizes().size()))) return false;
      for (const int64_t size : tensor.sizes()) {
        if (!word(size)) return false;
      }
    }
  }
  for (const std::vector<int64_t>* const splits : {&call.in_splits.get(), &call.out_splits.get()}) {
    if (!word(static_cast<int64_t>(splits->size()))) return false;
    for (const int64_t split : *splits) {
      if (!word(split)) return false;
    }
  }
  return true;
}

bool is_compute(const std::vector<int64_t>& key) { return key[kOp] == kCompute; }

void decode(const std::vector<int64_t>& key, RecordedCall& call) {
  call.op = static_cast<OpType>(key[kOp]);
  call.name = op_row(call.op).name;
  call.group = static_cast<int>(key[kGroup]);
  const auto reduce_kind = static_cast<ReduceOp::Kind>(key[kReduceOp]);
  call.reduce_op = reduce_kind == ReduceOp::Kind::kPremulSum ? ReduceOp::premul_sum(std::bit_cast<double>(key[kFactor]))
                                                             : ReduceOp(reduce_kind);
  call.root = static_cast<int>(key[kRoot]);
  call.peer = static_cast<int>(key[kPeer]);
  call.tag = static_cast<int>(key[kTag]);
  call.code = {reinterpret_cast<const char*>(static_cast<uintptr_t>(key[kFile])), static_cast<int>(key[kLine])};
  const int64_t* at = key.data() + kHeadWords;
  for (std::vector<RecordedCall::Tensor>* const list : {&call.inputs, &call.outputs}) {
    for (int64_t left = *at++; left > 0; --left) {
      const int64_t type = *at++;
      const int64_t dimensions = type & 0xffffffff;
      list->push_back({.dtype = static_cast<DType>(type >> 32), .sizes = Dims(at, at + dimensions)});
      at += dimensions;
    }
  }
  for (std::vector<int64_t>* const splits : {&call.in_splits, &call.out_splits}) {
    const int64_t count = *at++;
    splits->assign(at, at + count);
    at += count;
  }
}

// What a call holds until it is waited for. In place, one memory is input and output.
int64_t buffer_bytes(const CollectiveCall& call) {
  int64_t inputs = 0;
  int64_t outputs = 0;
  for (const TensorView& tensor : call.inputs) inputs += static_cast<int64_t>(tensor.bytes());
  for (const TensorView& tensor : call.outputs) outputs += static_cast<int64_t>(tensor.bytes());
  const bool one_buffer =
      call.op == OpType::kAllReduce || call.op == OpType::kAllReduceCoalesced || call.op == OpType::kReduce;
  return one_buffer || in_place(call) ? std::max(inputs, outputs) : inputs + outputs;
}

int64_t sum_of_bytes(const std::vector<RecordedCall::Tensor>& tensors) {
  int64_t sum = 0;
  for (const RecordedCall::Tensor& tensor : tensors) sum += tensor.bytes();
  return sum;
}

// "1.25 GB".
std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

}  // namespace

int64_t RecordedCall::Tensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

int64_t RecordedCall::input_bytes() const { return sum_of_bytes(inputs); }
int64_t RecordedCall::output_bytes() const { return sum_of_bytes(outputs); }

// ---- works

struct CallRecord::Owner {
  CallRecord* record;  // null: it is gone
};

class CallRecord::RecordedWork final : public WorkState {
 public:
  explicit RecordedWork(std::shared_ptr<Owner> owner) : owner_(std::move(owner)) { complete(absl::OkStatus()); }
  ~RecordedWork() override {
    if (owner_->record != nullptr) owner_->record->settle(*this);
  }
  absl::Status wait(absl::Duration, bool, CodeSite) override {
    if (owner_->record != nullptr) owner_->record->waited(*this);
    return absl::OkStatus();
  }
  const char* op() const override { return op_row(type).name; }
  int64_t seq() const override { return number; }

  // Of the call that it stands for.
  OpType type = OpType::kBarrier;
  int64_t number = -1;
  size_t first = 0;  // entries [first, last)
  size_t last = 0;
  int64_t buffer_bytes = 0;  // 0 once settled
  int64_t end_ns = 0;
  bool is_waited = false;

 private:
  const std::shared_ptr<Owner> owner_;
};

CallRecord::CallRecord(CostModel model) : model_(std::move(model)), owner_(std::make_shared<Owner>(Owner{this})) {}

CallRecord::~CallRecord() { owner_->record = nullptr; }

void CallRecord::settle(RecordedWork& work) { live_bytes_ -= std::exchange(work.buffer_bytes, 0); }

void CallRecord::waited(RecordedWork& work) {
  if (std::exchange(work.is_waited, true)) return;
  settle(work);
  for (size_t i = work.first; i < work.last && i < size_; ++i) entry(i).waited_before = static_cast<uint32_t>(size_);
  now_ns_ = std::max(now_ns_, work.end_ns);
}

// ---- adding

int CallRecord::add_group(const std::shared_ptr<const Group>& group, int rank) {
  static constexpr std::string_view kMesh = "mesh_";
  const std::string_view description = group->description();
  groups_.push_back({.group = group,
                     .rank = rank,
                     .dim = std::string(description.starts_with(kMesh) ? description.substr(kMesh.size()) : "")});
  free_ns_.push_back(0);
  p2p_seq_.push_back(0);
  return static_cast<int>(groups_.size()) - 1;
}

uint32_t CallRecord::kind_of_key(std::vector<int64_t> key) {
  if (const auto at = kinds_by_key_.find(absl::MakeConstSpan(key)); at != kinds_by_key_.end()) return at->second;
  const auto kind = static_cast<uint32_t>(kinds_.size());
  kinds_.emplace_back().key = std::move(key);
  kinds_by_key_.emplace(absl::MakeConstSpan(kinds_.back().key), kind);
  return kind;
}

uint32_t CallRecord::kind_of(const CollectiveCall& call, int group) {
  const TensorList& tensors = call.outputs.empty() ? call.inputs : call.outputs;
  const uint64_t rough = reinterpret_cast<uintptr_t>(call.code.file) + static_cast<uint64_t>(call.code.line) * 7 +
                         static_cast<uint64_t>(call.op) * 31 + static_cast<uint64_t>(group) * 1031 +
                         (tensors.empty() ? 0 : static_cast<uint64_t>(tensors[0].numel()));
  uint32_t& recent = recent_[(rough * 0x9e3779b97f4a7c15U) >> 58];
  if (recent != kNever) {
    const std::vector<int64_t>& key = kinds_[recent].key;
    if (!is_compute(key)) {
      const int64_t* at = key.data();
      if (for_each_word(call, group, [&at](int64_t word) { return *at++ == word; })) return recent;
    }
  }
  std::vector<int64_t> key;
  for_each_word(call, group, [&key](int64_t word) {
    key.push_back(word);
    return true;
  });
  const size_t known = kinds_.size();
  recent = kind_of_key(std::move(key));
  if (kinds_.size() == known) return recent;
  Kind& kind = kinds_.back();
  const GroupInfo& info = groups_[static_cast<size_t>(group)];
  kind.payload = wire_payload(call, info.group->size());
  kind.buffer_bytes = buffer_bytes(call);
  kind.ring = wire_cost(WireAlgorithm::kRing, call.op, info.group->size(), kind.payload);
  kind.tree = wire_cost(WireAlgorithm::kTree, call.op, info.group->size(), kind.payload);
  if (const Link* const link = model_.link_of(info.dim); link != nullptr) {
    kind.duration_ns = absl::ToInt64Nanoseconds(model_.time(*link, call.op, info.group->size(), kind.payload));
  }
  return recent;
}

CallRecord::Entry& CallRecord::append(uint32_t kind, int64_t seq) {
  if (size_ == chunks_.size() * kChunk) chunks_.emplace_back(new Entry[kChunk]);
  Entry& added = entry(size_++);
  added = {.kind = kind,
           .batch = 0,
           .seq = seq,
           .issued_ns = now_ns_,
           .start_ns = now_ns_,
           .duration_ns = 0,
           .waited_before = kNever};
  return added;
}

CallRecord::Entry& CallRecord::issue(const CollectiveCall& call, int group, bool alone) {
  const uint32_t index = kind_of(call, group);
  Kind& kind = kinds_[index];
  int64_t seq = call.seq;
  if (seq < 0) seq = p2p_seq_[static_cast<size_t>(group)] += alone ? 1 : 0;
  Entry& added = append(index, seq);
  int64_t& free_ns = free_ns_[static_cast<size_t>(group)];
  added.start_ns = std::max(now_ns_, free_ns);
  added.duration_ns = kind.duration_ns;
  free_ns = added.start_ns + kind.duration_ns;
  end_ns_ = std::max(end_ns_, free_ns);
  ++kind.calls;
  kind.total_ns += kind.duration_ns;
  return added;
}

Work CallRecord::add(const CollectiveCall& call, int group) {
  if (last_work_ == nullptr || last_work_.use_count() > 1) {
    last_work_ = std::make_shared<RecordedWork>(owner_);
  } else {
    settle(*last_work_);
  }
  RecordedWork& work = *last_work_;
  work.type = call.op;
  work.number = call.seq;
  work.first = size_;
  work.is_waited = false;
  if (call.op != OpType::kCoalesced) {
    const Entry& added = issue(call, group, /*alone=*/true);
    work.buffer_bytes = kinds_[added.kind].buffer_bytes;
  } else {
    uint32_t batch = 1;
    bool first_message = true;
    for (const CollectiveCall& part : call.parts) {
      Entry& added = issue(part, group, std::exchange(first_message, first_message && part.seq >= 0));
      added.batch = batch++;
      work.buffer_bytes += kinds_[added.kind].buffer_bytes;
    }
  }
  work.last = size_;
  work.end_ns = free_ns_[static_cast<size_t>(group)];
  live_bytes_ += work.buffer_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return Work(last_work_);
}

void CallRecord::compute(absl::Duration duration, std::string_view name) {
  auto at = std::find(compute_names_.begin(), compute_names_.end(), name);
  if (at == compute_names_.end()) at = compute_names_.insert(at, std::string(name));
  const uint32_t kind = kind_of_key({kCompute, at - compute_names_.begin()});
  Entry& added = append(kind, -1);
  added.duration_ns = std::max(int64_t{0}, absl::ToInt64Nanoseconds(duration));
  now_ns_ += added.duration_ns;
  end_ns_ = std::max(end_ns_, now_ns_);
}

void CallRecord::clear() {
  chunks_.clear();
  size_ = 0;
  now_ns_ = end_ns_ = 0;
  std::fill(free_ns_.begin(), free_ns_.end(), 0);
  for (Kind& kind : kinds_) kind.calls = kind.total_ns = 0;
  // Works of forgotten calls have nothing to settle any more.
  owner_->record = nullptr;
  owner_ = std::make_shared<Owner>(Owner{this});
  last_work_ = nullptr;
  live_bytes_ = peak_bytes_ = 0;
}

// ---- reading

int64_t CallRecord::live_buffer_bytes() const {
  const bool settled = last_work_ == nullptr || last_work_.use_count() > 1;
  return live_bytes_ - (settled ? 0 : last_work_->buffer_bytes);
}

size_t CallRecord::memory_bytes() const {
  size_t bytes = chunks_.size() * (kChunk * sizeof(Entry) + sizeof(chunks_[0])) + kinds_.capacity() * sizeof(Kind) +
                 kinds_by_key_.capacity() * (sizeof(absl::Span<const int64_t>) + sizeof(uint64_t));
  for (const Kind& kind : kinds_) bytes += kind.key.capacity() * sizeof(int64_t);
  return bytes;
}

int CallRecord::global_rank() const { return groups_.empty() ? -1 : groups_[0].group->global_rank(groups_[0].rank); }
int CallRecord::world_size() const { return groups_.empty() ? 0 : groups_[0].group->size(); }

RecordedCall CallRecord::operator[](size_t index) const {
  const Entry& one = entry(index);
  const Kind& kind = kinds_[one.kind];
  RecordedCall call;
  call.issued = absl::Nanoseconds(one.issued_ns);
  call.start = absl::Nanoseconds(one.start_ns);
  call.duration = absl::Nanoseconds(one.duration_ns);
  if (is_compute(kind.key)) {
    call.is_compute = true;
    call.name = compute_names_[static_cast<size_t>(kind.key[1])];
    return call;
  }
  decode(kind.key, call);
  call.seq = one.seq;
  call.batch = one.batch == 0 ? -1 : static_cast<int64_t>(index) - (one.batch - 1);
  call.payload = kind.payload;
  call.ring = kind.ring;
  call.tree = kind.tree;
  call.waited_before = one.waited_before == kNever ? -1 : one.waited_before;
  return call;
}

std::vector<CallTotals> CallRecord::totals() const {
  std::map<std::pair<int, OpType>, CallTotals> sums;
  for (const Kind& kind : kinds_) {
    if (is_compute(kind.key) || kind.calls == 0) continue;
    const auto group = static_cast<int>(kind.key[kGroup]);
    const auto op = static_cast<OpType>(kind.key[kOp]);
    CallTotals& sum = sums[{group, op}];
    sum.op = op;
    sum.group = group;
    sum.calls += kind.calls;
    sum.payload += kind.payload * kind.calls;
    sum.ring.steps += kind.ring.steps * kind.calls;
    sum.ring.bytes += kind.ring.bytes * kind.calls;
    sum.tree.steps += kind.tree.steps * kind.calls;
    sum.tree.bytes += kind.tree.bytes * kind.calls;
    sum.time += absl::Nanoseconds(kind.total_ns);
  }
  std::vector<CallTotals> all;
  for (const auto& [key, sum] : sums) all.push_back(sum);
  return all;
}

int64_t CallRecord::calls() const {
  int64_t count = 0;
  for (const Kind& kind : kinds_) count += kind.calls;
  return count;
}

int64_t CallRecord::calls(OpType op) const {
  int64_t count = 0;
  for (const CallTotals& sum : totals()) count += sum.op == op ? sum.calls : 0;
  return count;
}

int64_t CallRecord::calls(OpType op, std::string_view group) const {
  int64_t count = 0;
  for (const CallTotals& sum : totals()) {
    const GroupInfo& info = groups_[static_cast<size_t>(sum.group)];
    if (sum.op != op) continue;
    if (info.label() == group || info.name() == group || info.group->description() == group) count += sum.calls;
  }
  return count;
}

std::string CallRecord::text() const {
  std::string text;
  for (const CallTotals& sum : totals()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", sum.calls, " x ", op_row(sum.op).name, " on ",
                    groups_[static_cast<size_t>(sum.group)].label());
  }
  return text.empty() ? "no calls" : text;
}

std::string CallRecord::table() const {
  std::string text = absl::StrFormat("%-12s %9s  %-32s %8s %11s %11s %11s %12s\n", "group", "ranks", "operation",
                                     "calls", "payload", "ring", "tree", "time");
  for (const CallTotals& sum : totals()) {
    const GroupInfo& info = groups_[static_cast<size_t>(sum.group)];
    absl::StrAppendFormat(&text, "%-12s %9d  %-32s %8d %11s %11s %11s %12s\n", info.label(), info.group->size(),
                          op_row(sum.op).name, sum.calls, bytes_text(sum.payload), bytes_text(sum.ring.bytes),
                          bytes_text(sum.tree.bytes), absl::StrFormat("%.3f ms", absl::ToDoubleMilliseconds(sum.time)));
  }
  return text;
}

// ---- real worlds

namespace {

OpType op_named(absl::string_view name) {
  for (const OpRow& row : kOps) {
    if (name == row.name) return row.op;
  }
  return OpType::kCoalesced;
}

// The call as far as the flight recorder knows it.
CollectiveCall call_of(const FlightEntry& entry) {
  CollectiveCall call;
  call.op = op_named(entry.op);
  call.seq = entry.seq;
  call.root = entry.root;
  call.peer = entry.peer;
  call.code = entry.code;
  size_t at = 0;
  std::vector<TensorView> lists[2];
  for (int i = 0; i < entry.inputs + entry.outputs; ++i) {
    Dims sizes;
    const int64_t dimensions = entry.shapes[at++];
    for (int64_t d = 0; d < dimensions; ++d) sizes.push_back(entry.shapes[at++]);
    lists[i < entry.inputs ? 0 : 1].push_back(TensorView::meta(std::move(sizes), static_cast<DType>(entry.dtype)));
  }
  call.inputs = TensorList(std::move(lists[0]));
  call.outputs = TensorList(std::move(lists[1]));
  return call;
}

}  // namespace

std::shared_ptr<CallRecord> CallRecord::of_rank(RankContext& rank) {
  auto record = std::make_shared<CallRecord>();
  World& world = rank.world();
  const FlightEntries entries = rank.recorder().entries();
  const std::vector<std::shared_ptr<const Group>>& groups = entries.groups();
  std::map<const Group*, int> indices;
  record->add_group(world.world_group(), rank.rank());
  indices[world.world_group().get()] = 0;
  const int64_t begin_ns = world.scheduler().now_ns() - absl::ToInt64Nanoseconds(rank.now());
  // (end, index) of calls on their way, the next to end first. A flight recorder does not know of waits: whatever had ended
  // before the program came to its next call counts as waited for.
  std::priority_queue<std::pair<int64_t, size_t>, std::vector<std::pair<int64_t, size_t>>, std::greater<>> open;
  for (const FlightEntry& from : entries) {
    const CollectiveCall call = call_of(from);
    if (call.op == OpType::kCoalesced || call.op == OpType::kNewGroup || call.op == OpType::kSplitGroup) continue;
    auto at = indices.find(from.group);
    if (at == indices.end()) {
      const auto known =
          std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.get() == from.group; });
      if (known == groups.end()) continue;
      at = indices.emplace(from.group, record->add_group(*known, (*known)->group_rank(rank.rank()))).first;
    }
    record->now_ns_ = from.created_ns - begin_ns;
    const uint32_t index = record->kind_of(call, at->second);
    Kind& kind = record->kinds_[index];
    Entry& added = record->append(index, from.seq);
    added.start_ns = (from.started_ns >= 0 ? from.started_ns : from.created_ns) - begin_ns;
    added.duration_ns = from.completed_ns >= 0 ? from.completed_ns - begin_ns - added.start_ns : -1;
    ++kind.calls;
    kind.total_ns += std::max<int64_t>(0, added.duration_ns);
    record->end_ns_ = std::max(record->end_ns_, added.start_ns + std::max<int64_t>(0, added.duration_ns));
    const size_t number = record->size_ - 1;
    for (; !open.empty() && open.top().first <= added.issued_ns; open.pop()) {
      Entry& ended = record->entry(open.top().second);
      ended.waited_before = static_cast<uint32_t>(number);
      record->live_bytes_ -= record->kinds_[ended.kind].buffer_bytes;
    }
    if (from.completed_ns >= 0) open.emplace(from.completed_ns - begin_ns, number);
    record->live_bytes_ += kind.buffer_bytes;
    record->peak_bytes_ = std::max(record->peak_bytes_, record->live_bytes_);
  }
  for (; !open.empty(); open.pop())
    record->live_bytes_ -= record->kinds_[record->entry(open.top().second).kind].buffer_bytes;
  record->now_ns_ = absl::ToInt64Nanoseconds(rank.now());
  return record;
}

std::vector<std::shared_ptr<CallRecord>> CallRecord::of_world(World& world) {
  std::vector<std::shared_ptr<CallRecord>> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(of_rank(world.context(rank)));
  return ranks;
}

}  // namespace rankloom
