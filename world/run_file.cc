#include "world/run_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rankloom/version.h"
#include "sim/base/dist_error.h"
#include "sim/base/printable.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/base/write_file.h"
#include "world/run_options.h"

namespace rankloom {

using namespace internal;

namespace internal {
namespace {

constexpr int kVersion = 1;

// One line of the file: an object with a tag.
class Line {
 public:
  explicit Line(std::string* out, std::string_view tag) : out_(*out) {
    absl::StrAppend(&out_, "{\"t\":\"", sv(tag), "\"");
  }
  ~Line() { out_ += "}\n"; }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void key(std::string_view name) { absl::StrAppend(&out_, ",\"", sv(name), "\":"); }
  void text(std::string_view name, std::string_view value) {
    key(name);
    out_ += json_string(value);
  }
  void number(std::string_view name, int64_t value) {
    key(name);
    absl::StrAppend(&out_, value);
  }
  void boolean(std::string_view name, bool value) {
    key(name);
    out_ += value ? "true" : "false";
  }
  template <typename Values, typename Each>
  void list(std::string_view name, const Values& values, Each each) {
    key(name);
    append_list(values, each);
  }
  template <typename Values, typename Each>
  void append_list(const Values& values, Each each) {
    out_ += '[';
    bool first = true;
    for (const auto& value : values) {
      if (!std::exchange(first, false)) out_ += ',';
      each(value);
    }
    out_ += ']';
  }
  void numbers(std::string_view name, const std::vector<int>& values) {
    list(name, values, [this](int value) { absl::StrAppend(&out_, value); });
  }
  void texts(std::string_view name, const std::vector<std::string>& values) {
    list(name, values, [this](const std::string& value) { out_ += json_string(value); });
  }
  // [[0, 6], [9, 9]]: from and to. `ranks` ascends.
  void ranges(const std::vector<int>& ranks) {
    std::vector<std::pair<int, int>> parts;
    for (const int rank : ranks) {
      if (!parts.empty() && rank <= parts.back().second + 1) {
        parts.back().second = rank;
      } else {
        parts.emplace_back(rank, rank);
      }
    }
    append_list(parts, [this](const auto& part) { absl::StrAppend(&out_, "[", part.first, ",", part.second, "]"); });
  }

