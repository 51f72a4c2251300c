#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/rankloom.h"
#include "tests/campaign/rank_run.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/tensors.h"

// The words of programs that to_cpp() prints: what is not rankloom's.
namespace rankloom::printed {

// The tensors of a rank, until its end: a call whose work was dropped may still write to them.
class Memory {
 public:
  std::shared_ptr<Tensors> tensors() { return kept_.emplace_back(std::make_shared<Tensors>()); }

 private:
  std::vector<std::shared_ptr<Tensors>> kept_;
};

void write(const TensorView& view, std::string_view hex);
std::string bytes_of(const std::vector<TensorView>& views);
// "2:" and the bytes of member 2, and so on, of what recv_any() got.
std::string by_source(const std::vector<Work>& works, const std::vector<TensorView>& outputs);

// All that a rank sees, beside what the oracle says.
class Log {
 public:
  void see(int act, std::string have, std::string want);
  // Bytes of tensors, beside which nobody may have written.
  void see(int act, const Tensors& tensors, std::string have, std::string_view hex);
  // The owner of tensors whose call nobody waits for: when it ends, it sees the outputs.
  std::shared_ptr<const void> owner(int act, std::shared_ptr<Tensors> tensors, std::vector<TensorView> outputs,
                                    std::string_view hex);

  const RankLog& have() const { return have_; }
  const RankLog& want() const { return want_; }
  // A line for each sight that is another one: "act 9: have 0001, want 0002".
  std::vector<std::string> differences() const;

 private:
  RankLog have_, want_;
};

// Each throws std::logic_error unless all that was waited for is there, and went well.
void check(const Work& work);
void check(const Future& future);
void check(SimStream& stream);
void check(const Stream::Event& event);

std::vector<Work> joined(std::initializer_list<std::vector<Work>> works);

// The objects that a helper needs while it waits: this rank may leave by an exception meanwhile.
struct Held {
  std::shared_ptr<Tensors> tensors;
  Work work;  // goes first
};

// "rank 1 of 0,2;": a group's members, or "none".
std::string text_of(const std::shared_ptr<ProcessGroup>& group);
// "InvalidArgument" if the call is refused so, without taking a number; else what became of it.
std::string refusal(const ProcessGroup& group, const std::function<void()>& call);
// "Timeout" if that is how the call ends.
std::string timeout(const std::function<void()>& call);

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

using Programs = std::vector<void (*)(RankContext& rank, Log& log)>;

// The schedule that the program's first argument names, else `usual`; on the engine of the second one, else on fibers
// if the schedule can do with one thread. Ends the process where these make no sense.
void choose_gear(int argc, char** argv, std::string_view usual, WorldOptions* options);
// Runs the program of each rank. 0: nothing is wrong with the run, of a job as to_text() has it, by wrong_with(); else
// 1, and stdout says what is.
int run(std::string_view job, const WorldOptions& options, const Programs& ranks);
// The same for two worlds at the same time, one on threads and one on fibers.
int run_two_worlds(std::string_view job, const WorldOptions& options, const Programs& ranks);

// Tests see each run.
inline std::function<void(const Plan& plan, const Gear& gear, const JobRun& run)> on_run;

}  // namespace rankloom::printed
