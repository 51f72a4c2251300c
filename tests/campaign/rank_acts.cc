// Acts of a rank that are no calls on data.

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/rank_run.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

void RankRun::meet(const Act& act) {
  Store& store = rank_.store();
  const int n = job_.world_size;
  const bool first = me() == 0, last = me() == n - 1;
  const std::string key = absl::StrCat("meeting ", act.id, ".");
  const auto value = [&](int i) { return absl::StrCat(act.id, ".", i); };
  const auto all_come = [&](std::string_view where) {
    store_barrier(store, absl::StrCat(key, std::string(where)), me(), n);
  };
  std::string saw;
  switch (act.a) {
    case 0: {
      std::vector<std::string> keys;
      for (int i = 0; i < n; ++i) keys.push_back(absl::StrCat(key, i));
      if (act.b == 1) {
        const std::string own = value(me());
        store.multi_set({keys[static_cast<size_t>(me())]}, {own});
      } else {
        store.set(keys[static_cast<size_t>(me())], value(me()));
      }
      if (act.c == 1) store.wait(keys);
      for (const std::string& got : store.multi_get(keys)) absl::StrAppend(&saw, got, ",");
      break;
    }
    case 1: {
      const int64_t sum = store.add(key, int64_t{1} << me());
      if ((sum >> me() & 1) == 0) saw = "its own is not in the sum ";
      all_come("");
      saw += store.get(key);
      break;
    }
    case 2:
      if (first) {
        for (int i = 0; i < 3; ++i) store.queue_push(key, value(i));
      }
      if (last) {
        for (int i = 0; i < 3; ++i) absl::StrAppend(&saw, store.queue_pop(key), ",");
      }
      break;
    case 3: {
      const std::string won = store.compare_set(key, "", value(me()));
      all_come("");
      saw = won == store.get(key) ? "one wins" : "another one won";
      break;
    }
    case 4: {
      const auto changes = std::make_shared<Watched<std::string>>();
      if (last) {
        store.watch_key(key, [changes](std::optional<std::string_view>, std::optional<std::string_view> after) {
          changes->update([&](std::string& all) { absl::StrAppend(&all, "->", std::string(after.value_or("none"))); });
        });
      }
      all_come(" before");
      if (first) {
        for (int i = 0; i < 3; ++i) store.set(key, value(i));
      }
      all_come(" after");
      saw = changes->get();
      break;
    }
    case 5:
      if (first) {
        for (int i = 0; i < 3; ++i) store.append(key, value(i));
        store.set(key + " is whole", "");
      }
      store.wait({key + " is whole"});
      saw = store.get(key);
      break;
    default:
      no_such("way to meet in the store", act.a);
  }
  see(act.id, saw);
}

void RankRun::store_timeout(const Act& act) {
  const int microseconds = act.b == 1 ? 0 : 100;
  see(act.id, timeout(rank_, microseconds, [&] {
        rank_.store().wait({absl::StrCat("nobody sets ", act.id)}, absl::Microseconds(microseconds));
      }));
}

// Virtual time, or the clock's where threads are free, has gone on by so much.
void RankRun::sleep(const Act& act) {
  const absl::Duration before = rank_.now();
  rank_.sleep_for(absl::Microseconds(act.a));
  const absl::Duration passed = rank_.now() - before;
  beside_.overslept = std::max(beside_.overslept, passed - absl::Microseconds(act.a));
  see(act.id, slept_text(passed, act.a));
}

void RankRun::shared_count(const Act& act) {
  const int n = job_.world_size;
  const auto shared = shared_by_all(rank_, act.id);
  int sum = 0;
  if (act.a == 0) {
    const MutexLock lock(&shared->mu);
    shared->sum += me() + 1;
    if (++shared->came == n) {
      shared->changed.notify_all();
    } else if (act.b == 1 && !job_.may_fail()) {
      if (!shared->changed.wait_for(&shared->mu, absl::Hours(1), [&] { return shared->came == n; })) return;
    } else {
      shared->changed.wait(&shared->mu, [&] { return shared->came == n; });
    }
    sum = shared->sum;
  } else {
    shared->watched.update([&](int& value) { value += me() + 1; });
    if (act.b == 1) {
      shared->latch.arrive_and_wait();
    } else {
      shared->latch.count_down();
      shared->latch.wait();
    }
    sum = shared->watched.get();
  }
  see(act.id, absl::StrCat("all ", sum));
}

void RankRun::helper(const Act& act) {
  const auto latch = std::make_shared<Latch>(1, "helper");
  const auto saw = std::make_shared<std::string>();
  rank_.world().spawn_helper([&rank = rank_, latch, saw, act] {
    *saw = run_script(rank, script_of(act), act.id);
    latch->count_down();
  });
  latch->wait();
  see(act.id, *saw);
}

