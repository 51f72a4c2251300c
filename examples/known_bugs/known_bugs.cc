#include "examples/known_bugs/known_bugs.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rankloom/process_group.h"

namespace rankloom {
namespace {

void want(bool good, const std::string& text) {
  if (!good) throw std::runtime_error(text);
}

int number(const std::string& text) {
  int value = -1;
  want(absl::SimpleAtoi(text, &value), absl::StrCat("no number: ", text));
  return value;
}

// Two groups over the same ranks, whose calls wait for one another if ranks issue them in different orders. Here the
// order depends on what happened to be there first: a bucket of gradients, a request.
void order_across_groups(RankContext& rank, bool bug) {
  const auto a = init_process_group(rank, {.name = "a"});
  const auto b = init_process_group(rank, {.name = "b"});
  if (rank.rank() == 2) rank.store().set("a is ready", "1");
  const bool a_first = !bug || rank.rank() == 2 || rank.store().check({"a is ready"});
  std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
  (a_first ? a : b)->all_reduce(x).wait();
  (a_first ? b : a)->all_reduce(x).wait();
}

// Reads the output of an asynchronous call once a message from a peer suggests that it must be there.
void missing_wait(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  std::vector<float> x = {1.0f + static_cast<float>(rank.rank())};
  Work work = pg->all_reduce(x);
  rank.store().set(absl::StrCat("called ", rank.rank()), "1");
  rank.store().get(absl::StrCat("called ", (rank.rank() + 1) % rank.world_size()));
  if (!bug) work.wait();
  const float seen = x[0];
  if (bug) work.wait();
  want(seen == 3, absl::StrCat("the sum is ", seen, ", want 3"));
}

// Each rank asks by itself whether to stop; one that asks too early goes on alone.
void early_return(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  for (int step = 0; step < 3; ++step) {
    std::vector<int32_t> stop = {rank.store().check({"stop"}) ? 1 : 0};
    if (!bug) pg->all_reduce(stop, ReduceOp::kMax).wait();
    if (stop[0] != 0) return;
    std::vector<float> x = {1};
    pg->all_reduce(x).wait();
    if (step == 0 && rank.rank() == 0) rank.store().set("stop", "1");
  }
}

// The first rank that comes is the root; who asks before it has said so takes rank 0.
void wrong_root(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  if (rank.store().add("came", 1) == 1) rank.store().set("root", absl::StrCat(rank.rank()));
  const bool known = !bug || rank.store().check({"root"});
  const int root = known ? number(rank.store().get("root")) : 0;
  std::vector<float> x = {static_cast<float>(rank.rank())};
  pg->broadcast(x, root).wait();
  want(x[0] == static_cast<float>(root), "not the root's number");
}

// get and set where add is wanted.
void racy_counter(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  if (rank.rank() == 0) rank.store().set("count", "0");
  pg->barrier().wait();
  if (bug) {
    const int count = number(rank.store().get("count"));
    rank.store().set("count", absl::StrCat(count + 1));
  } else {
    rank.store().add("count", 1);
  }
  pg->barrier().wait();
  const int count = number(rank.store().get("count"));
  want(count == rank.world_size(), absl::StrCat("the count is ", count, ", want ", rank.world_size()));
}

// A barrier of add, set and wait, used twice: the door of the first is still open when a fast rank comes to the second.
void store_barrier_of_two_doors(RankContext& rank, int round, bool bug) {
  const int size = rank.world_size();
  const std::string door = bug ? "open" : absl::StrCat("open ", round);
  const int64_t came = rank.store().add("came", 1);
  if (came % size == 0) rank.store().set(door, "1");
  rank.store().wait({door});
  const int64_t left = rank.store().add("left", 1);
  if (left % size == 0) rank.store().delete_key(door);
}
void aba_in_a_barrier(RankContext& rank, bool bug) {
  store_barrier_of_two_doors(rank, 1, bug);
  rank.store().set(absl::StrCat("done ", rank.rank()), "1");
  store_barrier_of_two_doors(rank, 2, bug);
  for (int other = 0; other < rank.world_size(); ++other) {
    want(rank.store().check({absl::StrCat("done ", other)}),
         absl::StrCat("rank ", other, " had not come when the barrier opened"));
  }
}

// All stages send before they receive: right as long as somebody keeps the messages in between.
void pipeline_deadlock(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  const int size = rank.world_size();
  const int next = (rank.rank() + 1) % size;
  const int before = (rank.rank() + size - 1) % size;
  std::vector<float> mine = {static_cast<float>(rank.rank())};
  std::vector<float> theirs = {-1};
  if (bug || rank.rank() % 2 == 0) {
    pg->send(mine, next).wait();
    pg->recv(theirs, before).wait();
  } else {
    pg->recv(theirs, before).wait();
    pg->send(mine, next).wait();
  }
  want(theirs[0] == static_cast<float>(before), "not the number of the stage before");
}

// Adds up in the order in which the numbers come.
void order_dependent_sum(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  std::vector<float> x = {rank.rank() == 1 ? 1e8f : rank.rank() == 2 ? -1e8f : 0.25f};
  if (rank.rank() != 0) {
    pg->send(x, 0).wait();
    return;
  }
  float sum = x[0];
  std::vector<float> parts(static_cast<size_t>(rank.world_size()));
  for (int i = 1; i < rank.world_size(); ++i) {
    std::vector<float> part = {0};
    Work work = pg->recv_any(part);
    work.wait();
    parts[static_cast<size_t>(work.source())] = part[0];
    if (bug) sum += part[0];
  }
  for (const float part : parts) sum += bug ? 0 : part;
  observe(rank, "sum", sum);
}

// Rank 0 closes the membership when enough have joined, and a rank that joins later believes that it belongs.
void late_joiner(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  const int enough = bug ? 2 : rank.world_size();
  const int64_t place = rank.store().add("joined", 1);
  if (place == enough) rank.store().set("enough", "1");
  if (rank.rank() == 0) {
    rank.store().wait({"enough"});
    rank.store().set("members", absl::StrCat(rank.store().add("joined", 0)));
  }
  if (place > number(rank.store().get("members"))) return;
  std::vector<float> x = {1};
  pg->all_reduce(x).wait();
}

// Two ranks clean up, and each looks first whether the other one did.
void double_destroy(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  if (rank.rank() == 0) rank.store().set("group", "handle");
  pg->barrier().wait();
  bool mine = false;
  if (bug) {
    mine = !rank.store().check({"destroyed"});
    if (mine) rank.store().set("destroyed", "1");
  } else {
    mine = rank.store().add("destroyers", 1) == 1;
  }
  if (mine)
    want(rank.store().delete_key("group"), absl::StrCat("rank ", rank.rank(), " destroyed the group a second time"));
}

// A server takes any request first, and then waits for the one of the client that it believes to be left.
void wildcard_receive(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  std::vector<float> x = {static_cast<float>(rank.rank())};
  if (rank.rank() != 1) {
    pg->send(x, 1).wait();
    return;
  }
  Work first = pg->recv_any(x);
  first.wait();
  pg->recv(x, bug ? 2 : 2 - first.source()).wait();
}

// Rank 0 writes a file, says so by a broadcast, and removes the file once it has read it itself: a broadcast is no
// barrier, its root does not wait for the others (pytorch#196591, pytorch#84881, Megatron-Bridge#591).
void deleted_after_broadcast(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  std::vector<int32_t> size = {0};
  if (rank.rank() == 0) {
    rank.store().set("checkpoint", "weights");
    size[0] = 7;
  }
  pg->broadcast(size, 0).wait();
  want(size[0] == 7, "not the size of the file");
  want(rank.store().check({"checkpoint"}), absl::StrCat("rank ", rank.rank(), " finds no checkpoint"));
  if (!bug) pg->barrier().wait();
  if (rank.rank() == 0) rank.store().delete_key("checkpoint");
}

// Rank 0 empties the folder for the next round once all have sent their part of this one: who only gives its part to a
// reduce is in the next round already (pytorch#194614).
void emptied_after_reduce(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  std::vector<int32_t> sum = {rank.rank() + 1};
  pg->reduce(sum, 0).wait();
  if (rank.rank() == 0) {
    want(sum[0] == 3, "not the sum");
    rank.store().delete_key("folder/round 2");
  }
  if (!bug) pg->barrier().wait();
  if (rank.rank() == 1) rank.store().set("folder/round 2", "1");
  pg->barrier().wait();
  want(rank.store().check({"folder/round 2"}), absl::StrCat("rank ", rank.rank(), " finds no file of round 2"));
}

// A key stands for a barrier: the rank that made it takes it away when it leaves (vllm#18506).
void key_for_a_barrier(RankContext& rank, bool bug) {
  const auto pg = init_process_group(rank);
  if (rank.rank() == 0) rank.store().set("server", "up");
  rank.store().wait({"server"});
  want(rank.store().check({"server"}), absl::StrCat("rank ", rank.rank(), " lost the server"));
  if (!bug) pg->barrier().wait();
  if (rank.rank() == 0) rank.store().delete_key("server");
}

template <void (*kProgram)(RankContext&, bool)>
constexpr KnownBug entry(const char* name, int ranks, int minimum, const char* symptom) {
  return {.name = name,
          .ranks = ranks,
          .bug = [](RankContext& rank) { kProgram(rank, true); },
          .fix = [](RankContext& rank) { kProgram(rank, false); },
          .minimum = minimum,
          .symptom = symptom};
}

constexpr KnownBug kBugs[] = {
    entry<order_across_groups>("order_across_groups", 3, 0, "Deadlock"),
    entry<missing_wait>("missing_wait", 2, 0, "the sum is nan"),
    entry<early_return>("early_return", 2, 0, "Deadlock"),
    entry<wrong_root>("wrong_root", 2, 2, "Mismatch"),
    entry<racy_counter>("racy_counter", 2, 1, "the count is 1, want 2"),
    entry<aba_in_a_barrier>("aba_in_a_barrier", 2, 0, "had not come when the barrier opened"),
    entry<pipeline_deadlock>("pipeline_deadlock", 4, 0, "Deadlock"),
    entry<order_dependent_sum>("order_dependent_sum", 4, 1, "results differ"),
    entry<late_joiner>("late_joiner", 3, 1, "Deadlock"),
    entry<double_destroy>("double_destroy", 2, 1, "a second time"),
    entry<wildcard_receive>("wildcard_receive", 3, 1, "Deadlock"),
    entry<deleted_after_broadcast>("deleted_after_broadcast", 2, 1, "rank 1 finds no checkpoint"),
    entry<emptied_after_reduce>("emptied_after_reduce", 2, 0, "finds no file of round 2"),
    entry<key_for_a_barrier>("key_for_a_barrier", 2, 0, "Deadlock"),
};

}  // namespace

std::span<const KnownBug> known_bugs() { return kBugs; }

}  // namespace rankloom
