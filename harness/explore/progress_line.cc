#include "harness/explore/progress_line.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "world/run_options.h"

namespace rankloom::internal {
namespace {

std::string runs_text(int64_t runs) { return absl::StrCat(runs, runs == 1 ? " run" : " runs"); }

}  // namespace

ProgressLine::ProgressLine(std::FILE* stream) : stream_(stream), shown_(is_terminal(stream)) {}

std::string progress_text(const ExploreOptions::Progress& progress, int64_t max_runs) {
  const double seconds = absl::ToDoubleSeconds(progress.elapsed);
  const double speed = seconds > 0 ? static_cast<double>(progress.runs) / seconds : 0.0;
  std::string text =
      absl::StrFormat("%s: %d of %s, %.0f/s", progress.strategy, progress.runs, runs_text(max_runs), speed);
  if (progress.schedules > 0 || progress.open > 0)
    absl::StrAppend(&text, "; ", progress.schedules, progress.schedules == 1 ? " schedule, " : " schedules, ",
                    progress.open, " or more left");
  return text;
}

void ProgressLine::tell(const ExploreOptions::Progress& progress, int64_t max_runs) {
  if (shown_) write(progress_text(progress, max_runs));
}

void ProgressLine::tell_shrinking(const ExploreOptions::Progress& progress) {
  if (shown_) write(absl::StrCat("a failure in ", runs_text(progress.runs), ", which is being shrunk"));
}

void ProgressLine::write(const std::string& line) {
  constexpr size_t kMost = 79;  // a line that wraps could not be taken back
  const std::string text = absl::StrCat("explore: ", line);
  std::fprintf(stream_, "\r\x1b[K%s", text.substr(0, kMost).c_str());
  std::fflush(stream_);
  written_ = true;
}

void ProgressLine::clear() {
  if (!written_) return;
  std::fprintf(stream_, "\r\x1b[K");
  std::fflush(stream_);
  written_ = false;
}

}  // namespace rankloom::internal