 private:
  std::string& out_;
};

// Nanoseconds; -1: none.
int64_t nanoseconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? -1 : absl::ToInt64Nanoseconds(duration);
}

std::string fake_headline(const RunData::FakeWorld& fake) {
  return absl::StrCat("Fake world: the calls of ", fake.ranks.size(), " of ", fake.world_size, " ranks");
}

void write_run_line(const RunReport& report, std::string* out) {
  Line line(out, "run");
  line.number("world_size", static_cast<int64_t>(report.outcomes.size()));
  line.boolean("ok", report.ok());
  const bool fake = report.kept != nullptr && report.kept->fake.has_value();
  line.text("text", fake ? fake_headline(*report.kept->fake) : report.text());
  line.text("kind", report.cause.ok() ? std::string_view() : error_kind_name(error_kind(report.cause)));
  line.text("cause", message_of(report.cause));
  line.number("first_failed", report.first_failed);
  line.text("engine", report.engine);
  line.text("schedule", report.schedule);
  const bool kept = report.rerun.empty() && report.kept != nullptr;
  line.text("rerun", kept ? std::string_view(report.kept->rerun) : std::string_view(report.rerun));
  line.number("steps", static_cast<int64_t>(report.steps));
  line.number("choices", static_cast<int64_t>(report.trace.steps().size()));
  if (report.kept == nullptr) return;
  const RunData& data = *report.kept;
  line.number("end_ns", data.end_ns);
  if (data.fake.has_value()) return line.texts("lanes", data.fake->lanes);
  line.number("recorded_calls", data.recorded_calls);
  line.number("timeout_ns", nanoseconds(data.timeout));
  line.number("warn_after_ns", nanoseconds(data.warn_after));
  if (data.seed.has_value()) line.text("seed", absl::StrCat(*data.seed));
  if (!data.planned_faults.empty()) line.text("planned_faults", data.planned_faults);
  line.texts("failures", data.failures);
}

void write_outcomes(const RunReport& report, std::string* out) {
  Line line(out, "outcomes");
  std::string states;
  std::map<std::string, std::vector<int>> texts;
  for (size_t rank = 0; rank < report.outcomes.size(); ++rank) {
    states += "urfs"[static_cast<size_t>(report.outcomes[rank].state)];
    const std::string& text = report.outcomes[rank].text;
    if (!text.empty()) texts[text].push_back(static_cast<int>(rank));
  }
  line.text("states", states);
  line.list("texts", texts, [&](const auto& told) {
    absl::StrAppend(out, "[", json_string(told.first), ",");
    line.ranges(told.second);
    *out += ']';
  });
}

void write_waits(const StuckRun& stuck, std::string* out) {
  Line line(out, "waits");
  line.list("waits", stuck.waits, [&](const StuckRun::Wait& wait) {
    *out += "{\"ranks\":";
    line.ranges(wait.ranks);
    *out += ",\"for\":";
    line.ranges(wait.waits_for);
    absl::StrAppend(out, ",\"task\":\"", task_kind_name(wait.kind), "\",\"what\":", json_string(wait.what),
                    ",\"group\":", json_string(wait.group), ",\"seq\":", wait.seq,
                    ",\"detail\":", json_string(wait.detail), ",\"remark\":", json_string(wait.remark),
                    ",\"file\":", json_string(wait.code.file), ",\"line\":", wait.code.line, "}");
  });
  line.numbers("cycle", stuck.cycle);
}

void write_story(const RunData& data, std::string* out) {
  Line line(out, "story");
  line.text("strategy", data.strategy);
  line.text("story", data.story);
  const RunData::Search& search = data.search;
  if (search.run == 0) return;
  line.number("run", search.run);
  line.text("found", search.found);
  line.number("found_switches", search.found_switches);
  line.number("shrink_runs", search.shrink_runs);
  const auto append = [out](int64_t number) { absl::StrAppend(out, number); };
  line.list("switches", search.switch_steps, append);
  if (!search.found_story.empty()) {
    line.text("found_story", search.found_story);
    line.list("found_story_switches", search.found_switch_steps, append);
  }
  line.list("shares", search.shares, [out](const RunData::Search::Share& share) {
    absl::StrAppend(out, "{\"strategy\":", json_string(share.strategy), ",\"runs\":", share.runs,
                    ",\"schedules\":", share.schedules, ",\"open\":", share.open,
                    ",\"finished\":", share.finished ? "true" : "false", "}");
  });
  if (search.futures.empty()) return;
  using Futures = RunData::Search::Futures;
  line.boolean("sampled", search.sampled);
  line.texts("choices", search.choices);
  line.list("futures", search.futures, [append](const Futures& futures) { append(futures.all); });
  line.list("lost", search.futures, [append](const Futures& futures) { append(futures.fail); });
}

void write_groups(const std::vector<RunData::GroupData>& groups, std::string* out) {
  Line line(out, "groups");
  line.list("groups", groups, [&](const RunData::GroupData& group) {
    absl::StrAppend(out, "{\"id\":", group.id, ",\"name\":", json_string(group.name),
                    ",\"description\":", json_string(group.description), ",\"size\":", group.size);
    if (group.of > 0) absl::StrAppend(out, ",\"of\":", group.of);
    if (group.ranks.empty()) {
      absl::StrAppend(out, ",\"first\":", group.first, ",\"stride\":", group.stride, "}");
    } else {
      *out += ",\"ranks\":";
      line.append_list(group.ranks, [&](int rank) { absl::StrAppend(out, rank); });
      *out += '}';
    }
  });
}

void write_fake(const RunData::FakeWorld& fake, std::string* out) {
  Line line(out, "fake");
  line.number("world_size", fake.world_size);
  line.list("ranks", fake.ranks, [&](const RunData::FakeWorld::Rank& rank) {
    absl::StrAppend(out, "{\"rank\":", rank.rank, ",\"calls\":", rank.calls, ",\"compute_ns\":", rank.compute_ns,
                    ",\"end_ns\":", rank.end_ns, ",\"peak_buffer_bytes\":", rank.peak_buffer_bytes, ",\"totals\":");
    line.append_list(rank.totals, [&](const RunData::FakeWorld::Totals& sum) {
      absl::StrAppend(out, "{\"op\":", json_string(sum.op), ",\"group\":", sum.group, ",\"calls\":", sum.calls,
                      ",\"payload\":", sum.payload, ",\"ring_bytes\":", sum.ring_bytes,
                      ",\"tree_bytes\":", sum.tree_bytes, ",\"time_ns\":", sum.time_ns, "}");
    });
    *out += '}';
  });
}

void write_shapes(const FlightShapes& shapes, size_t tensors, size_t* at, std::string* out) {
  *out += '[';
  for (size_t t = 0; t < tensors && *at < shapes.size(); ++t) {
    const int64_t dimensions = shapes[(*at)++];
    *out += t == 0 ? "[" : ",[";
    for (int64_t d = 0; d < dimensions; ++d) absl::StrAppend(out, d == 0 ? "" : ",", shapes[(*at)++]);
    *out += ']';
  }
  *out += ']';
}

void write_kinds(const std::vector<RunData::Kind>& kinds, std::string* out) {
  Line line(out, "kinds");
  line.list("kinds", kinds, [&](const RunData::Kind& kind) {
    absl::StrAppend(out, "{\"op\":", json_string(kind.op), ",\"group\":", kind.group,
                    ",\"file\":", json_string(kind.code.file), ",\"line\":", kind.code.line,
                    ",\"dtype\":", static_cast<int>(kind.dtype));
    if (kind.is_p2p) absl::StrAppend(out, ",\"p2p\":true,\"tag\":", kind.tag);
    if (!kind.is_p2p && kind.root >= 0) absl::StrAppend(out, ",\"root\":", kind.root);
    if (kind.timeout_ns >= 0) absl::StrAppend(out, ",\"timeout_ns\":", kind.timeout_ns);
    if (kind.wire >= 0) absl::StrAppend(out, ",\"wire\":", kind.wire);
    size_t at = 0;
    *out += ",\"in\":";
    write_shapes(kind.shapes, kind.inputs, &at, out);
    *out += ",\"out\":";
    write_shapes(kind.shapes, kind.outputs, &at, out);
    if (at < kind.shapes.size()) {
      *out += ",\"splits\":";
      write_shapes(kind.shapes, 2, &at, out);
    }
    *out += '}';
  });
}

void write_calls(const RunData& data, size_t rank, std::string* out) {
  const RunData::Rank& from = data.ranks[rank];
  using Call = RunData::Call;
  const std::vector<Call>& calls = from.calls;
  Line line(out, "calls");
  line.number("rank", static_cast<int64_t>(rank));
  line.number("made", from.made);
  line.list("kind", calls, [out](const Call& call) { absl::StrAppend(out, call.kind); });
  line.list("seq", calls, [out](const Call& call) { absl::StrAppend(out, call.seq); });
  int64_t before = 0;
  line.list("issued", calls,
            [&](const Call& call) { absl::StrAppend(out, call.issued_ns - std::exchange(before, call.issued_ns)); });
  const auto after_issue = [out](const Call& call, int64_t at_ns) {
    absl::StrAppend(out, at_ns < 0 ? -1 : std::max<int64_t>(0, at_ns - call.issued_ns));
  };
  if (std::any_of(calls.begin(), calls.end(), [](const Call& call) { return call.arrived_ns >= 0; }))
    line.list("arrived", calls, [&](const Call& call) { after_issue(call, call.arrived_ns); });
  line.list("ended", calls, [&](const Call& call) { after_issue(call, call.ended_ns); });
  std::string states;
  for (const Call& call : calls) states += "scf"[static_cast<size_t>(call.state)];
  line.text("state", states);
  if (std::any_of(calls.begin(), calls.end(), [](const Call& call) { return call.peer >= 0; }))
    line.list("peer", calls, [out](const Call& call) { absl::StrAppend(out, call.peer); });
  if (!calls.empty() && calls[0].issued_step >= 0) {
    before = 0;
    line.list("step", calls, [&](const Call& call) {
      absl::StrAppend(out, call.issued_step - std::exchange(before, call.issued_step));
    });
    line.list("done", calls, [out](const Call& call) {
      absl::StrAppend(out, call.ended_step < 0 ? -1 : call.ended_step - call.issued_step);
    });
  }
}

void write_value(std::string_view name, const StoreOperation::Value& value, std::string* out) {
  if (value.bytes < 0) return;
  absl::StrAppend(out, ",\"", sv(name), "\":", json_string(value.shown), ",\"", sv(name), "_bytes\":", value.bytes);
}

void write_store(const RunData& data, size_t rank, std::string* out) {
  const OperationLog::StoreOperations& store = data.ranks[rank].store;
  Line line(out, "store");
  line.number("rank", static_cast<int64_t>(rank));
  line.number("made", store.made);
  line.list("ops", store.last, [&](const StoreOperation& op) {
    absl::StrAppend(out, "{\"op\":", json_string(op.op));
    if (op.keys > 0) absl::StrAppend(out, ",\"key\":", json_string(op.key));
    if (op.keys > 1) absl::StrAppend(out, ",\"keys\":", op.keys);
    write_value("given", op.given, out);
    write_value("got", op.got, out);
    absl::StrAppend(out, ",\"file\":", json_string(op.code.file), ",\"line\":", op.code.line, ",\"state\":\"",
                    std::string(1, "scf"[static_cast<size_t>(op.state)]), "\",\"begun\":", op.begun_ns - data.begin_ns,
                    ",\"ended\":", op.ended_ns < 0 ? -1 : op.ended_ns - op.begun_ns);
    if (op.begun_step >= 0) {
      absl::StrAppend(out, ",\"step\":", op.begun_step,
                      ",\"done\":", op.ended_step < 0 ? -1 : op.ended_step - op.begun_step);
    }
    *out += '}';
  });
}

// The gaps of steps and of the store.
void append_log_gaps(const RunData& data, std::vector<std::string>* gaps) {
  if (!data.logged) {
    gaps->emplace_back(
        "steps of calls, and operations on the store: kept only with WorldOptions::keep_run or RANKLOOM_REPORT");
    return;
  }
  const auto no_steps = [](const RunData::Rank& rank) {
    return (!rank.calls.empty() && rank.calls.back().issued_step < 0) ||
           (!rank.store.last.empty() && rank.store.last.back().begun_step < 0);
  };
  if (std::any_of(data.ranks.begin(), data.ranks.end(), no_steps))
    gaps->emplace_back("steps: a run without a schedule has no order of steps, its calls have times");
  int64_t made = 0, kept = 0;
  for (const RunData::Rank& rank : data.ranks) {
    made += rank.store.made;
    kept += static_cast<int64_t>(rank.store.last.size());
  }
  if (made > kept) {
    gaps->push_back(absl::StrCat("operations on the store: ", made - kept, " of ", made,
                                 " are gone, the first of ranks ", "that made more than ",
                                 OperationLog::kMostStoreOperations, " or WorldOptions::recorded_calls"));
  }
  gaps->emplace_back(
      "operations on stores that the program made itself; values of the world's, beyond their first bytes");
}

std::vector<std::string> fake_gaps(const RunData& data) {
  std::vector<std::string> gaps;
  int64_t left_out = 0;
  for (const RunData::Rank& lane : data.ranks) left_out += lane.made - static_cast<int64_t>(lane.calls.size());
  if (left_out > 0)
    gaps.push_back(absl::StrCat("calls: the first ", left_out, " are too many; they are in the totals"));
  gaps.emplace_back("ranks that were not traced: a fake call waits for nobody, and its time is the cost model's");
  gaps.emplace_back("when a call was waited for; tensors' values, reduce operators");
  return gaps;
}

// The parts that a reader might look for and this file does not have.
std::vector<std::string> gaps_of(const RunReport& report) {
  if (report.kept == nullptr) return {"calls: a run that went well keeps them only with WorldOptions::keep_run"};
  const RunData& data = *report.kept;
  if (data.fake.has_value()) return fake_gaps(data);
  std::vector<std::string> gaps;
  if (data.recorded_calls == 0) gaps.emplace_back("calls: WorldOptions::recorded_calls is 0");
  int64_t made = 0, kept = 0;
  for (const RunData::Rank& rank : data.ranks) {
    made += rank.made;
    kept += static_cast<int64_t>(rank.calls.size());
  }
  if (made > kept) {
    const bool cut = data.most_calls < data.recorded_calls;
    gaps.push_back(absl::StrCat("calls: ", made - kept, " of ", made, " are gone: ",
                                cut ? "the most that a file has of a rank is " : "WorldOptions::recorded_calls is ",
                                cut ? data.most_calls : data.recorded_calls));
  }
  append_log_gaps(data, &gaps);
  gaps.emplace_back("waits within a run: when a rank waited for a call that it had issued");
  gaps.emplace_back("tensors' values, reduce operators");
  if (report.cause.ok() || data.stuck.waits.empty())
    gaps.emplace_back("waits at the end: known only of a run in which no rank could move");
  return gaps;
}

}  // namespace

std::string run_file_text(const RunReport& report) {
  std::string out = absl::StrCat("{\"rlrun\":", kVersion, ",\"writer\":\"rankloom ", sv(version()), "\"}\n");
  write_run_line(report, &out);
  write_outcomes(report, &out);
  Line(&out, "notes").texts("notes", report.notes);
  if (!report.faults.empty()) {
    std::vector<std::string> faults;
    for (const Fault& fault : report.faults) faults.push_back(fault.text());
    Line(&out, "faults").texts("faults", faults);
  }
  if (report.kept != nullptr) {
    const RunData& data = *report.kept;
    if (!data.stuck.waits.empty()) write_waits(data.stuck, &out);
    if (!data.story.empty()) write_story(data, &out);
    write_groups(data.groups, &out);
    if (data.fake.has_value()) write_fake(*data.fake, &out);
    write_kinds(data.kinds, &out);
    for (size_t rank = 0; rank < data.ranks.size(); ++rank) {
      if (!data.ranks[rank].calls.empty()) write_calls(data, rank, &out);
      if (!data.ranks[rank].store.last.empty()) write_store(data, rank, &out);
    }
  }
  Line(&out, "gaps").texts("gaps", gaps_of(report));
  const int64_t lines = std::count(out.begin(), out.end(), '\n') + 1;
  Line(&out, "end").number("lines", lines);
  return out;
}

namespace {

// Where RANKLOOM_REPORT wants the run of this name; empty: nowhere.
std::string path_for(std::string_view name) {
  const absl::StatusOr<RunFiles> files = run_files_from_environment();
  if (!files.ok() || files->reports.empty()) return "";
  const std::filesystem::path folder = files->reports;
  std::error_code ignored;  // write_run() tells
  std::filesystem::create_directories(folder, ignored);
  return folder / absl::StrCat(absl::StrReplaceAll(sv(name), {{"/", "_"}}), ".rlrun");
}

}  // namespace

void write_failed_run(std::string_view name, RunReport* report) {
  const std::string path = path_for(name);
  if (path.empty()) return;
  const absl::Status written = report->write_run(path);
  report->run_file =
      written.ok() ? absl::StrCat("run file: ", path, "; see it: rankloom report ", shell_quoted(path), " -o run.html")
                   : absl::StrCat("no run file: ", written.message());
}

std::string write_both_runs(std::string_view name, const RunReport& first, const RunReport& second) {
  const std::string a = path_for(absl::StrCat(sv(name), ".first")), b = path_for(absl::StrCat(sv(name), ".second"));
  if (a.empty()) return "";
  absl::Status written = first.write_run(a);
  if (written.ok()) written = second.write_run(b);
  if (!written.ok()) return absl::StrCat("no run files: ", written.message());
  return absl::StrCat("run files: ", a, ", ", b, "; see them beside each other: rankloom report ", shell_quoted(a), " ",
                      shell_quoted(b), " -o both.html");
}

}  // namespace internal

absl::Status RunReport::write_run(const std::string& path) const {
  return internal::write_file(path, internal::run_file_text(*this));
}

}  // namespace rankloom
