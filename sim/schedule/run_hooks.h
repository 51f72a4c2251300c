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
  PolicySource* policies = nullptr;  // source of the run's policy; null: the schedule's own
  StepRecord* record = nullptr;      // record of what each step touches; null: the run is not explored
  // Of a replay: gets the run's departures from the default order, with which steered() repeats the run; these can be
  // cut down. Null: nobody asks.
  std::vector<Schedule::Switch>* departures = nullptr;
};

}  // namespace rankloom::internal
