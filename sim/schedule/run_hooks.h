#pragma once

#include <memory>
#include <vector>

#include "rankloom/schedule.h"

namespace rankloom::internal {

class SchedulePolicy;
class StepRecord;

// Makes the policies of a search's runs.
class PolicySource {
 public:
  virtual std::unique_ptr<SchedulePolicy> policy() = 0;

 protected:
  ~PolicySource() = default;
};

// The hooks that a search hands to a run beside its schedule. All of it outlives the run.
struct RunHooks {
  PolicySource* policies = nullptr;  // says who is next; null: the schedule does
  StepRecord* record = nullptr;      // is told what each step touches
  std::vector<Schedule::Switch>* departures =
      nullptr;  // of a replay: is told where the run departs from the order of a steered one, so
                // that steered() with these repeats the run, and can be cut down
};

}  // namespace rankloom::internal
