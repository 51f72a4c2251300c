// Programs whose number of schedules that can differ is known from the literature and from other tools.
//
// Counted are Mazurkiewicz traces, runs that differ in the order of two steps which conflict. Cells are store
// keys; a read is get(), a write is set() of a key that is there, and both act on one key only and never wait. An
// atomic increment is add(), which conflicts with every other one of its key; compare_set() counts as a write whether
// it changes the value or not.
// Sources: GenMC tests/correct/synthetic (readers, lastzero, indexer, ainc, binc, n writers and a reader); P. Abdulla
// et al., "Optimal Dynamic Partial Order Reduction", POPL 2014, table 1.

#pragma once

#include <functional>
#include <string>

#include "rankloom/store.h"

namespace rankloom {

// A program of numbered tasks on numbered cells, which are 0 at first.
struct CountedProgram {
  std::string name;
  int tasks;
  int cells;
  // Returns all that the task has seen, as a text.
  std::function<std::string(Store& store, int task)> run;

  // Before each run.
  void clear(Store& store) const;
};

// One writer, n readers.
CountedProgram readers(int n);
// Task j > 0 makes cell j one more than cell j - 1; task 0 looks for the last cell that is zero.
CountedProgram lastzero(int n);
// Each task puts four numbers into a hash table of 128 cells: tasks meet from the twelfth on.
CountedProgram indexer(int n);
CountedProgram increments(int n);
// The same for two cells, one after the other: the order on each is any.
CountedProgram increments_of_two(int n);
// n + 1 writers and a reader of one cell.
CountedProgram writers(int n);

}  // namespace rankloom
