#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rankloom/schedule.h"
#include "sim/schedule/tree_part.h"

namespace rankloom::internal {

class ScheduleTree;

// The marks by which processes are known to search the same program: equal texts. Each is named in an error.
struct CampaignIdentity {
  std::string program;    // which machine code the process has loaded
  std::string options;    // of the search
  std::string first_run;  // the choices of the run in default order

  friend bool operator==(const CampaignIdentity&, const CampaignIdentity&) = default;
};

// From the leader of a campaign to a worker.
struct CampaignOrder {
  enum class Kind : uint8_t {
    kPart,   // search this part of the tree of schedules, with `runs` runs at the most
    kSeeds,  // make the drawn runs `first` to `end`
    kShare,  // leave some of the part that you search to others, as soon as there is something to leave
    kPause,  // end the part that you search after the run that you make; make no drawn run from `first` on
    kStop,   // there is no more to do
  };
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  Kind kind = Kind::kStop;
  int64_t work = 0;      // kPart, kSeeds: a number for it
  bool careful = false;  // tell of each run before it is made: a process that did this work has died
  bool fresh = false;    // kPart: nobody has made the choice before the floor yet
  int64_t runs = 0;
  TreePart part = {};
  int64_t first = 0;
  int64_t end = 0;

  std::string encode() const;
  // Errors: InvalidArgument; another version's message.
  static absl::StatusOr<CampaignOrder> decode(std::string_view bytes);
};

// From a worker to the leader.
struct CampaignNews {
  enum class Kind : uint8_t {
    kHello,   // the first of all
    kOpened,  // kPart: the first run of a fresh part has shown what the step before its floor is
    kPart,    // of the part, all since the message before
    kSeeds,   // the drawn runs from `first` to before `run` were made: the work is done, or paused, or one has failed
    kRun,     // careful work: the run that comes next; -1: no more is told of runs
    kSwitch,  // careful work: where this run has departed from the default order since the message before
  };
  enum class State : uint8_t { kGoing, kPaused, kDone, kFailed };
  // A run that failed.
  struct Failure {
    std::string trace;  // kPart: as Trace::serialize() gives it
    std::string headline;
    std::vector<std::string> failures;
  };

  Kind kind = Kind::kHello;
  CampaignIdentity identity = {};
  uint64_t objects = 0;  // kHello: StepRecord::Origin::made
  int64_t work = 0;
  State state = State::kGoing;
  TriedTask opened = {};              // also in kPart, once a run was made: the step before the floor
  std::vector<GivenNode> given = {};  // kPart: left to others; the part's floor lies behind them now
  TreePart rest = {};                 // kPart, going or paused: what is left of it
  std::vector<TreeWish> wishes = {};
  int64_t runs = 0;  // kPart
  int64_t schedules = 0;
  int64_t repeated = 0;
  int64_t open = 0;
  std::vector<std::string> uncovered = {};
  bool saw_any = false;
  bool rooted_asked = false;
  bool older_objects = false;      // StepRecord::older_objects()
  bool completions_write = false;  // as in TreePart; also of a part that is done, which has no rest
  int64_t run = 0;                 // kSeeds: as above; kRun: of the work, from 0; of drawn runs its number
  int64_t ns = 0;                  // kSeeds: real time of its runs
  std::vector<Schedule::Switch> switches = {};
  std::optional<Failure> failure = {};

  // The facts of the part that a tree searches, but for those that depend on what was told before: runs, a failure, and
  // the choices that are given away. Takes the tree's wishes.
  static CampaignNews of_part(ScheduleTree* tree, State state);

  std::string encode() const;
  // Errors: InvalidArgument.
  static absl::StatusOr<CampaignNews> decode(std::string_view bytes);
};

}  // namespace rankloom::internal
