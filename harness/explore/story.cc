#include "harness/explore/story.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "sim/base/site_text.h"

namespace rankloom::internal {
namespace {

using What = StepRecord::What;

constexpr size_t kMaxRows = 40;
constexpr int kMaxColumns = 4;
constexpr size_t kMaxCell = 40;
constexpr size_t kMaxRepeats = 6;
constexpr size_t kMaxSwitches = 6;

// Whether the task completes works.
bool completes(const StepRecord& record, int task) {
  return record.tasks()[static_cast<size_t>(task)].info.kind == TaskKind::kCompletion;
}

// Which steps touch an object in a way that conflicts with another task's.
std::vector<bool> contended(const StepRecord& record, size_t last) {
  // How one task used one object.
  struct Uses {
    int task;
    What what;
    size_t first, last;  // steps
  };
  absl::flat_hash_map<uint64_t, std::vector<Uses>> uses;
  const auto each = [&](const std::function<void(uint64_t object, size_t step, int task, What what)>& see) {
    size_t op = 0;
    for (size_t i = 0; i < last; ++i) {
      for (; op < static_cast<size_t>(record.steps()[i].ops_end); ++op) {
        const StepRecord::Op& done = record.ops()[op];
        if (StepRecord::is_access(done.what)) see(done.object, i, record.steps()[i].task, done.what);
      }
    }
  };
  each([&](uint64_t object, size_t step, int task, What what) {
    std::vector<Uses>& all = uses[object];
    const auto mine =
        std::find_if(all.begin(), all.end(), [&](const Uses& u) { return u.task == task && u.what == what; });
    if (mine == all.end()) {
      all.push_back({task, what, step, step});
    } else {
      mine->last = step;
    }
  });
  std::vector<bool> marked(last);
  each([&](uint64_t object, size_t step, int task, What what) {
    if (marked[step]) return;
    const std::vector<Uses>& all = uses[object];
    // The use of another task that shows a reader that another order was possible. A completion before this step is no
    // such use: this step may have waited for it. A use after a completion is none of the completion's either.
    marked[step] = std::any_of(all.begin(), all.end(), [&](const Uses& other) {
      if (other.task == task || (what != What::kWrite && what == other.what)) return false;
      return (other.first < step && !completes(record, other.task)) || (other.last > step && !completes(record, task));
    });
  });
  return marked;
}

// The number of steps that count.
size_t last_step(const StepRecord& record) {
  return record.stopped() ? static_cast<size_t>(record.stopped_at()) : record.steps().size();
}

bool was_ready(const StepRecord& record, size_t step, TaskId id) {
  const size_t begin = step == 0 ? 0 : static_cast<size_t>(record.steps()[step - 1].ready_end);
  const size_t end = static_cast<size_t>(record.steps()[step].ready_end);
  return std::find(record.ready().begin() + static_cast<std::ptrdiff_t>(begin),
                   record.ready().begin() + static_cast<std::ptrdiff_t>(end),
                   id) != record.ready().begin() + static_cast<std::ptrdiff_t>(end);
}

// The steps that a reader needs, see story.h.
std::vector<bool> steps_to_show(const StepRecord& record, size_t last, int ranks) {
  std::vector<bool> shown = contended(record, last);
  std::vector<size_t> last_of_rank(static_cast<size_t>(ranks), last);
  for (size_t i = 0; i < last; ++i) {
    const StepRecord::Step& step = record.steps()[i];
    const bool stopped_another =
        i > 0 && step.task != record.steps()[i - 1].task && was_ready(record, i, record.steps()[i - 1].id);
    if (stopped_another) shown[i - 1] = shown[i] = true;
    const auto& info = record.tasks()[static_cast<size_t>(step.task)].info;
    if (info.kind == TaskKind::kRank) last_of_rank[static_cast<size_t>(info.rank)] = i;
  }
  for (const size_t i : last_of_rank) {
    if (i < last) shown[i] = true;
  }
  return shown;
}

// Of the numbers below `size` that fit, the one closest to `to`; of two that are as near, the lower one.
std::optional<size_t> closest(size_t size, size_t to, absl::FunctionRef<bool(size_t)> fits) {
  for (size_t off = 0; off <= to || to + off < size; ++off) {
    if (off <= to && fits(to - off)) return to - off;
    if (to + off < size && fits(to + off)) return to + off;
  }
  return std::nullopt;
}

// The steps that switches led to; a switch that the run ended before has none. The record knows steps, not choices: of
// the steps after the switch's task to which it can have led, the one whose number comes closest.
std::vector<size_t> steps_of(const StepRecord& record, absl::Span<const Schedule::Switch> switches, size_t last) {
  // Task -> the steps after its own.
  absl::flat_hash_map<int, std::vector<size_t>> after;
  int before = Schedule::Switch::kStart;
  for (size_t i = 0; i < last; ++i) {
    after[before].push_back(i);
    if (!completes(record, record.steps()[i].task)) before = record.steps()[i].id;
  }
  std::vector<size_t> steps;
  for (const Schedule::Switch& s : switches) {
    const auto at = after.find(s.at);
    if (s.kind == Schedule::Switch::Kind::kValue || at == after.end()) continue;
    const std::vector<size_t>& all = at->second;
    const size_t nth = std::min(static_cast<size_t>(std::max(s.nth, 0)), all.size() - 1);
    const std::optional<size_t> found = closest(all.size(), nth, [&](size_t number) {
      const auto& step = record.steps()[all[number]];
      return s.kind == Schedule::Switch::Kind::kCompletion ? completes(record, step.task) : step.id == s.to;
    });
    if (found.has_value()) steps.push_back(all[*found]);
  }
  return steps;
}

// The steps that switches led to, with the one before and the one after.
std::vector<bool> steps_at_switches(const StepRecord& record, absl::Span<const Schedule::Switch> switches,
                                    size_t last) {
  std::vector<bool> near(last);
  for (const size_t at : steps_of(record, switches, last)) {
    for (size_t i = at == 0 ? 0 : at - 1; i < std::min(last, at + 2); ++i) near[i] = true;
  }
  return near;
}

struct Row {
  size_t step;
  int rank;
  std::string text;
  bool near_switch = false;
};

// The rows left when acts that a rank repeats are shown twice only: the first, and the last with how many there are.
std::vector<Row> collapsed(std::vector<Row> rows) {
  struct Times {
    size_t count = 0;
    size_t first = 0;
    size_t last = 0;
  };
  std::map<std::pair<int, std::string>, Times> times;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].near_switch) continue;
    Times& t = times[{rows[i].rank, rows[i].text}];
    if (t.count++ == 0) t.first = i;
    t.last = i;
  }
  std::vector<Row> left;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].near_switch) {
      const Times& t = times[{rows[i].rank, rows[i].text}];
      if (t.count > kMaxRepeats && i != t.first && i != t.last) continue;
      if (t.count > kMaxRepeats && i == t.last) {
        rows[i].text = absl::StrCat(rows[i].text, " (", t.count, " times since step ", rows[t.first].step, ")");
      }
    }
    left.push_back(rows[i]);
  }
  return left;
}

