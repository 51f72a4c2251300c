#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/threaded/threaded_process_group.h"
#include "rankloom/process_group.h"
#include "rankloom/random.h"
#include "rankloom/world.h"

namespace rankloom {

using namespace internal;

// A program drawn from a seed: all ranks issue the same calls in the same order, each awaits its works when and in what
// order it likes, and computes with what came out. run_rank() runs it on a rank; outcome() says, without ranks, threads
// or rankloom's kernels, what each rank must end with, whatever the schedule.
class RandomProgram {
 public:
  using State = std::vector<int64_t>;

  explicit RandomProgram(uint64_t seed) : prng_(seed) {
    ranks_ = 2 + below(4);
    const int calls = 3 + below(8);
    for (int i = 0; i < calls; ++i) {
      calls_.push_back({.kind = static_cast<Call::Kind>(below(Call::kKinds)),
                        .root = below(ranks_),
                        .shift = 1 + below(ranks_ - 1),
                        .count = static_cast<size_t>(below(5))});
    }
    for (int rank = 0; rank < ranks_; ++rank) actions_.push_back(draw_actions());
  }

  int ranks() const { return ranks_; }

  State run_rank(RankContext& rank) const {
    auto pg = init_process_group(rank);
    State state = first_state(rank.rank());
    std::vector<std::optional<Issued>> issued(calls_.size());
    for (const Action& action : actions_[static_cast<size_t>(rank.rank())]) {
      switch (action.kind) {
        case Action::kIssue:
          issue(*pg, action.call, state, issued[static_cast<size_t>(action.call)].emplace());
          break;
        case Action::kWait: {
          Issued& call = *issued[static_cast<size_t>(action.call)];
          for (Work& work : call.works) work.wait();
          fold(call.output, &state);
          break;
        }
        case Action::kYield:
          rank.yield();
          break;
        case Action::kSleep:
          rank.sleep_for(absl::Microseconds(action.call));
          break;
        case Action::kHelp:
          rank.world().spawn_helper([&rank] {
            rank.yield();
            rank.store().add("helped", 1);
          });
          break;
      }
    }
    return state;
  }

