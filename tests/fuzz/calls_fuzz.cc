// A job made of any bytes: calls on any groups, on every rank the same, or not: ranks leave calls out, give other
// arguments, wrong ones, drop works, give up early, abort. It ends, under every schedule; what it says is the result
// that is computed here in another way, or an error by name.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/work/work_state.h"
#include "rankloom/error.h"
#include "rankloom/process_group.h"
#include "rankloom/world.h"
#include "sim/base/sanitizers.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr int kMaxSteps = 24;
constexpr int kMaxGroups = 5;

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "calls_fuzz: %s\n", what.c_str());
  std::abort();
}

// ---- a job, from bytes ----

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  // In [0, bound); 0 where the input has ended.
  int below(int bound) {
    if (left_ == 0) return 0;
    --left_;
    return *data_++ % bound;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

constexpr std::array kOps = {
    OpType::kBarrier,       OpType::kBroadcast,
    OpType::kAllReduce,     OpType::kReduce,
    OpType::kAllGather,     OpType::kAllGatherIntoTensor,
    OpType::kGather,        OpType::kScatter,
    OpType::kReduceScatter, OpType::kReduceScatterTensor,
    OpType::kAllToAll,      OpType::kAllToAllSingle,
    OpType::kSend,          OpType::kNewGroup,
    OpType::kCoalesced,
};
constexpr std::array kDTypes = {DType::kInt32, DType::kFloat32, DType::kUInt8, DType::kInt64};
constexpr std::array kReduceOps = {ReduceOp::Kind::kSum, ReduceOp::Kind::kMax, ReduceOp::Kind::kMin,
                                   ReduceOp::Kind::kProduct};

// The way in which one rank departs from the step.
enum class Twist : uint8_t {
  kNone,
  kSkips,
  kOtherOp,
  kOtherCount,
  kOtherDType,
  kOtherReduceOp,
  kOtherRoot,  // or peer, label, set of ranks
  kWrongArgument,
  kDrops,
  kGivesUp,
  kAborts,
  kShutsDown,
};
constexpr int kTwists = static_cast<int>(Twist::kShutsDown) + 1;

struct Step {
  int id = 0;
  int group = 0;  // the n-th that the job makes
  OpType op = OpType::kBarrier;
  DType dtype = DType::kInt32;
  int count = 0;
  ReduceOp::Kind reduce_op = ReduceOp::Kind::kSum;
  int root =
      0;  // also the source of a message, the label of a barrier, the set of a group's members; not yet modulo anything
  int peer = 0;  // a message's way: the destination is so many ranks behind the source
  int tag = 0;
  bool any_source = false;
  bool waits = true;  // else at the end
  std::vector<Step> parts;
  int twisted = -1;  // by this rank
  Twist twist = Twist::kNone;
};

Step read_call(Input& in) {
  Step step;
  step.op = kOps[static_cast<size_t>(in.below(kOps.size()))];
  step.dtype = kDTypes[static_cast<size_t>(in.below(kDTypes.size()))];
  step.count = in.below(5);
  step.reduce_op = kReduceOps[static_cast<size_t>(in.below(kReduceOps.size()))];
  step.root = in.below(32);
  return step;
}

struct Job {
  WorldOptions world;
  GroupOptions::Rooted rooted = GroupOptions::Rooted::kTogether;
  std::vector<Step> steps;
  bool straight = true;  // no rank does anything but what the steps say
};

Job read_job(Input& in) {
  Job job;
  const int mode = in.below(16);
  const auto seed = static_cast<uint64_t>(in.below(256));
  job.world.world_size = 1 + in.below(5);
#ifdef RANKLOOM_TSAN
  job.world.engine = EngineKind::kThreads;  // ThreadSanitizer cannot follow fibers, which could not race anyway
#else
  job.world.engine = mode < 12 ? EngineKind::kFibers : EngineKind::kThreads;
#endif
  job.world.schedule = mode < 6 ? Schedule::fifo() : mode < 12 || mode < 14 ? Schedule::seeded(seed) : Schedule::free();
  job.world.recorded_calls = 8;
  if (seed % 2 == 1) job.rooted = GroupOptions::Rooted::kEach;
  const bool any_source = in.below(2) == 1;  // all receives, or none
  int groups = 1;
  while (!in.empty() && static_cast<int>(job.steps.size()) < kMaxSteps) {
    Step step = read_call(in);
    step.id = static_cast<int>(job.steps.size());
    step.group = in.below(groups);
    const int flags = in.below(2);
    step.waits = (flags & 1) == 0;
    if (step.op == OpType::kSend) {
      step.peer = in.below(4);
      step.tag = in.below(2);
      if (any_source) {
        // Any rank may take any message: they must be alike, and nobody may wait for a certain one.
        step.any_source = true;
        step.waits = false;
        step.dtype = DType::kInt32;
        step.count = 2;
      }
    }
    if (step.op == OpType::kNewGroup && ++groups > kMaxGroups) {
      groups = kMaxGroups;
      step.op = OpType::kBarrier;
    }
    if (step.op == OpType::kCoalesced) {
      for (int i = 1 + in.below(3); i > 0; --i) {
        Step part = read_call(in);
        const bool collective =
            part.op != OpType::kSend && part.op != OpType::kNewGroup && part.op != OpType::kCoalesced;
        if (!collective) part.op = OpType::kAllReduce;
        part.id = step.id * 4 + i + 1000;
        step.parts.push_back(part);
      }
    }
    if (in.below(8) == 7) {
      step.twisted = in.below(job.world.world_size);
      step.twist = static_cast<Twist>(in.below(kTwists));
      job.straight = job.straight && (step.twist == Twist::kNone || step.twist == Twist::kWrongArgument);
    }
    job.steps.push_back(std::move(step));
  }
  return job;
}

// The step as `rank` does it.
Step as_done_by(const Step& step, int rank) {
  Step mine = step;
  if (step.twisted != rank) {
    mine.twist = Twist::kNone;
    return mine;
  }
  Step& call = mine.parts.empty() ? mine : mine.parts.back();
  switch (step.twist) {
    case Twist::kOtherOp:
      if (call.op != OpType::kSend && call.op != OpType::kNewGroup)
        call.op = call.op == OpType::kAllReduce ? OpType::kBroadcast : OpType::kAllReduce;
      break;
    case Twist::kOtherCount:
      ++call.count;
      break;
    case Twist::kOtherDType:
      call.dtype = call.dtype == DType::kInt64 ? DType::kInt32 : DType::kInt64;
      break;
    case Twist::kOtherReduceOp:
      call.reduce_op = call.reduce_op == ReduceOp::Kind::kSum ? ReduceOp::Kind::kMax : ReduceOp::Kind::kSum;
      break;
    case Twist::kOtherRoot:
      ++call.root;
      break;
    default:
      break;
  }
  return mine;
}

// ---- values ----

// Small, so that no sum or product of a few is rounded in float32.
int64_t value_of(int rank, int step, int64_t i) { return (rank * 7 + step * 3 + i * 5) % 11 + 1; }

template <typename T>
int64_t read_as(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return static_cast<int64_t>(value);
}
template <typename T>
void write_as(char* at, int64_t value) {
  const T typed = static_cast<T>(value);
  std::memcpy(at, &typed, sizeof(T));
}

class Buffer {
 public:
  Buffer(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>(count) * dtype_size(dtype) + 1) {}

  static Buffer filled(const Step& step, int rank, int64_t count, int64_t first = 0) {
    Buffer buffer(step.dtype, count);
    for (int64_t i = 0; i < count; ++i) buffer.set(i, value_of(rank, step.id, first + i));
    return buffer;
  }

  TensorView view() { return TensorView(bytes_.data(), dtype_, {count_}); }
  int64_t count() const { return count_; }
  int64_t at(int64_t i) const {
    const char* const from = bytes_.data() + static_cast<size_t>(i) * dtype_size(dtype_);
    switch (dtype_) {
      case DType::kInt32:
        return read_as<int32_t>(from);
      case DType::kFloat32:
        return read_as<float>(from);
      case DType::kUInt8:
        return read_as<uint8_t>(from);
      default:
        return read_as<int64_t>(from);
    }
  }
  void set(int64_t i, int64_t value) {
    char* const to = bytes_.data() + static_cast<size_t>(i) * dtype_size(dtype_);
    switch (dtype_) {
      case DType::kInt32:
        return write_as<int32_t>(to, value);
      case DType::kFloat32:
        return write_as<float>(to, value);
      case DType::kUInt8:
        return write_as<uint8_t>(to, value);
      default:
        return write_as<int64_t>(to, value);
    }
  }
  std::vector<int64_t> values() const {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count_; ++i) values.push_back(at(i));
    return values;
  }

 private:
  DType dtype_;
  int64_t count_;
  std::vector<char> bytes_;
};

