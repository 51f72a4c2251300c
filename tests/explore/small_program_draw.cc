#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/random.h"
#include "tests/explore/small_program.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = SmallOpKind;

// Each draw is a statement of its own, or stands in braces: in which order a call's arguments are evaluated is the
// compiler's choice, and a seed has to name one program.
class Drawer {
 public:
  explicit Drawer(uint64_t seed) : prng_(seed ^ 0x5ca1ab1e) { program_.seed = seed; }

  SmallProgram draw() {
    const uint64_t ranks = prng_.below(16);
    program_.ranks.resize(ranks == 0 ? 1 : ranks < 11 ? 2 : 3);
    program_.eager_bytes = chance(3) ? 64 : 0;
    program_.shared_late = chance(4);
    program_.reads_early = chance(4);
    const Theme themes[] = {theme(), theme()};
    const int most = program_.ranks.size() == 3 ? 7 : 8;
    const int budget = 2 + std::min(below(most), below(most));
    while (drawn_ < budget) emit(themes[below(2)]);
    for (auto& rank : program_.ranks) finish(&rank);
    if (chance(12)) program_.faults.push_back(fault());
    watch();
    talk_to_oneself();
    touch_early();
    Prng prng(program_.seed ^ 0x0f7e4);
    program_.owners_tell = prng.below(2) == 0;
    program_.points_at_memory = shares_memory(program_) && prng.below(3) == 0;
    return std::move(program_);
  }

 private:
  enum class Theme : uint8_t {
    kStore,
    kCollective,
    kMessages,
    kLooks,
    kCoalesced,
    kPromise,
    kGroups,
    kHelper,
    kStream,
    kSync,
    kTime,
    kCount
  };

  int below(int n) { return static_cast<int>(prng_.below(static_cast<uint64_t>(n))); }
  bool chance(int one_in) { return below(one_in) == 0; }
  Theme theme() { return static_cast<Theme>(below(static_cast<int>(Theme::kCount))); }
  int ranks() const { return static_cast<int>(program_.ranks.size()); }
  int some_rank() { return below(ranks()); }
  int other_rank(int rank) { return ranks() == 1 ? rank : (rank + 1 + below(ranks() - 1)) % ranks(); }
  Kind between(Kind first, Kind last) {
    return static_cast<Kind>(static_cast<int>(first) + below(static_cast<int>(last) - static_cast<int>(first) + 1));
  }

