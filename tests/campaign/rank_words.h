#pragma once

#include <compare>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"
#include "tests/campaign/sights.h"
#include "tests/campaign/tensors.h"

namespace rankloom {

// The words of a rank's program that RankRun and printed programs share.

inline constexpr int kPolls = 20;  // of a work that may never be done

// Thrown by plan.
class PlannedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Each throws std::logic_error unless all that was waited for is there, and went well.
void check(const Work& work);
void check(const Future& future);
void check(SimStream& stream);
void check(const Stream::Event& event);
// A work that was waited for, in whatever way. Throws its DistError, too.
void must_be_done(Work& work);
// Whether a call on a stream is done when the rank has waited in this way: Work::wait() returns at once.
bool waits_for_streams(WaitWay way, const Job& job);
// A callback of the work had this status.
void check(const Work& work, const absl::Status& told);
// Waits for all of them with wait_any(), one after another.
void wait_for_each(std::vector<Work> works);

// Work::result() has the bytes of the call's outputs.
void check_result(Work& work, const std::string& outputs);
// `saw`, and that the rank saw another thing before if one of these is another.
std::string alike(std::string saw, std::initializer_list<std::string> before);
std::string bytes_of(const std::vector<TensorView>& views);
// "2:" and the bytes of member 2, and so on, of what recv_any() got.
std::string by_source(const std::vector<Work>& works, const std::vector<TensorView>& outputs);

// The members that have come to barriers, counted beside the library.
// Thread-safety: all methods.
class Arrivals {
 public:
  struct Barrier {
    int act, part, first;  // first: global rank of the group's first member, as groups of one act are separate
    friend auto operator<=>(const Barrier&, const Barrier&) = default;
  };
  void comes(const Barrier& barrier);
  // Empty if `members` have come.
  std::string missing(const Barrier& barrier, int members) const;

 private:
  mutable std::mutex mu_;
  std::map<Barrier, int> came_;  // under mu_
};

// The tensors of a rank, until the world's end: a call whose work was dropped may still write to them.
class Memory {
 public:
  std::shared_ptr<Tensors> tensors() { return kept_.emplace_back(std::make_shared<Tensors>()); }
  // Nobody has written to tensors that were retired.
  bool rests() const;
  // Throws std::logic_error if somebody has.
  void check() const;

 private:
  std::vector<std::shared_ptr<Tensors>> kept_;
};

// Sees a call whose work nobody keeps, when the last owner of its tensors goes.
class Owner {
 public:
  Owner(int act, std::shared_ptr<Tensors> tensors, std::function<std::string()> read, RankLog* log)
      : act_(act), tensors_(std::move(tensors)), read_(std::move(read)), log_(*log) {}
  ~Owner();
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

 private:
  const int act_;
  const std::shared_ptr<Tensors> tensors_;
  const std::function<std::string()> read_;
  RankLog& log_;
};

// The objects that a helper needs while it waits: this rank may leave by an exception meanwhile.
struct Held {
  std::shared_ptr<Tensors> tensors;
  Work work;  // goes first
};

// "rank 1 of 0,2;": a group's members, or "none".
std::string text_of(const std::shared_ptr<ProcessGroup>& group);
// "InvalidArgument" if the call is refused so, without taking a number; else what became of it.
std::string refusal(const ProcessGroup& group, const std::function<void()>& call);
// "Timeout" if that is how the call ends, not before `microseconds`.
std::string timeout(RankContext& rank, int microseconds, const std::function<void()>& call);
// kSlept, if `passed` is as long as the rank was to sleep.
std::string slept_text(absl::Duration passed, int microseconds);
// The seed of a rank's own generator in a world whose seed is `seed`, as options.h has it.
uint64_t own_seed(int seed, int rank);

// Operations that are drawn from `seed`, on a store of kind `store` (ScriptStore); and what came of them.
std::string run_script(RankContext& rank, int act, int store, int seed);
// Another job, drawn from `seed`, within this rank's program, in the gear `gear`.
std::string nested_world(int seed, int gear);

// The object that ranks of a kSharedCount share.
struct Shared {
  explicit Shared(int ranks) : latch(ranks, "shared") {}
  Mutex mu{"shared"};
  CondVar changed{"shared"};
  int came = 0, sum = 0;  // under mu
  Latch latch;
  Watched<int> watched{0};
};
std::shared_ptr<Shared> shared_by_all(RankContext& rank, int act);

}  // namespace rankloom