using Buffers = std::vector<Buffer>;

std::vector<TensorView> views(Buffers& buffers) {
  std::vector<TensorView> all;
  for (Buffer& buffer : buffers) all.push_back(buffer.view());
  return all;
}

// Elements that pass from member i to member j in the operations where sizes may differ.
int64_t between(const Step& step, int i, int j) { return step.count + (i + j) % 3; }

// ---- what a rank does ----

// A call that a rank issued.
struct Issued {
  Step step;
  int rank = -1;    // in the world
  int member = -1;  // in the group
  int group = -1;   // its id
  int64_t seq = -1;
  Buffers inputs;
  Buffers outputs;  // in-place calls: the buffer
  bool succeeded = false;
  // Messages.
  bool sends = false;
  int peer = -1;  // kAnySource
  int source = -1;
  Work work;
  std::vector<std::unique_ptr<Issued>> parts;
};

bool reduces(OpType op) {
  return op == OpType::kAllReduce || op == OpType::kReduce || op == OpType::kReduceScatter ||
         op == OpType::kReduceScatterTensor;
}
bool has_root(OpType op) {
  return op == OpType::kBroadcast || op == OpType::kReduce || op == OpType::kGather || op == OpType::kScatter;
}

class Rank {
 public:
  Rank(const Job& job, RankContext& rank, std::vector<std::unique_ptr<Issued>>* log)
      : job_(job), rank_(rank), log_(*log), groups_{init_process_group(rank, {.rooted = job.rooted})} {}