  SmallOp op(Kind kind) {
    const SmallOpRow& row = row_of(kind);
    SmallOp op{.kind = kind, .a = below(row.a), .b = below(row.b), .c = below(row.c)};
    if (is_store(kind)) {
      op.prefixed = chance(8);
      if (chance(2)) op.a = 0;
    }
    if (is_call(kind) && kind < Kind::kStartCoalescing) {
      op.keep_alive = chance(3);
      op.streamed = chance(12);
      op.timed = chance(12);
    }
    if (kind == Kind::kSpawnHelper || kind == Kind::kLaunch || kind == Kind::kThen || kind == Kind::kFutureThen) {
      const int n = 1 + below(2);
      for (int i = 0; i < n; ++i) op.body.push_back(this->op(inner_kind()));
    }
    return op;
  }
  // The acts of helpers, callbacks and kernels.
  Kind inner_kind() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return Kind::kSetVariable;
      case 3:
      case 4:
        return between(Kind::kSet, Kind::kListKeys);
      case 5:
        return chance(2) ? Kind::kIsCompleted : Kind::kDrop;
      case 6:
        return chance(2) ? Kind::kPromiseSetValue : Kind::kReadVariable;
      default:
        return chance(2) ? Kind::kSleep : chance(6) ? Kind::kThrow : Kind::kYield;
    }
  }

  static bool makes_work(Kind kind) {
    return (is_call(kind) && kind != Kind::kMonitoredBarrier && kind != Kind::kStartCoalescing) ||
           kind == Kind::kPromiseWork;
  }

  void put(int rank, SmallOp op) {
    int& next = next_slot_[static_cast<size_t>(rank)];
    // A work that is kept where another one was drops that.
    if (makes_work(op.kind) && !chance(20)) {
      op.a = next % kSmallProgramSlots;
      next += op.kind == Kind::kBatchIsendIrecv ? 2 : 1;
    }
    program_.ranks[static_cast<size_t>(rank)].push_back(std::move(op));
    ++drawn_;
  }
  void put(int rank, Kind kind) { put(rank, op(kind)); }
  void put_somewhere(Kind kind) { put(some_rank(), kind); }
  void put_elsewhere(int rank, Kind kind) { put(other_rank(rank), kind); }

  // The slot of a work that the rank has; -1: none.
  int slot_of(int rank) {
    std::vector<int> slots;
    for (const SmallOp& op : program_.ranks[static_cast<size_t>(rank)]) {
      if (makes_work(op.kind)) slots.push_back(op.a);
    }
    return slots.empty() ? -1 : slots[static_cast<size_t>(below(static_cast<int>(slots.size())))];
  }

  void emit(Theme theme) {
    switch (theme) {
      case Theme::kStore:
        return store();
      case Theme::kCollective:
        collective(between(Kind::kBroadcast, chance(4) ? Kind::kMonitoredBarrier : Kind::kBarrier));
        if (chance(2)) look();
        return;
      case Theme::kMessages:
        message();
        if (chance(2)) look();
        return;
      case Theme::kLooks:
        return look();
      case Theme::kCoalesced:
        return coalesced();
      case Theme::kPromise:
        put_somewhere(chance(2) ? Kind::kPromiseWork : chance(4) ? Kind::kPromiseSetError : Kind::kPromiseSetValue);
        if (chance(2)) look();
        return;
      case Theme::kGroups:
        return group();
      case Theme::kHelper:
        put_somewhere(chance(2) ? Kind::kSpawnHelper : Kind::kReadVariable);
        if (chance(2)) put_somewhere(Kind::kReadVariable);
        return;
      case Theme::kStream:
        if (chance(4)) return look(Kind::kStreamWaitFor, Kind::kBlockCurrentStream);
        return put_somewhere(chance(2) ? Kind::kLaunch : between(Kind::kLaunch, Kind::kWaitEvent));
      case Theme::kSync:
        return sync();
      case Theme::kTime:
        return put_somewhere(chance(12)  ? between(Kind::kThrow, Kind::kAbortWorld)
                             : chance(3) ? between(Kind::kRandom, Kind::kOnAbort)
                                         : between(Kind::kSleep, Kind::kYield));
      case Theme::kCount:
        break;
    }
  }

  // A condition that others wait for comes, goes and comes again.
  void come_and_go() {
    const int rank = some_rank();
    const int waiter = other_rank(rank);
    SmallOp come, go, wait;
    switch (below(4)) {
      case 0:
        come = op(Kind::kLock);
        go = op(Kind::kUnlock);
        wait = op(chance(2) ? Kind::kLocked : Kind::kTryLock);
        break;
      case 1:
        come = op(Kind::kQueuePush);
        go = op(chance(2) ? Kind::kQueuePop : Kind::kQueueTryPop);
        wait = op(chance(2) ? Kind::kQueuePop : Kind::kWaitKey);
        break;
      default:
        come = op(Kind::kSet);
        go = op(Kind::kDeleteKey);
        wait = op(chance(3) ? Kind::kGet : chance(3) ? Kind::kWaitKeyFor : Kind::kWaitKey);
        break;
    }
    go.a = wait.a = come.a;
    go.prefixed = wait.prefixed = come.prefixed;
    put(rank, come);
    put(rank, go);
    if (chance(2)) put(rank, between(Kind::kSet, Kind::kAppend));
    put(rank, come);
    if (come.kind == Kind::kLock) put(rank, go);
    put(waiter, wait);
    put(waiter, chance(2)                      ? between(Kind::kCheck, Kind::kNumKeys)
                : wait.kind == Kind::kQueuePop ? Kind::kQueueLen
                                               : Kind::kCheck);
  }

  void store() {
    if (chance(12)) {
      for (int rank = 0; rank < ranks(); ++rank) put(rank, Kind::kStoreBarrier);
      return;
    }
    if (drawn_ == 0 && chance(4)) return come_and_go();
    const Kind kind = between(Kind::kSet, Kind::kStoreTimeout);
    const int rank = some_rank();
    const SmallOp first = op(kind);
    put(rank, first);
    // A partner for those that wait.
    SmallOp partner = op(Kind::kSet);
    partner.a = first.a;
    partner.prefixed = first.prefixed;
    switch (kind) {
      case Kind::kMultiGet:
        partner.kind = Kind::kMultiSet;
        [[fallthrough]];
      case Kind::kGet:
      case Kind::kWaitKey:
      case Kind::kWaitKeyFor:
      case Kind::kWatchKey:
        if (!chance(8)) put(other_rank(rank), partner);
        return;
      case Kind::kQueuePop:
      case Kind::kQueueTryPop:
      case Kind::kQueueLen:
        partner.kind = Kind::kQueuePush;
        if (!chance(8)) put(other_rank(rank), partner);
        return;
      default:
        return;
    }
  }

  // On all ranks, most of the time.
  void collective(Kind kind) {
    SmallOp all = op(kind);
    all.group = chance(6) ? 1 : 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      SmallOp mine = all;
      mine.keep_alive = chance(3);
      mine.timed = chance(12);
      if (chance(40)) mine.kind = Kind::kBarrier;
      if (!chance(40)) put(rank, mine);
    }
  }

  void message() {
    const int from = some_rank();
    const int to = other_rank(from);
    SmallOp send = op(Kind::kSend);
    send.b = to;
    if (chance(6)) {
      send.kind = Kind::kBatchIsendIrecv;
      put(from, send);
      send.b = from;
      put(to, send);
      return;
    }
    SmallOp recv = op(chance(2) ? Kind::kRecvAny : Kind::kRecv);
    if (recv.kind == Kind::kRecv) recv.b = from;
    if (!chance(8)) recv.c = send.c;
    put(from, send);
    if (!chance(10)) put(to, recv);
  }

  void look() { look(Kind::kWait, Kind::kWaitAny); }
  // At a work that is there.
  void look(Kind first, Kind last) {
    const int rank = some_rank();
    SmallOp looking = op(between(first, last));
    const int slot = slot_of(rank);
    if (slot < 0) return chance(2) ? collective(Kind::kAllReduce) : message();
    if (row_of(looking.kind).a == kSmallProgramSlots) looking.a = slot;
    put(rank, looking);
    if (looking.kind == Kind::kGetFuture) put(rank, between(Kind::kFutureDone, Kind::kFutureThen));
  }

  void coalesced() {
    const int n = 1 + below(2);
    std::vector<SmallOp> ops = {op(Kind::kStartCoalescing)};
    if (chance(3) && ranks() > 1) {
      SmallOp send = op(Kind::kSend);
      send.c = 0;
      const int from = some_rank();
      const int to = other_rank(from);
      for (const int rank : {from, to}) {
        send.kind = rank == from ? Kind::kSend : Kind::kRecv;
        send.b = rank == from ? to : from;
        put(rank, ops[0]);
        put(rank, send);
        put(rank, Kind::kEndCoalescing);
      }
      return;
    }
    for (int i = 0; i < n; ++i) ops.push_back(op(between(Kind::kBroadcast, Kind::kBarrier)));
    ops.push_back(op(Kind::kEndCoalescing));
    for (SmallOp& op : ops) op.streamed = op.timed = false;
    for (int rank = 0; rank < ranks(); ++rank) {
      for (const SmallOp& op : ops) put(rank, op);
    }
  }

  void group() {
    const Kind kind = between(Kind::kInitGroup, Kind::kAttributes);
    const bool together = (kind >= Kind::kInitGroup && kind <= Kind::kDeviceMesh) || kind == Kind::kDestroyGroup;
    const SmallOp first = op(kind);
    if (!together) return put(some_rank(), first);
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!chance(20)) put(rank, first);
    }
  }

  void sync() {
    if (drawn_ == 0 && chance(8)) return come_and_go();
    const Kind kind = between(Kind::kLock, Kind::kArriveAndWait);
    const int rank = some_rank();
    const SmallOp first = op(kind);
    put(rank, first);
    switch (kind) {
      case Kind::kLock:
      case Kind::kTryLock:
        if (chance(3)) put(rank, inner_kind());
        if (!chance(10)) put(rank, Kind::kUnlock);
        return;
      case Kind::kCondWait:
      case Kind::kCondWaitUntil:
        if (!chance(10)) put_elsewhere(rank, chance(2) ? Kind::kNotifyAll : Kind::kNotifyOne);
        return;
      case Kind::kWaitLatch:
        put_elsewhere(rank, Kind::kCountDown);
        put_elsewhere(rank, Kind::kCountDown);
        return;
      case Kind::kArriveAndWait:
        if (!chance(10)) put_elsewhere(rank, chance(2) ? Kind::kArriveAndWait : Kind::kCountDown);
        return;
      default:
        return;
    }
  }

  // Watched memory, in some programs, somewhere between all else. Drawn apart: other programs do not depend on it.
  void watch() {
    Prng prng(program_.seed ^ 0x0a7c4ed);
    const auto below = [&](size_t n) { return static_cast<size_t>(prng.below(n)); };
    if (below(10) != 0) return;
    for (size_t n = 2 + below(2); n > 0; --n) {
      const Kind kind = static_cast<Kind>(static_cast<size_t>(Kind::kWatchedGet) + below(3));
      std::vector<SmallOp>& ops = program_.ranks[below(program_.ranks.size())];
      const SmallOp op{.kind = kind, .b = static_cast<int>(below(2))};
      ops.insert(ops.begin() + static_cast<ptrdiff_t>(below(ops.size() + 1)), op);
    }
  }

  // Messages of a rank to itself, in some programs, somewhere between all else. Drawn apart, too.
  void talk_to_oneself() {
    Prng prng(program_.seed ^ 0x5e1f5e1f);
    const auto below = [&](size_t n) { return static_cast<int>(prng.below(n)); };
    if (below(12) != 0) return;
    const int rank = below(program_.ranks.size());
    std::vector<SmallOp>& ops = program_.ranks[static_cast<size_t>(rank)];
    const int tag = below(2);
    const bool any = below(3) == 0;
    for (const Kind kind : {Kind::kSend, any ? Kind::kRecvAny : Kind::kRecv}) {
      if (below(10) == 0) continue;
      const SmallOp op{.kind = kind, .a = below(static_cast<size_t>(kSmallProgramSlots)), .b = rank, .c = tag};
      ops.insert(ops.begin() + below(ops.size() + 1), op);
    }
  }

  // Looks at what calls write, and writes there, in some programs, anywhere behind the call. Drawn apart, too.
  void touch_early() {
    Prng prng(program_.seed ^ 0x0ea71e5);
    const auto below = [&](size_t n) { return static_cast<size_t>(prng.below(n)); };
    if (below(6) != 0) return;
    for (size_t n = 1 + below(2); n > 0; --n) {
      std::vector<SmallOp>& ops = program_.ranks[below(program_.ranks.size())];
      std::vector<size_t> calls;
      for (size_t i = 0; i < ops.size(); ++i) {
        if (is_call(ops[i].kind) && makes_work(ops[i].kind)) calls.push_back(i);
      }
      if (calls.empty()) continue;
      const size_t call = calls[below(calls.size())];
      const int slot = ops[call].a;
      const bool writes = below(4) == 0;
      // Behind other steps, half of the time behind the next one.
      const size_t room = ops.size() - call;
      const size_t at = call + 1 + (below(2) == 0 ? std::min<size_t>(1, room - 1) : below(room));
      ops.insert(ops.begin() + static_cast<ptrdiff_t>(at),
                 {.kind = writes ? Kind::kEarlyWrite : Kind::kEarlyRead, .a = slot, .b = static_cast<int>(below(2))});
    }
  }

  // Waits for what nobody has waited for, mostly.
  void finish(std::vector<SmallOp>* ops) {
    std::array<bool, kSmallProgramSlots> open = {};
    std::array<bool, 2> streams = {};
    for (const SmallOp& op : *ops) {
      const size_t slot = static_cast<size_t>(op.a);
      if (makes_work(op.kind)) open[slot] = true;
      if (op.kind == Kind::kBatchIsendIrecv) open[(slot + 1) % kSmallProgramSlots] = true;
      if (is_call(op.kind) && op.streamed) streams[0] = true;
      if (op.kind == Kind::kWait || op.kind == Kind::kSynchronize || op.kind == Kind::kWaitFor) open[slot] = false;
      if (op.kind == Kind::kWaitAll) open = {};
      if (op.kind == Kind::kLaunch) streams[slot] = true;
      if (op.kind == Kind::kStreamSynchronize) streams[slot] = false;
    }
    for (int slot = 0; slot < kSmallProgramSlots; ++slot) {
      if (open[static_cast<size_t>(slot)] && !chance(16)) ops->push_back({.kind = Kind::kWait, .a = slot});
    }
    for (int i = 0; i < 2; ++i) {
      if (streams[static_cast<size_t>(i)] && chance(2)) ops->push_back({.kind = Kind::kStreamSynchronize, .a = i});
    }
  }

  Fault fault() {
    constexpr Fault::Kind kKinds[] = {Fault::Kind::kCrash, Fault::Kind::kHang,        Fault::Kind::kDelay,
                                      Fault::Kind::kDrop,  Fault::Kind::kDuplicate,   Fault::Kind::kCorrupt,
                                      Fault::Kind::kAbort, Fault::Kind::kStoreTimeout};
    return {.kind = kKinds[below(static_cast<int>(std::size(kKinds)))],
            .rank = some_rank(),
            .nth = 1 + below(2),
            .when = static_cast<Fault::When>(below(3)),
            .by = ms(1 + below(2)),
            .maybe = !chance(4)};
  }

  Prng prng_;
  SmallProgram program_;
  std::array<int, 3> next_slot_ = {};  // [rank]
  int drawn_ = 0;
};

}  // namespace

SmallProgram draw_program(uint64_t seed) { return Drawer(seed).draw(); }

}  // namespace rankloom
