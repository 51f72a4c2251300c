#include "collectives/records/call_record_state.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <utility>

#include "collectives/ops/op_table.h"
#include "collectives/records/cost_model.h"
#include "collectives/work/work_state.h"
#include "sim/base/forked_run.h"
#include "sim/base/saturating.h"

namespace rankloom::internal {
namespace {

// ---- keys

// A key tells a kind of call from others: the words of its head, then the shapes and splits, each list with its length
// first. Nothing follows from their order but that of decode().
enum Head : size_t {
  kOpWord,
  kGroupWord,
  kReduceOpWord,
  kFactorWord,
  kRootWord,
  kPeerWord,
  kTagWord,
  kFileWord,
  kLineWord,
  kScopeWord,
  kInPlaceWord,
  kHeadWords
};
constexpr int64_t kCompute = -1;  // in place of an operation; then the index of its name

bool share_memory(const TensorView& a, const TensorView& b) {
  if (a.data() == nullptr || b.data() == nullptr) return false;
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data());
  const auto begin_b = reinterpret_cast<uintptr_t>(b.data());
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

// Bytes of inputs that lie in an output: of the one with its number, or, where there is one of one kind, in any.
int64_t bytes_in_place(const CollectiveCall& call) {
  const int inputs = call.inputs.size();
  const int outputs = call.outputs.size();
  if (inputs == 0 || outputs == 0 || call.inputs[0].data() == nullptr) return 0;
  int64_t bytes = 0;
  for (int i = 0; i < inputs; ++i) {
    const TensorView& input = call.inputs[i];
    bool shared = share_memory(input, call.outputs[outputs == 1 ? 0 : std::min(i, outputs - 1)]);
    for (int j = 0; j < outputs && inputs == 1 && !shared; ++j) shared = share_memory(input, call.outputs[j]);
    if (shared) bytes = saturating_add(bytes, static_cast<int64_t>(input.bytes()));
  }
  return bytes;
}

// Calls `word` with each word of the call's key until it returns false.
template <typename Word>
bool for_each_word(const CollectiveCall& call, int group, const char* scope, Word word) {
  const int64_t head[kHeadWords] = {static_cast<int64_t>(call.op),
                                    group,
                                    static_cast<int64_t>(call.reduce_op.kind()),
                                    std::bit_cast<int64_t>(call.reduce_op.factor()),
                                    call.root,
                                    call.peer,
                                    call.tag,
                                    static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.code.file)),
                                    call.code.line,
                                    static_cast<int64_t>(reinterpret_cast<uintptr_t>(scope)),
                                    bytes_in_place(call)};
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

void decode(const std::vector<int64_t>& key, CallRecord::Call& call) {
  call.op = static_cast<OpType>(key[kOpWord]);
  call.name = op_row(call.op).name;
  call.group = static_cast<int>(key[kGroupWord]);
  const auto reduce_kind = static_cast<ReduceOp::Kind>(key[kReduceOpWord]);
  call.reduce_op = reduce_kind == ReduceOp::Kind::kPremulSum
                       ? ReduceOp::premul_sum(std::bit_cast<double>(key[kFactorWord]))
                       : ReduceOp(reduce_kind);
  call.root = static_cast<int>(key[kRootWord]);
  call.peer = static_cast<int>(key[kPeerWord]);
  call.tag = static_cast<int>(key[kTagWord]);
  call.code = {reinterpret_cast<const char*>(static_cast<uintptr_t>(key[kFileWord])), static_cast<int>(key[kLineWord])};
  const int64_t* at = key.data() + kHeadWords;
  for (std::vector<CallRecord::Call::Tensor>* const list : {&call.inputs, &call.outputs}) {
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

// The memory that a call holds until it is waited for. An input that lies in an output counts once.
int64_t buffer_bytes(const CollectiveCall& call) {
  int64_t inputs = 0;
  int64_t outputs = 0;
  for (const TensorView& tensor : call.inputs) inputs = saturating_add(inputs, static_cast<int64_t>(tensor.bytes()));
  for (const TensorView& tensor : call.outputs) outputs = saturating_add(outputs, static_cast<int64_t>(tensor.bytes()));
  const bool one_buffer =
      call.op == OpType::kAllReduce || call.op == OpType::kAllReduceCoalesced || call.op == OpType::kReduce;
  return one_buffer ? std::max(inputs, outputs) : saturating_add(inputs - bytes_in_place(call), outputs);
}

}  // namespace

bool CallRecordState::Kind::is_compute() const { return key[kOpWord] == kCompute; }
OpType CallRecordState::Kind::op() const { return static_cast<OpType>(key[kOpWord]); }
int CallRecordState::Kind::group() const { return static_cast<int>(key[kGroupWord]); }

// ---- works

struct CallRecordState::Owner {
  explicit Owner(CallRecordState* of) : record(of) {}

  // See CallRecordState::used(). Works outlive the record.
  void used() {
    const Task* const task = Task::current();
    if (task == nullptr || (task->record == nullptr && task->inner == nullptr)) [[likely]]
      return;
    StepRecord* const told = name.record();
    if (told == nullptr) return;
    if (!explored_by.has_value()) explored_by = task->info.rank;
    if (*explored_by != task->info.rank) told->uncovered("a CallRecord that several ranks use");
  }

  // Takes the record for a call, or for the end of a work: a thread of a stream makes calls beside the rank.
  class Turn {
   public:
    explicit Turn(Owner* owner) : busy_(owner->busy) {
      for (WaitTurns turns; busy_.exchange(true, std::memory_order_acquire);) turns.next();
    }
    ~Turn() { busy_.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  CallRecordState* record;  // null: it is gone
  std::atomic<bool> busy = false;
  ObjectName name;
  std::optional<int> explored_by;  // explored runs: the rank that used it first
};

class CallRecordState::RecordedWork final : public WorkState {
 public:
  explicit RecordedWork(std::shared_ptr<Owner> owner) : owner_(std::move(owner)) { complete(absl::OkStatus()); }
  ~RecordedWork() override {
    owner_->used();
    const Owner::Turn turn(owner_.get());
    if (owner_->record != nullptr) owner_->record->release_buffers(*this);
  }
  absl::Status wait(absl::Duration, bool, CodeSite) override {
    owner_->used();
    const Owner::Turn turn(owner_.get());
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

CallRecordState::CallRecordState(CostModel with) : model(std::move(with)), owner_(std::make_shared<Owner>(this)) {}

CallRecordState::~CallRecordState() {
  const Owner::Turn turn(owner_.get());
  owner_->record = nullptr;
}

CallRecordState& CallRecordState::used() {
  owner_->used();
  return *this;
}

void CallRecordState::release_buffers(RecordedWork& work) { live_bytes -= std::exchange(work.buffer_bytes, 0); }

void CallRecordState::waited(RecordedWork& work) {
  if (std::exchange(work.is_waited, true)) return;
  release_buffers(work);
  for (size_t i = work.first; i < work.last && i < size; ++i) entry(i).waited_before = static_cast<uint32_t>(size);
  now_ns = std::max(now_ns, work.end_ns);
}

// ---- adding

int CallRecordState::add_group(const std::shared_ptr<const Group>& group, int rank) {
  static constexpr std::string_view kMesh = "mesh_";
  const std::string_view description = group->description();
  groups.push_back({.group = group,
                    .rank = rank,
                    .dim = std::string(description.starts_with(kMesh) ? description.substr(kMesh.size()) : "")});
  free_ns.push_back(0);
  p2p_seq.push_back(0);
  return static_cast<int>(groups.size()) - 1;
}

uint32_t CallRecordState::kind_of_key(std::vector<int64_t> key) {
  if (const auto at = kinds_by_key_.find(absl::MakeConstSpan(key)); at != kinds_by_key_.end()) return at->second;
  const auto kind = static_cast<uint32_t>(kinds.size());
  kinds.emplace_back().key = std::move(key);
  kinds_by_key_.emplace(absl::MakeConstSpan(kinds.back().key), kind);
  return kind;
}

uint32_t CallRecordState::kind_of(const CollectiveCall& call, int group) {
  const TensorList& tensors = call.outputs.empty() ? call.inputs : call.outputs;
  const uint64_t rough = reinterpret_cast<uintptr_t>(call.code.file) + static_cast<uint64_t>(call.code.line) * 7 +
                         static_cast<uint64_t>(call.op) * 31 + static_cast<uint64_t>(group) * 1031 +
                         (tensors.empty() ? 0 : static_cast<uint64_t>(tensors[0].numel()));
  uint32_t& recent = recent_[(rough * 0x9e3779b97f4a7c15U) >> 58];
  if (recent != kNever) {
    const std::vector<int64_t>& key = kinds[recent].key;
    if (!kinds[recent].is_compute()) {
      const int64_t* at = key.data();
      if (for_each_word(call, group, scope, [&at](int64_t word) { return *at++ == word; })) return recent;
    }
  }
  std::vector<int64_t> key;
  for_each_word(call, group, scope, [&key](int64_t word) {
    key.push_back(word);
    return true;
  });
  const size_t known = kinds.size();
  recent = kind_of_key(std::move(key));
  if (kinds.size() == known) return recent;
  Kind& kind = kinds.back();
  const CallRecord::GroupInfo& info = groups[static_cast<size_t>(group)];
  kind.payload = wire_payload(call, info.group->size());
  kind.buffer_bytes = buffer_bytes(call);
  kind.ring = wire_cost(WireAlgorithm::kRing, call.op, info.group->size(), kind.payload);
  kind.tree = wire_cost(WireAlgorithm::kTree, call.op, info.group->size(), kind.payload);
  if (const links::Link* const link = model.link_of(info.dim); link != nullptr) {
    kind.duration_ns = absl::ToInt64Nanoseconds(model.time(*link, call.op, info.group->size(), kind.payload));
  }
  return recent;
}

CallRecordState::Entry& CallRecordState::append(uint32_t kind, int64_t seq) {
  if (size == chunks.size() * kChunk) chunks.emplace_back(new Entry[kChunk]);
  Entry& added = entry(size++);
  added = {.kind = kind,
           .batch = 0,
           .seq = seq,
           .issued_ns = now_ns,
           .start_ns = now_ns,
           .duration_ns = 0,
           .waited_before = kNever};
  return added;
}

CallRecordState::Entry& CallRecordState::issue(const CollectiveCall& call, int group, bool alone) {
  const uint32_t index = kind_of(call, group);
  Kind& kind = kinds[index];
  int64_t seq = call.seq;
  if (seq < 0) {
    int64_t& last = p2p_seq[static_cast<size_t>(group)];
    // As the group numbers it, which counts refused ones, too.
    last = call.way.message_seq >= 0 ? call.way.message_seq : last + (alone ? 1 : 0);
    seq = last;
  }
  Entry& added = append(index, seq);
  int64_t& free = free_ns[static_cast<size_t>(group)];
  added.start_ns = std::max(now_ns, free);
  added.duration_ns = kind.duration_ns;
  free = saturating_add(added.start_ns, kind.duration_ns);
  end_ns = std::max(end_ns, free);
  ++kind.calls;
  kind.total_ns = saturating_add(kind.total_ns, kind.duration_ns);
  return added;
}

Work CallRecordState::add(const CollectiveCall& call, int group) {
  std::shared_ptr<RecordedWork> before;  // goes after the turn, which its end takes
  const Owner::Turn turn(owner_.get());
  if (last_work_ == nullptr || last_work_.use_count() > 1) {
    before = std::move(last_work_);
    last_work_ = std::make_shared<RecordedWork>(owner_);
  } else {
    release_buffers(*last_work_);
  }
  RecordedWork& work = *last_work_;
  work.type = call.op;
  work.number = call.seq;
  work.first = size;
  work.is_waited = false;
  if (call.op != OpType::kCoalesced) {
    const Entry& added = issue(call, group, /*alone=*/true);
    work.buffer_bytes = kinds[added.kind].buffer_bytes;
  } else {
    uint32_t batch = 1;
    bool first_message = true;
    for (const CollectiveCall& part : call.parts) {
      Entry& added = issue(part, group, std::exchange(first_message, first_message && part.seq >= 0));
      added.batch = batch++;
      work.buffer_bytes = saturating_add(work.buffer_bytes, kinds[added.kind].buffer_bytes);
    }
  }
  work.last = size;
  work.end_ns = free_ns[static_cast<size_t>(group)];
  live_bytes += work.buffer_bytes;
  peak_bytes = std::max(peak_bytes, at_most_int64(live_bytes));
  return WorkState::handle(last_work_);
}

void CallRecordState::compute(int64_t duration_ns, std::string_view name) {
  const Owner::Turn turn(owner_.get());
  auto at = std::find(compute_names_.begin(), compute_names_.end(), name);
  if (at == compute_names_.end()) at = compute_names_.insert(at, std::string(name));
  const uint32_t kind = kind_of_key({kCompute, at - compute_names_.begin()});
  Entry& added = append(kind, -1);
  added.duration_ns = std::max(int64_t{0}, duration_ns);
  now_ns = saturating_add(now_ns, added.duration_ns);
  end_ns = std::max(end_ns, now_ns);
}

void CallRecordState::clear() {
  // Works of forgotten calls have nothing to settle any more.
  const std::shared_ptr<RecordedWork> last = std::move(last_work_);  // goes last: it waits for its turn
  {
    const Owner::Turn turn(owner_.get());
    owner_->record = nullptr;
  }
  owner_ = std::make_shared<Owner>(this);
  chunks.clear();
  size = 0;
  now_ns = end_ns = 0;
  std::fill(free_ns.begin(), free_ns.end(), 0);
  for (Kind& kind : kinds) kind.calls = kind.total_ns = 0;
  live_bytes = 0;
  peak_bytes = 0;
}

// ---- reading

int64_t CallRecordState::live_buffer_bytes() const {
  const bool settled = last_work_ == nullptr || last_work_.use_count() > 1;
  return at_most_int64(live_bytes - (settled ? 0 : last_work_->buffer_bytes));
}

size_t CallRecordState::memory_bytes() const {
  size_t bytes = chunks.size() * (kChunk * sizeof(Entry) + sizeof(chunks[0])) + kinds.capacity() * sizeof(Kind) +
                 kinds_by_key_.capacity() * (sizeof(absl::Span<const int64_t>) + sizeof(uint64_t));
  for (const Kind& kind : kinds) bytes += kind.key.capacity() * sizeof(int64_t);
  return bytes;
}

CallRecord::Call CallRecordState::call_at(size_t index) const {
  const Entry& one = entry(index);
  const Kind& kind = kinds[one.kind];
  CallRecord::Call call;
  call.issued = absl::Nanoseconds(one.issued_ns);
  call.start = absl::Nanoseconds(one.start_ns);
  call.duration = absl::Nanoseconds(one.duration_ns);
  if (kind.is_compute()) {
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
  call.waited_before = one.waited_before == kNever ? int64_t{-1} : one.waited_before;
  return call;
}

std::string_view CallRecordState::scope_at(size_t index) const {
  const Kind& kind = kinds[entry(index).kind];
  const auto* const text =
      kind.is_compute() ? nullptr : reinterpret_cast<const char*>(static_cast<uintptr_t>(kind.key[kScopeWord]));
  return text != nullptr ? text : std::string_view();
}

}  // namespace rankloom::internal