  void run() {
    for (const Step& step : job_.steps) {
      if (static_cast<size_t>(step.group) < groups_.size() && groups_[static_cast<size_t>(step.group)] != nullptr) {
        run_step(as_done_by(step, rank_.rank()), *groups_[static_cast<size_t>(step.group)]);
      } else if (step.op == OpType::kNewGroup) {
        groups_.push_back(nullptr);
      }
    }
    for (const std::unique_ptr<Issued>& issued : log_) finish(*issued);
  }

 private:
  void run_step(const Step& step, ProcessGroup& pg) {
    switch (step.twist) {
      case Twist::kSkips:
        if (step.op == OpType::kNewGroup) groups_.push_back(nullptr);
        return;
      case Twist::kWrongArgument:
        try_wrong_argument(step, pg);
        break;
      case Twist::kAborts:
        pg.abort("the bytes say so");
        break;
      case Twist::kShutsDown:
        pg.shutdown();
        break;
      default:
        break;
    }
    if (step.op == OpType::kNewGroup) return make_group(step, pg);
    std::unique_ptr<Issued> issued = issue(step, pg);
    if (issued == nullptr) return;  // a message between others
    log_.push_back(std::move(issued));
    Issued& last = *log_.back();
    if (step.twist == Twist::kDrops) {
      last.work = Work();
    } else if (step.twist == Twist::kGivesUp) {
      last.work.wait(absl::Microseconds(50));
      succeed(last);
    } else if (step.waits) {
      finish(last);
    }
  }

  static void succeed(Issued& issued) {
    issued.succeeded = true;
    issued.source = issued.work.source();
    for (const std::unique_ptr<Issued>& part : issued.parts) part->succeeded = true;
  }

  static void finish(Issued& issued) {
    if (issued.succeeded || internal::WorkState::of(issued.work) == nullptr) return;
    issued.work.wait();
    succeed(issued);
  }

  void try_wrong_argument(const Step& step, ProcessGroup& pg) {
    const int64_t before = pg.sequence_number();
    try {
      Buffer buffer(DType::kFloat32, 3);
      switch (step.root % 4) {
        case 0:
          (void)pg.broadcast(buffer.view(), pg.size());
          break;
        case 1:
          (void)pg.all_gather({buffer.view()}, TensorView(static_cast<float*>(nullptr), {1}));
          break;
        case 2:
          (void)pg.send(buffer.view(), pg.size());
          break;
        default:
          (void)pg.all_reduce(TensorView(nullptr, DType::kInt32, {2, -1}));
          break;
      }
    } catch (const DistError& error) {
      // An abort may have come first.
      if (error.kind() == ErrorKind::kInvalidArgument) {
        if (pg.sequence_number() != before) wrong("a refused call took a number");
        return;
      }
      throw;
    }
    wrong("a wrong argument was not refused");
  }

