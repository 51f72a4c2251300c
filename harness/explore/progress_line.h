#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "rankloom/explore.h"

namespace rankloom::internal {

// How far a search is, as one line of a terminal that is written anew again and again. Elsewhere: nothing.
// Thread-safety: thread-compatible.
class ProgressLine {
 public:
  // `stream` outlives this.
  explicit ProgressLine(std::FILE* stream);
  // Leaves no line behind.
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Whether anybody sees the line.
  bool shown() const { return shown_; }
  void tell(const ExploreOptions::Progress& progress, int64_t max_runs);
  // Of what takes its time after the search.
  void tell_shrinking(const ExploreOptions::Progress& progress);
  void clear();

 private:
  void write(const std::string& line);

  std::FILE* const stream_;
  const bool shown_;
  bool written_ = false;
};

// "exhaustive: 1200 of 20000 runs, 387/s; 600 schedules, 31 or more left".
std::string progress_text(const ExploreOptions::Progress& progress, int64_t max_runs);

}  // namespace rankloom::internal