  // By rank.
  std::vector<State> outcome() const {
    std::vector<State> states;
    std::vector<std::vector<State>> inputs(calls_.size(), std::vector<State>(static_cast<size_t>(ranks_)));
    std::vector<int> arrived(calls_.size());
    std::vector<size_t> at(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) states.push_back(first_state(rank));
    // Each rank goes as far as it can; round and round until all are through.
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks_; ++rank) {
        const size_t r = static_cast<size_t>(rank);
        for (; at[r] < actions_[r].size(); ++at[r]) {
          const Action& action = actions_[r][at[r]];
          const size_t call = static_cast<size_t>(action.call);
          if (action.kind == Action::kIssue) {
            inputs[call][r] = input_of(calls_[call], states[r]);
            ++arrived[call];
          } else if (action.kind == Action::kWait) {
            if (arrived[call] < ranks_) break;
            fold(result_of(calls_[call], inputs[call], rank), &states[r]);
          }
          moved = true;
        }
      }
    }
    return states;
  }

  friend std::ostream& operator<<(std::ostream& out, const RandomProgram& program) {
    static constexpr const char* kCalls[] = {"all_reduce sum", "all_reduce max", "broadcast",        "all_gather",
                                             "reduce_scatter", "all_to_all",     "send to the next", "barrier"};
    static constexpr const char* kActions[] = {"issue", "wait", "yield", "sleep", "help"};
    out << program.ranks_ << " ranks; calls:";
    for (const Call& call : program.calls_) {
      out << " " << kCalls[call.kind] << " (root " << call.root << ", shift " << call.shift << ", count " << call.count
          << ")";
    }
    for (size_t rank = 0; rank < program.actions_.size(); ++rank) {
      out << "\n  rank " << rank << ":";
      for (const Action& action : program.actions_[rank]) out << " " << kActions[action.kind] << " " << action.call;
    }
    return out;
  }

 private:
  struct Call {
    enum Kind : uint8_t { kSum, kMax, kBroadcast, kAllGather, kReduceScatter, kAllToAll, kShift, kBarrier };
    static constexpr int kKinds = 8;
    Kind kind;
    int root;
    int shift;     // kShift: to whom
    size_t count;  // elements a rank; 0 is allowed
  };
  struct Action {
    enum Kind : uint8_t { kIssue, kWait, kYield, kSleep, kHelp };
    Kind kind;
    int call = 0;  // kSleep: microseconds
  };
  struct Issued {
    std::vector<Work> works;
    State input;
    State output;
  };

  int below(int bound) { return static_cast<int>(prng_.below(static_cast<uint64_t>(bound))); }

  std::vector<Action> draw_actions() {
    std::vector<Action> actions;
    std::vector<int> pending;
    const auto wait_for_one = [&] {
      const size_t i = static_cast<size_t>(below(static_cast<int>(pending.size())));
      actions.push_back({Action::kWait, pending[i]});
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int call = 0; call < static_cast<int>(calls_.size()); ++call) {
      if (below(4) == 0) actions.push_back({Action::kYield});
      if (below(8) == 0) actions.push_back({Action::kSleep, 1 + below(3)});
      if (below(16) == 0) actions.push_back({Action::kHelp});
      actions.push_back({Action::kIssue, call});
      pending.push_back(call);
      while (!pending.empty() && below(2) == 0) wait_for_one();
    }
    while (!pending.empty()) wait_for_one();
    return actions;
  }

  static State first_state(int rank) { return {rank + 1, 1000 * rank, -7 - rank}; }

  static int64_t mixed(int64_t a, uint64_t b) {
    uint64_t word = static_cast<uint64_t>(a) ^ (b * 0x9e3779b97f4a7c15);
    return static_cast<int64_t>(Prng::splitmix64(word));
  }
  static void fold(const State& output, State* state) {
    for (size_t i = 0; i < output.size(); ++i)
      (*state)[i % state->size()] = mixed((*state)[i % state->size()], static_cast<uint64_t>(output[i]) + i);
    (*state)[0] = mixed((*state)[0], output.size());
  }

  State input_of(const Call& call, const State& state) const {
    const bool part_for_each = call.kind == Call::kReduceScatter || call.kind == Call::kAllToAll;
    State input(call.kind == Call::kBarrier ? 0
                : part_for_each             ? call.count * static_cast<size_t>(ranks_)
                                            : call.count);
    for (size_t i = 0; i < input.size(); ++i) input[i] = mixed(state[i % state.size()], i);
    return input;
  }

  // The result that `rank` must get.
  State result_of(const Call& call, const std::vector<State>& inputs, int rank) const {
    const size_t r = static_cast<size_t>(rank);
    State out;
    const auto reduced = [&](size_t element, bool sum) {
      int64_t value = inputs[0][element];
      for (size_t from = 1; from < inputs.size(); ++from) {
        const int64_t next = inputs[from][element];
        value = sum ? static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(next))
                    : std::max(value, next);
      }
      return value;
    };
    switch (call.kind) {
      case Call::kSum:
      case Call::kMax:
        for (size_t i = 0; i < call.count; ++i) out.push_back(reduced(i, call.kind == Call::kSum));
        break;
      case Call::kBroadcast:
        out = inputs[static_cast<size_t>(call.root)];
        break;
      case Call::kAllGather:
        for (const State& input : inputs) out.insert(out.end(), input.begin(), input.end());
        break;
      case Call::kReduceScatter:
        for (size_t i = 0; i < call.count; ++i) out.push_back(reduced(r * call.count + i, true));
        break;
      case Call::kAllToAll:
        for (const State& input : inputs) {
          for (size_t i = 0; i < call.count; ++i) out.push_back(input[r * call.count + i]);
        }
        break;
      case Call::kShift:
        out = inputs[static_cast<size_t>((rank + ranks_ - call.shift) % ranks_)];
        break;
      case Call::kBarrier:
        break;
    }
    return out;
  }

  // `issued` stays where it is until its works are done.
  void issue(ProcessGroup& pg, int number, const State& state, Issued& issued) const {
    const Call& call = calls_[static_cast<size_t>(number)];
    issued.input = input_of(call, state);
    const size_t n = static_cast<size_t>(ranks_);
    const auto add = [&issued](Work work) { issued.works.push_back(std::move(work)); };
    switch (call.kind) {
      case Call::kSum:
      case Call::kMax:
        issued.output = issued.input;
        add(pg.all_reduce(issued.output, call.kind == Call::kSum ? ReduceOp::kSum : ReduceOp::kMax));
        break;
      case Call::kBroadcast:
        issued.output = issued.input;
        add(pg.broadcast(issued.output, call.root));
        break;
      case Call::kAllGather:
        issued.output.resize(call.count * n);
        add(pg.all_gather_into_tensor(issued.output, issued.input));
        break;
      case Call::kReduceScatter:
        issued.output.resize(call.count);
        add(pg.reduce_scatter_tensor(issued.output, issued.input));
        break;
      case Call::kAllToAll:
        issued.output.resize(call.count * n);
        add(pg.all_to_all_single(issued.output, issued.input));
        break;
      case Call::kShift:
        issued.output.resize(call.count);
        add(pg.send(issued.input, (pg.rank() + call.shift) % ranks_, number));
        add(pg.recv(issued.output, (pg.rank() + ranks_ - call.shift) % ranks_, number));
        break;
      case Call::kBarrier:
        add(pg.barrier());
        break;
    }
  }

  Prng prng_;
  int ranks_ = 0;
  std::vector<Call> calls_;
  std::vector<std::vector<Action>> actions_;  // by rank
};

}  // namespace rankloom