  void make_group(const Step& step, ProcessGroup& pg) {
    std::vector<int> ranks;
    for (int i = 0; i < pg.size(); ++i) {
      if ((step.root >> i & 1) != 0 || i == step.root % pg.size()) ranks.push_back(i);
    }
    auto issued = std::make_unique<Issued>();
    issued->step = step;
    issued->step.count = 0;
    for (const int rank : ranks) issued->step.count |= 1 << rank;
    issued->rank = rank_.rank();
    issued->member = pg.rank();
    issued->group = pg.group()->id();
    issued->seq = pg.sequence_number() + 1;
    groups_.push_back(pg.new_group(ranks));
    const bool member = std::find(ranks.begin(), ranks.end(), pg.rank()) != ranks.end();
    if ((groups_.back() != nullptr) != member)
      wrong("new_group gave a group to one that is no member, or none to a member");
    if (member && groups_.back()->size() != static_cast<int>(ranks.size()))
      wrong("new_group gave a group of another size");
    issued->succeeded = true;
    log_.push_back(std::move(issued));
  }

  std::unique_ptr<Issued> issue(const Step& step, ProcessGroup& pg) {
    auto issued = std::make_unique<Issued>();
    issued->step = step;
    issued->rank = rank_.rank();
    issued->member = pg.rank();
    issued->group = pg.group()->id();
    if (step.op == OpType::kSend) {
      if (!issue_message(*issued, pg)) return nullptr;
    } else if (step.op == OpType::kCoalesced) {
      pg.start_coalescing();
      for (const Step& part : step.parts) {
        auto one = std::make_unique<Issued>();
        one->step = part;
        one->rank = issued->rank;
        one->member = issued->member;
        issue_collective(*one, pg);
        issued->parts.push_back(std::move(one));
      }
      issued->work = pg.end_coalescing();
    } else {
      issue_collective(*issued, pg);
    }
    issued->seq = pg.sequence_number();
    return issued;
  }

  bool issue_message(Issued& issued, ProcessGroup& pg) {
    const Step& step = issued.step;
    const int n = pg.size();
    if (n < 2) return false;
    const int source = step.root % n;
    const int destination = (source + 1 + step.peer % (n - 1)) % n;
    issued.sends = pg.rank() == source;
    if (!issued.sends && pg.rank() != destination) return false;
    issued.peer = issued.sends ? destination : step.any_source ? CollectiveCall::kAnySource : source;
    if (issued.sends) {
      issued.inputs = {Buffer::filled(step, rank_.rank(), step.count)};
      issued.work = pg.send(issued.inputs[0].view(), destination, step.tag);
    } else {
      issued.outputs = {Buffer(step.dtype, step.count)};
      issued.work = step.any_source ? pg.recv_any(issued.outputs[0].view(), step.tag)
                                    : pg.recv(issued.outputs[0].view(), source, step.tag);
    }
    return true;
  }

