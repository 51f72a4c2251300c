#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

namespace {

// In the order of the first ranks.
std::vector<SaidByRanks> alike(const std::vector<RunReport::Outcome>& outcomes, RunReport::Outcome::State state) {
  std::vector<std::pair<int, std::string>> said;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].state == state) said.emplace_back(static_cast<int>(rank), outcomes[rank].text);
  }
  return folded_by_rank(said);
}

// Whether a note begins with "rank 2, ".
bool of_rank(const std::string& note, int* rank) {
  const size_t end = note.find(", ");
  return note.starts_with("rank ") && end != std::string::npos && absl::SimpleAtoi(note.substr(5, end - 5), rank);
}

// Notes that say the same of several ranks are one: "ranks 0-2, group 0, send to rank 3: was never received".
std::vector<std::string> folded(const std::vector<std::string>& notes) {
  struct Note {
    std::set<int> ranks;  // empty: it begins with none
    std::string text;     // after the rank
  };
  std::vector<Note> all;
  std::map<std::string, size_t> place;
  for (const std::string& note : notes) {
    int rank = -1;
    const bool one = of_rank(note, &rank);
    std::string text = one ? note.substr(note.find(", ")) : note;
    const auto [at, added] = place.try_emplace(absl::StrCat(one, text), all.size());
    if (added) all.push_back({.ranks = {}, .text = std::move(text)});
    if (one) all[at->second].ranks.insert(rank);
  }
  std::vector<std::string> texts;
  for (const Note& note : all)
    texts.push_back(note.ranks.empty() ? note.text : ranks_text({note.ranks.begin(), note.ranks.end()}) + note.text);
  return texts;
}

}  // namespace

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
    if (first_failed >= 0) {
      std::vector<SaidByRanks> failed = alike(outcomes, RunReport::Outcome::State::kFailed);
      const auto leads = [this](const SaidByRanks& one) {
        return std::find(one.ranks.begin(), one.ranks.end(), first_failed) != one.ranks.end();
      };
      std::stable_partition(failed.begin(), failed.end(), leads);
      for (const SaidByRanks& one : failed)
        absl::StrAppend(&text, text.empty() ? "" : "\n", ranks_text(one.ranks), " failed: ", one.text);
    } else if (!cause.ok()) {
      absl::StrAppend(&text, std::string(error_kind_name(error_kind(cause))), ": ", cause_text);
    } else {
      text = "some ranks have not ended";
    }
    std::vector<int> all_stopped;
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (outcomes[rank].state == RunReport::Outcome::State::kStopped) all_stopped.push_back(static_cast<int>(rank));
    }
    if (!all_stopped.empty()) absl::StrAppend(&text, "\n", ranks_text(all_stopped), " stopped for it");
  }
  // A note that stands in the head is left out, and notes that are alike are folded.
  const std::string head = text;
  std::vector<std::string> news;
  std::copy_if(notes.begin(), notes.end(), std::back_inserter(news), [&](const std::string& note) {
    // The headline names a rank that failed in its own way.
    int rank = -1;
    bool leads = false;
    if (of_rank(note, &rank) && rank >= 0 && static_cast<size_t>(rank) < outcomes.size()) {
      const RunReport::Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      leads = outcome.state == RunReport::Outcome::State::kFailed &&
              outcome.text.find(note.substr(note.find(", ") + 2)) != std::string::npos;
    }
    return !leads && head.find(note) == std::string::npos;
  });
  for (const std::string& note : folded(news)) absl::StrAppend(&text, "\nnote: ", note);
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
  // A report that was moved from, or filled by hand, may name a rank that it does not have.
  const bool known = first_failed >= 0 && static_cast<size_t>(first_failed) < outcomes.size();
  const std::exception_ptr thrown = known ? outcomes[static_cast<size_t>(first_failed)].exception : nullptr;
  if (thrown != nullptr) {
    kind = ErrorKind::kRankFailed;
    try {
      std::rethrow_exception(thrown);
    } catch (const DistError& error) {
      kind = error.kind();
    } catch (...) {  // an exception of the program: the rank failed
    }
  }
  refuse({.rank = first_failed, .group = {}, .op = "run_world"}, kind, text());
}

}  // namespace rankloom
