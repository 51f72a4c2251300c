#include "collectives/mpi/startup_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/mpi/abort_job.h"
#include "sim/base/exception_text.h"
#include "sim/base/site_text.h"
#include "sim/base/system.h"
#include "sim/base/task.h"

namespace rankloom::internal {
namespace {

int64_t in_ns(absl::Duration time) {
  return time > absl::ZeroDuration() && time != absl::InfiniteDuration() ? absl::ToInt64Nanoseconds(time)
                                                                         : Deadline::kNever;
}

}  // namespace

StartupWatch::StartupWatch(const char* call, CodeSite code, const WorldOptions& options)
    : call_(call),
      code_(code),
      stall_ns_(in_ns(options.stall)),
      fatal_ns_(in_ns(options.stall_is_fatal.value_or(absl::InfiniteDuration()))),
      on_stall_(options.on_stall) {
  if (std::min(stall_ns_, fatal_ns_) < Deadline::kNever) thread_ = std::thread([this] { watch(); });
}

StartupWatch::~StartupWatch() {
  over_.store(true);
  parker_.unpark();
  if (thread_.joinable()) thread_.join();
}

void StartupWatch::mpi_initialized(int process, int size) {
  size_ = size;
  process_.store(process);
}

void StartupWatch::watch() {
  int64_t waited_ns = 0;
  int64_t seen_ns = monotonic_ns();
  int64_t tell_ns = stall_ns_;
  int64_t fatal_ns = fatal_ns_;
  while (!over_.load()) {
    const int64_t left_ns = std::min(tell_ns, fatal_ns) - waited_ns;
    parker_.park(seen_ns + left_ns);
    if (over_.load()) return;
    // A process that was stopped, or a machine that slept, did not wait meanwhile.
    const int64_t now_ns = monotonic_ns();
    waited_ns += std::min(now_ns - seen_ns, left_ns);
    seen_ns = now_ns;
    if (waited_ns < std::min(tell_ns, fatal_ns)) continue;
    const int process = process_.load();
    const std::string text = absl::StrCat(
        process < 0 ? "a process" : absl::StrCat("process ", process, " of ", size_), " has waited in ", call_,
        "() for ", absl::FormatDuration(absl::Nanoseconds(waited_ns)),
        " of real time for processes that have not called it",
        process < 0 ? ": MPI_Init_thread() waits for all" : "; those that have called it print this line, too",
        site_place(Site{.code = code_}));
    if (waited_ns < fatal_ns) {
      tell(text);
      tell_ns = tell_ns < Deadline::kNever / 2 ? 2 * tell_ns : Deadline::kNever;
    } else if (traced()) {
      fatal_ns = fatal_ns < Deadline::kNever / 2 ? 2 * fatal_ns : Deadline::kNever;
    } else {
      end_job(text, /*initialized=*/process >= 0);
    }
  }
}

void StartupWatch::tell(const std::string& text) const {
  std::string threw;
  try {
    if (on_stall_) return on_stall_(text);
  } catch (const std::exception& error) {
    threw = error.what();
  } catch (...) {
    threw = odd_exception_text();
  }
  if (!threw.empty()) std::fprintf(stderr, "rankloom: on_stall threw: %s\n", threw.c_str());
  std::fprintf(stderr, "rankloom: %s\n", text.c_str());
}

void StartupWatch::end_job(const std::string& text, bool initialized) const {
  std::fprintf(stderr, "rankloom: %s\nnobody can free it: the job ends (WorldOptions::stall_is_fatal)\n", text.c_str());
  if (initialized) abort_job();
  std::fflush(nullptr);
  _exit(EXIT_FAILURE);  // the launcher ends the others
}

}  // namespace rankloom::internal
