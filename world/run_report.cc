#include <algorithm>
#include <map>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

bool RunReport::ok() const {
  return cause.ok() && std::all_of(outcomes.begin(), outcomes.end(), [](const RunReport::Outcome& outcome) {
           return outcome.state == RunReport::Outcome::State::kReturned;
         });
}

std::string RunReport::text() const {
  std::string text;
  if (ok()) {
    text = "ok";
  } else {
    // Ranks that ended alike share a line; the first failure's line leads, a relayed cause is told once.
    const std::string cause_text = message_of(cause);
    std::map<std::string, std::vector<int>> failed;
    std::map<std::string, std::vector<int>> stopped;
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      const RunReport::Outcome& outcome = outcomes[rank];
      if (outcome.state == RunReport::Outcome::State::kFailed) failed[outcome.text].push_back(static_cast<int>(rank));
      if (outcome.state == RunReport::Outcome::State::kStopped) stopped[outcome.text].push_back(static_cast<int>(rank));
    }
    if (first_failed >= 0) {
      const std::string& first = outcomes[static_cast<size_t>(first_failed)].text;
      text = absl::StrCat(ranks_text(failed[first]), " failed: ", first);
      for (const auto& [what, ranks] : failed) {
        if (what != first) absl::StrAppend(&text, "\n", ranks_text(ranks), " failed: ", what);
      }
    } else if (!cause.ok()) {
      absl::StrAppend(&text, std::string(error_kind_name(error_kind(cause))), ": ", cause_text);
    } else {
      text = "some ranks have not ended";
    }
    std::vector<int> all_stopped;
    for (const auto& [what, ranks] : stopped) all_stopped.insert(all_stopped.end(), ranks.begin(), ranks.end());
    std::sort(all_stopped.begin(), all_stopped.end());
    if (!all_stopped.empty()) absl::StrAppend(&text, "\n", ranks_text(all_stopped), " stopped for it");
  }
  // What leads is said once, and so is each note.
  const std::string head = text;
  absl::flat_hash_set<std::string_view> said;
  for (const std::string& note : notes) {
    if (said.insert(note).second && head.find(note) == std::string::npos) absl::StrAppend(&text, "\nnote: ", note);
  }
  // Of a run that went well nobody misses what was not wanted.
  if (trace.cut() && (!ok() || trace.limit() > 0)) absl::StrAppend(&text, "\nnote: ", trace.why_cut());
  if (!ok() && !rerun.empty())
    absl::StrAppend(&text, "\nschedule ", schedule, ", engine ", engine, "; run it again: ", rerun);
  if (!run_file.empty()) absl::StrAppend(&text, "\n", run_file);
  return text;
}

void RunReport::throw_if_failed() const {
  if (ok()) return;
  ErrorKind kind = cause.ok() ? ErrorKind::kAborted : error_kind(cause);
  if (first_failed >= 0 && outcomes[static_cast<size_t>(first_failed)].exception != nullptr) {
    kind = ErrorKind::kRankFailed;
    try {
      std::rethrow_exception(outcomes[static_cast<size_t>(first_failed)].exception);
    } catch (const DistError& error) {
      kind = error.kind();
    } catch (...) {  // an exception of the program: the rank failed
    }
  }
  refuse({.rank = first_failed, .group = {}, .op = "run_world"}, kind, text());
}

}  // namespace rankloom