  void issue_collective(Issued& issued, ProcessGroup& pg) {
    const Step& step = issued.step;
    const int n = pg.size();
    const int me = pg.rank();
    const int root = step.root % n;
    const int64_t count = step.count;
    Buffers& in = issued.inputs;
    Buffers& out = issued.outputs;
    const auto filled = [&](int64_t size, int64_t first = 0) {
      return Buffer::filled(step, rank_.rank(), size, first);
    };
    const auto blank = [&](int64_t size) { return Buffer(step.dtype, size); };
    switch (step.op) {
      case OpType::kBroadcast:
        out = {filled(count)};
        issued.work = pg.broadcast(out[0].view(), root);
        break;
      case OpType::kAllReduce:
        out = {filled(count)};
        issued.work = pg.all_reduce(out[0].view(), step.reduce_op);
        break;
      case OpType::kReduce:
        out = {filled(count)};
        issued.work = pg.reduce(out[0].view(), root, step.reduce_op);
        break;
      case OpType::kAllGather:
        in = {filled(count + me)};
        for (int i = 0; i < n; ++i) out.push_back(blank(count + i));
        issued.work = pg.all_gather(views(out), in[0].view());
        break;
      case OpType::kAllGatherIntoTensor:
        in = {filled(count)};
        out = {blank(n * count)};
        issued.work = pg.all_gather_into_tensor(out[0].view(), in[0].view());
        break;
      case OpType::kGather:
        in = {filled(count)};
        if (me == root) out = Buffers(static_cast<size_t>(n), blank(count));
        issued.work = pg.gather(views(out), in[0].view(), root);
        break;
      case OpType::kScatter:
        out = {blank(count)};
        for (int i = 0; i < n && me == root; ++i) in.push_back(filled(count, i * count));
        issued.work = pg.scatter(out[0].view(), views(in), root);
        break;
      case OpType::kReduceScatter:
        out = {blank(count + me)};
        for (int i = 0; i < n; ++i) in.push_back(filled(count + i, i * 7));
        issued.work = pg.reduce_scatter(out[0].view(), views(in), step.reduce_op);
        break;
      case OpType::kReduceScatterTensor:
        out = {blank(count)};
        in = {filled(n * count)};
        issued.work = pg.reduce_scatter_tensor(out[0].view(), in[0].view(), step.reduce_op);
        break;
      case OpType::kAllToAll:
        for (int i = 0; i < n; ++i) {
          in.push_back(filled(between(step, me, i), i * 7));
          out.push_back(blank(between(step, i, me)));
        }
        issued.work = pg.all_to_all(views(out), views(in));
        break;
      case OpType::kAllToAllSingle: {
        std::vector<int64_t> splits;
        int64_t sum = 0;
        for (int i = 0; i < n; ++i) {
          splits.push_back(between(step, me, i));
          sum += splits.back();
        }
        in = {filled(sum)};
        out = {blank(sum)};
        issued.work = pg.all_to_all_single(out[0].view(), in[0].view(), splits, splits);
        break;
      }
      default:
        issued.work = pg.barrier({}, step.root % 2 == 0 ? "even" : "odd");
        break;
    }
  }

  const Job& job_;
  RankContext& rank_;
  std::vector<std::unique_ptr<Issued>>& log_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
};

// ---- what should have come of it ----

using Slot = std::map<int, const Issued*>;  // by member

bool agree(const Issued& a, const Issued& b, int size) {
  if (a.step.op != b.step.op) return false;
  const OpType op = a.step.op;
  if (op == OpType::kBarrier) return a.step.root % 2 == b.step.root % 2;
  if (op == OpType::kNewGroup) return a.step.count == b.step.count;
  if (op == OpType::kCoalesced) {
    if (a.parts.size() != b.parts.size()) return false;
    for (size_t i = 0; i < a.parts.size(); ++i) {
      if (!agree(*a.parts[i], *b.parts[i], size)) return false;
    }
    return true;
  }
  return a.step.dtype == b.step.dtype && a.step.count == b.step.count &&
         (!has_root(op) || a.step.root % size == b.step.root % size) &&
         (!reduces(op) || a.step.reduce_op == b.step.reduce_op);
}