std::vector<Row> rows_of(const StepRecord& record, const std::vector<bool>& shown, const std::vector<bool>& near) {
  std::vector<Row> rows;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (!shown[i] && !near[i]) continue;
    const auto& info = record.tasks()[static_cast<size_t>(record.steps()[i].task)].info;
    std::string text = record.texts()[i];
    if (info.kind == TaskKind::kCompletion) {
      text = absl::StrCat("(", text, " completes)");
    } else if (info.kind != TaskKind::kRank) {
      text = absl::StrCat("(", task_kind_name(info.kind), ") ", text);
    }
    rows.push_back({i, info.rank, std::move(text), near[i]});
  }
  return collapsed(std::move(rows));
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string step_number(const Row& row) {
  const std::string number = absl::StrCat(row.step);
  return number.size() < 7 ? std::string(7 - number.size(), ' ') + number : number;
}

void append_line(std::string text, std::string* out) {
  text.erase(text.find_last_not_of(' ') + 1);
  absl::StrAppend(out, text, "\n");
}

// One column a rank.
void append_columns(absl::Span<const Row> rows, int ranks, std::string* out) {
  std::vector<size_t> widths(static_cast<size_t>(ranks), 8);
  for (const Row& row : rows) {
    if (row.rank < 0) continue;  // of no rank: a thread beside them
    size_t& width = widths[static_cast<size_t>(row.rank)];
    width = std::max(width, std::min(kMaxCell, row.text.size()));
  }
  std::string head = "   step";
  for (int rank = 0; rank < ranks; ++rank) {
    absl::StrAppend(&head, "  ", padded(absl::StrCat("rank ", rank), widths[static_cast<size_t>(rank)]));
  }
  append_line(std::move(head), out);
  for (const Row& row : rows) {
    std::string text = step_number(row);
    for (int rank = 0; rank < row.rank; ++rank) text += std::string(widths[static_cast<size_t>(rank)] + 2, ' ');
    append_line(absl::StrCat(text, "  ", row.text), out);
  }
}

}  // namespace

std::vector<int64_t> switch_steps(const StepRecord& record, const std::vector<Schedule::Switch>& switches) {
  const std::vector<size_t> found = steps_of(record, switches, last_step(record));
  std::vector<int64_t> steps(found.begin(), found.end());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string story_text(const StepRecord& record, const RunReport& report,
                       const std::vector<Schedule::Switch>& switches) {
  const size_t last = last_step(record);
  const int ranks = static_cast<int>(report.outcomes.size());
  const std::vector<bool> shown = steps_to_show(record, last, ranks);
  std::vector<Row> rows = rows_of(record, shown, steps_at_switches(record, switches, last));
  // Of many switches the last ones: those before them led nowhere yet.
  size_t hidden = 0;
  if (rows.size() > kMaxRows && switches.size() > kMaxSwitches) {
    const absl::Span<const Schedule::Switch> all = switches;
    const absl::Span<const Schedule::Switch> late = all.last(kMaxSwitches);
    hidden = steps_of(record, all.first(all.size() - late.size()), last).size();
    rows = rows_of(record, shown, steps_at_switches(record, late, last));
  }
  std::string out;
  // The earliest go, but for those around switches.
  const size_t surplus = rows.size() > kMaxRows ? rows.size() - kMaxRows : 0;
  size_t gone = 0;
  std::erase_if(rows, [&](const Row& row) {
    if (gone == surplus || row.near_switch) return false;
    ++gone;
    return true;
  });
  std::vector<std::string> left_out;
  if (gone > 0) left_out.push_back(absl::StrCat(gone, gone == 1 ? " earlier step" : " earlier steps"));
  if (hidden > 0) left_out.push_back(absl::StrCat(hidden, hidden == 1 ? " earlier switch" : " earlier switches"));
  if (!left_out.empty()) absl::StrAppend(&out, "  ... ", absl::StrJoin(left_out, ", "), "\n");
  if (ranks <= kMaxColumns) {
    append_columns(rows, ranks, &out);
  } else {
    for (const Row& row : rows) {
      const std::string of_rank = row.rank < 0 ? "" : absl::StrCat("rank ", row.rank, ": ");
      append_line(absl::StrCat(step_number(row), "  ", of_rank, row.text), &out);
    }
  }
  return out;
}

}  // namespace rankloom::internal