// A call whose time ends, as nobody else comes: its own timeout, the wait's, the group's, and all-or-none barriers.
void RankRun::stands_alone(const Act& act, ProcessGroup& pg) {
  constexpr absl::Duration kSoon = absl::Milliseconds(1);
  const auto tensors = memory_.tensors();
  const TensorView one = tensors->add(DType::kFloat32, 1);
  switch (act.a) {
    case 0:
      return pg.barrier({.timeout = kSoon}).wait();
    case 1:
      return pg.all_reduce(one).wait(kSoon);
    case 2:
      pg.set_timeout(kSoon);
      return pg.all_gather_into_tensor(tensors->add(DType::kFloat32, pg.size()), one).wait();
    case 3:
      return pg.monitored_barrier(kSoon, act.c == 1);
    case 4:
      return pg.recv(one, pg.rank() == 0 ? 1 : 0, /*tag=*/9, {.timeout = kSoon}).wait();
    case 5:
      return store_barrier(rank_.store(), absl::StrCat("alone ", act.id), 0, 2, kSoon);
    default:
      no_such("timeout of a group", act.a);
  }
}

void RankRun::make_groups(const Act& act, const Partition& where) {
  const std::shared_ptr<ProcessGroup> parent =
      act.type() == ActKind::kInitGroup ? nullptr : groups_.at({act.group, act.dim});
  const int member = where.member(me());
  std::shared_ptr<ProcessGroup> made;
  switch (act.type()) {
    case ActKind::kNewGroup: {
      std::vector<int> ranks;
      for (int i = 0; i < parent->size(); ++i) {
        if ((act.a >> i & 1) != 0) ranks.push_back(i);
      }
      if (ranks.empty()) ranks = {0};
      if (act.c == 1) std::reverse(ranks.begin(), ranks.end());
      made = act.b == 1 ? parent->new_group(group_options()) : parent->new_group(ranks, group_options());
      break;
    }
    case ActKind::kSplitGroup: {
      const bool none = act.b == 1 && member == parent->size() - 1;
      made = parent->split_group(none ? ProcessGroup::kNoColor : member / std::max(1, act.a), act.c == 1 ? -member : 0,
                                 group_options());
      break;
    }
    case ActKind::kMesh: {
      const int width = std::max(1, act.a);
      const DeviceMesh mesh = init_device_mesh(
          parent, {parent->size() / width, width},
          act.b == 1 ? std::vector<std::string>{"dp", "tp"} : std::vector<std::string>{}, group_options());
      groups_[{act.id, 1}] = mesh.get_group(1);
      made = act.b == 1 ? mesh.get_group("dp") : mesh.get_group(0);
      break;
    }
    default: {
      if (!plan_.made(act.id, 0)->has(me())) return;
      GroupOptions options = group_options();
      if (act.a != 0) options.ranks = plan_.made(act.id, 0)->of(me());
      made = init_process_group(rank_, options);
    }
  }
  groups_[{act.id, 0}] = made;
  std::string saw = text_of(made);
  if (act.type() == ActKind::kMesh) saw += text_of(groups_[{act.id, 1}]);
  see(act.id, saw);
}

void RankRun::refused(const Act& act, ProcessGroup& pg, int member) {
  const int n = pg.size();
  std::vector<float> two = {1, 2};
  std::vector<int32_t> whole = {1};
  std::vector<float> wrong(static_cast<size_t>(2 * n + 1));
  std::vector<uint8_t> bytes(8);
  const auto as = [&bytes](DType dtype) { return TensorView(bytes.data(), dtype, {1}); };
  see(act.id, refusal(pg, [&] {
        switch (act.a) {
          case 0:
            (void)pg.broadcast(two, n);
            break;
          case 1:
            (void)pg.send(two, n);
            break;
          case 2:
            (void)pg.recv(two, member, -1);
            break;
          case 3:
            (void)pg.all_reduce(TensorView(two.data(), DType::kFloat32, {2, -1}));
            break;
          case 4:
            (void)pg.all_reduce(whole, ReduceOp::kAvg);
            break;
          case 5:
            (void)pg.all_gather_into_tensor(wrong, two);
            break;
          case 6:
            (void)pg.new_group({0, 0});
            break;
          case 7:
            (void)pg.all_reduce(two, ReduceOp::kBxor);
            break;
          case 8:
            (void)pg.reduce(as(DType::kFloat8E5M2), 0);
            break;
          case 9:
            (void)pg.all_reduce(as(DType::kBool), ReduceOp::kAvg);
            break;
          case 10:
            (void)pg.all_reduce(as(DType::kComplex64), ReduceOp::kMax);
            break;
          case 11:
            (void)pg.all_reduce(whole, ReduceOp::premul_sum(2));
            break;
          case 12:
            (void)pg.all_gather(std::vector<TensorView>(static_cast<size_t>(n + 1), TensorView(two)), two);
            break;
          case 13:
            (void)pg.all_to_all_single(wrong, wrong, std::vector<int64_t>(static_cast<size_t>(n), 1),
                                       std::vector<int64_t>(static_cast<size_t>(n), -1));
            break;
          case 14:
            (void)pg.all_gather_into_tensor(TensorView(wrong.data(), DType::kFloat32, {2 * n}),
                                            TensorView(wrong.data() + 1, DType::kFloat32, {2}));
            break;
          case 15:
            (void)pg.split_group(-2);
            break;
          default:
            no_such("wrong argument", act.a);
        }
      }));
}

void RankRun::other_call(const Act& act, ProcessGroup& pg, int member) {
  const auto tensors = memory_.tensors();
  const TensorView one = tensors->add(DType::kFloat32, 1);
  Tensors::write(one, Bytes(4));
  Work work = act.rank == me() ? pg.broadcast(one, member) : pg.all_reduce(one);
  work.wait();
}

}  // namespace rankloom
