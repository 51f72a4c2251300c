#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/schedule/step_record.h"

namespace rankloom {

using namespace internal;

// The places in the library that tell a StepRecord of accesses, found by the stacks of their calls: so that each of
// them, also one that is new, can be left out in turn.
class AccessSites {
 public:
  AccessSites();
  // The number of the place that tells of `op` right now. Called by what StepRecord::leave_out_for_tests() was given.
  int site(const StepRecord::Op& op);
  int size() const { return static_cast<int>(names_.size()); }
  // The place tells which orders cannot be: without it the search tries more, and loses nothing.
  bool tells_of_orders(int site) const;
  // "write: KeyTable::set < TableStore::set".
  const std::string& name(int site) const { return names_[static_cast<size_t>(site)]; }

 private:
  // "": not of interest.
  const std::string& function_at(void* pc);

  std::map<void*, std::string> functions_;
  std::map<std::string, int> numbers_;
  std::vector<std::string> names_;
  std::vector<StepRecord::What> whats_;
};

}  // namespace rankloom