int64_t combine(ReduceOp::Kind op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::Kind::kMax:
      return std::max(a, b);
    case ReduceOp::Kind::kMin:
      return std::min(a, b);
    case ReduceOp::Kind::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

// Output number `k` of `me` in a slot in which all agree; nullopt: it is not written, or is no output.
std::optional<std::vector<int64_t>> expected(const std::vector<const Issued*>& calls, int me, int k) {
  const Step& step = calls[0]->step;
  const int n = static_cast<int>(calls.size());
  const int root = step.root % n;
  const auto given = [&](int member, int64_t i) {
    const Issued& call = *calls[static_cast<size_t>(member)];
    return value_of(call.rank, call.step.id, i);
  };
  const auto part_of = [&](int member, int64_t first, int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(given(member, first + i));
    return values;
  };
  const auto reduced = [&](int64_t first, int64_t count) {
    Buffer result(step.dtype, count);
    for (int64_t i = 0; i < count; ++i) {
      int64_t value = given(0, first + i);
      for (int member = 1; member < n; ++member) value = combine(step.reduce_op, value, given(member, first + i));
      result.set(i, value);  // wraps round as the dtype does
    }
    return result.values();
  };
  const int64_t count = step.count;
  switch (step.op) {
    case OpType::kBroadcast:
      return part_of(root, 0, count);
    case OpType::kAllReduce:
      return reduced(0, count);
    case OpType::kReduce:
      return me == root ? reduced(0, count) : part_of(me, 0, count);
    case OpType::kAllGather:
      return part_of(k, 0, count + k);
    case OpType::kAllGatherIntoTensor: {
      std::vector<int64_t> all;
      for (int i = 0; i < n; ++i) {
        const std::vector<int64_t> part = part_of(i, 0, count);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
    case OpType::kGather:
      return part_of(k, 0, count);
    case OpType::kScatter:
      return part_of(root, me * count, count);
    case OpType::kReduceScatter:
      return reduced(me * 7, count + me);
    case OpType::kReduceScatterTensor:
      return reduced(me * count, count);
    case OpType::kAllToAll:
      return part_of(k, me * 7, between(step, k, me));
    case OpType::kAllToAllSingle: {
      std::vector<int64_t> all;
      for (int i = 0; i < n; ++i) {
        int64_t first = 0;
        for (int j = 0; j < me; ++j) first += between(step, i, j);
        const std::vector<int64_t> part = part_of(i, first, between(step, i, me));
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
    default:
      return std::nullopt;
  }
}

std::string who(const Issued& issued) {
  return absl::StrCat("rank ", issued.rank, ", group ", issued.group, ", seq ", issued.seq, ", step ", issued.step.id);
}

void check_outputs(const std::vector<const Issued*>& calls) {
  if (calls[0]->step.op == OpType::kCoalesced) {
    for (size_t part = 0; part < calls[0]->parts.size(); ++part) {
      std::vector<const Issued*> parts;
      for (const Issued* const call : calls) parts.push_back(call->parts[part].get());
      check_outputs(parts);
    }
    return;
  }
  for (int me = 0; me < static_cast<int>(calls.size()); ++me) {
    const Issued& call = *calls[static_cast<size_t>(me)];
    if (!call.succeeded) continue;
    for (int k = 0; k < static_cast<int>(call.outputs.size()); ++k) {
      const auto want = expected(calls, me, k);
      if (want.has_value() && call.outputs[static_cast<size_t>(k)].values() != *want)
        wrong(absl::StrCat(who(call), ": output ", k, " is wrong"));
    }
  }
}

// Members of a rooted call that are done each by itself.
bool done_early(const Issued* call) { return has_root(call->step.op) && call->succeeded; }

// The needs of a member that is done each by itself: the root that it receives from, or all whose data it takes.
void check_done_early(const std::map<int, const Issued*>& slot, const Issued& call, int size) {
  if (!call.succeeded) return;
  const int root = call.step.root % size;
  const bool from_root = call.step.op == OpType::kBroadcast || call.step.op == OpType::kScatter;
  if ((call.member == root) == from_root) return;
  const auto fits = [&](int member) {
    const auto it = slot.find(member);
    return it != slot.end() && agree(*it->second, call, size);
  };
  if (!from_root) {
    for (int member = 0; member < size; ++member) {
      if (!fits(member)) wrong(who(call) + ": took from a member that differs or did not come");
    }
    return;
  }
  if (!fits(root)) wrong(who(call) + ": received from a root that differs or did not come");
  const Issued& giver = *slot.at(root);
  const int64_t first = call.step.op == OpType::kScatter ? call.member * call.step.count : 0;
  const std::vector<int64_t> got = call.outputs[0].values();
  for (int64_t i = 0; i < call.step.count; ++i) {
    if (got[static_cast<size_t>(i)] != value_of(giver.rank, giver.step.id, first + i))
      wrong(who(call) + ": is not what the root gave");
  }
}

void check_collectives(const std::vector<const Issued*>& all, World& world, GroupOptions::Rooted rooted) {
  std::map<std::pair<int, int64_t>, Slot> slots;
  for (const Issued* const issued : all) {
    if (issued->step.op == OpType::kSend) continue;
    const bool first = slots[{issued->group, issued->seq}].emplace(issued->member, issued).second;
    if (!first) wrong(who(*issued) + ": a number was given twice");
  }
  for (const auto& [key, slot] : slots) {
    const int size = world.groups()[static_cast<size_t>(key.first)]->size();
    const bool success = std::any_of(slot.begin(), slot.end(), [](const auto& call) { return call.second->succeeded; });
    if (!success) continue;
    std::vector<const Issued*> calls;
    for (const auto& [member, call] : slot) calls.push_back(call);
    // One that failed in new_group is not in the log.
    const bool made_group = calls[0]->step.op == OpType::kNewGroup;
    if (rooted == GroupOptions::Rooted::kEach && std::any_of(calls.begin(), calls.end(), done_early)) {
      for (const Issued* const call : calls) check_done_early(slot, *call, size);
      const bool whole =
          static_cast<int>(calls.size()) == size &&
          std::all_of(calls.begin(), calls.end(), [&](const Issued* call) { return agree(*calls[0], *call, size); });
      if (whole) check_outputs(calls);
      continue;
    }
    if (static_cast<int>(calls.size()) != size && !made_group)
      wrong(who(*calls[0]) + ": went well without all members");
    for (const Issued* const call : calls) {
      if (!agree(*calls[0], *call, size)) wrong(who(*call) + ": went well though members differ");
    }
    if (!made_group) check_outputs(calls);
  }
}

void check_messages(const std::vector<const Issued*>& all) {
  using Channel = std::tuple<int, int, int, int>;  // group, source, destination, tag
  std::map<Channel, std::vector<const Issued*>> sends;
  std::map<std::tuple<int, int, int>, bool> any;  // group, destination, tag: a recv_any takes some
  for (const Issued* const issued : all) {
    if (issued->step.op != OpType::kSend) continue;
    if (issued->sends) {
      sends[{issued->group, issued->member, issued->peer, issued->step.tag}].push_back(issued);
    } else if (issued->peer == CollectiveCall::kAnySource) {
      any[{issued->group, issued->member, issued->step.tag}] = true;
    }
  }
  std::map<Channel, size_t> received;
  for (const Issued* const issued : all) {
    if (issued->step.op != OpType::kSend || issued->sends) continue;
    const bool chosen = any[{issued->group, issued->member, issued->step.tag}];
    const int source = issued->peer == CollectiveCall::kAnySource ? issued->source : issued->peer;
    const Channel channel = {issued->group, source, issued->member, issued->step.tag};
    const size_t nth = issued->peer == CollectiveCall::kAnySource ? 0 : received[channel]++;
    if (!issued->succeeded) continue;
    const std::vector<const Issued*>& candidates = sends[channel];
    const std::vector<int64_t> got = issued->outputs[0].values();
    const auto is_of = [&](const Issued* send) {
      return send->step.dtype == issued->step.dtype && send->inputs[0].values() == got;
    };
    const bool right = chosen ? std::any_of(candidates.begin(), candidates.end(), is_of)
                              : nth < candidates.size() && is_of(candidates[nth]);
    if (!right) wrong(absl::StrCat(who(*issued), ": received what rank ", source, " of the group did not send"));
  }
}

void check(const Job& job, World& world, const RunReport& report,
           const std::vector<std::vector<std::unique_ptr<Issued>>>& logs) {
  if (job.straight && !report.ok()) wrong("a job without a fault failed: " + report.text());
  for (const RunReport::Outcome& outcome : report.outcomes) {
    if (outcome.state == RunReport::Outcome::State::kRunning) wrong("a rank has not ended");
    if (outcome.exception == nullptr) continue;
    try {
      std::rethrow_exception(outcome.exception);
    } catch (const DistError& error) {
      if (std::string_view(error.what()).size() < 20) wrong(absl::StrCat("an error without a text: ", error.what()));
    } catch (...) {
      wrong("a rank failed with another exception: " + outcome.text);
    }
  }
  if (!report.ok() && report.text().size() < 20) wrong("a report without a text");
  std::vector<const Issued*> all;
  for (const auto& log : logs) {
    for (const std::unique_ptr<Issued>& issued : log) {
      if (job.straight && !issued->succeeded) wrong(who(*issued) + ": has no result");
      all.push_back(issued.get());
    }
  }
  check_collectives(all, world, job.rooted);
  check_messages(all);
}

}  // namespace
}  // namespace rankloom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rankloom;
  Input in(data, size);
  const Job job = read_job(in);
  World world(job.world);
  std::vector<std::vector<std::unique_ptr<Issued>>> logs(static_cast<size_t>(job.world.world_size));
  const RunReport report =
      world.run([&](RankContext& rank) { Rank(job, rank, &logs[static_cast<size_t>(rank.rank())]).run(); });
  check(job, world, report, logs);
  return 0;
}
