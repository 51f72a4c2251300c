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
#include "tests/campaign/rank_words.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/tensors.h"

// The words of programs that to_cpp() prints: what is not rankloom's.
namespace rankloom::printed {

void write(const TensorView& view, std::string_view hex);
// An input that no call may change.
void give(Tensors& tensors, const TensorView& view, std::string_view hex);

// All that a rank sees, beside what the oracle says.
class Log {
 public:
  // The rank comes to a barrier of a group of `members`, whose first has the global rank `first`; the sight with these
  // tensors says whether all have.
  void comes(Tensors& tensors, int act, int part, int first, int members);
  // The rank makes `barrier`, which lets it go when all have come.
  void comes(int act, int first, int members, const std::function<void()>& barrier);
  void see(int act, std::string have, std::string want);
  // Bytes of tensors, which have come to no harm, and of which the rank has no use from then on.
  void see(int act, Tensors& tensors, std::string have, std::string_view hex);
  // The owner of tensors whose call nobody waits for: when it ends, it sees the outputs.
  std::shared_ptr<const void> owner(int act, std::shared_ptr<Tensors> tensors, std::vector<TensorView> outputs,
                                    std::string_view hex);

  const RankLog& have() const { return have_; }
  const RankLog& want() const { return want_; }
  // A line for each sight that is another one: "act 9: have 0001, want 0002".
  std::vector<std::string> differences() const;

 private:
  friend class ProgramRun;
  RankLog have_, want_;
  std::shared_ptr<Arrivals> arrivals_;
};

std::vector<Work> joined(std::initializer_list<std::vector<Work>> works);

using Programs = std::vector<void (*)(RankContext& rank, Log& log)>;

// The schedule that the program's first argument names, else `schedule`; on the engine of the second one, else, without
// any, `engine`, or on fibers if the schedule can do with one thread. Ends the process where these make no sense.
void choose_gear(int argc, char** argv, std::string_view schedule, std::string_view engine, WorldOptions* options);
// Runs the program of each rank. 0: nothing is wrong with the run, of a job as to_text() has it, by wrong_with(); else
// 1, and stdout says what is.
int run(std::string_view job, const WorldOptions& options, const Programs& ranks);
// The same for two worlds at the same time, one on threads and one on fibers.
int run_two_worlds(std::string_view job, const WorldOptions& options, const Programs& ranks);

// Tests see each run.
inline std::function<void(const Plan& plan, const Gear& gear, const JobRun& run)> on_run;

}  // namespace rankloom::printed
