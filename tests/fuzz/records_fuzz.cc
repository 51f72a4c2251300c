// Files of runs for others - flight records as pickles and JSON, traces for Perfetto, PyTorch and Chakra, run files -
// with names, texts, times and sizes of any kind: strict readers of those formats, which share nothing with the
// writers, read all of it, and find what was recorded.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/process_group.h"
#include "rankloom/records.h"
#include "rankloom/store.h"
#include "rankloom/world.h"
#include "sim/base/sanitizers.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/readers.h"
#include "world/run_file.h"
#ifdef RANKLOOM_CHAKRA
#include "rankloom/chakra.h"
#endif

namespace rankloom::fuzz {
namespace {

constexpr int kMostSteps = 12;

void must(bool good, std::string_view what) {
  if (!good) wrong(what);
}

absl::Duration duration(Input& in) {
  switch (in.below(4)) {
    case 0:
      return absl::Nanoseconds(in.below(256));
    case 1:
      return absl::Nanoseconds(static_cast<int64_t>(in.word()));
    case 2:
      return absl::InfiniteDuration();
    default:
      return absl::Microseconds(in.below(256)) * 1000;
  }
}

// Small ones, and powers of two up to 2^15.
int64_t dimension(Input& in) {
  const int kind = in.below(24);
  return kind < 16 ? int64_t{1} << kind : kind - 16;
}

// ---- records of fake groups

void check_perfetto(const CallRecord& record, const std::string& text) {
  const Value trace = read_json(text);
  size_t calls = 0;
  for (const Value& event : trace.at("traceEvents").list) {
    const std::string& phase = event.at("ph").text;
    if (phase != "X" && phase != "B") continue;
    ++calls;
    must(event.at("ts").real >= 0, "an event has no time");
    if (event.at("cat").text != "collective") continue;
    const Value& arguments = event.at("args");
    must(!arguments.at("Process Group Name").text.empty(), "a call has no group");
    read_json(arguments.at("Process Group Ranks").text.find("...") == std::string::npos
                  ? arguments.at("Process Group Ranks").text
                  : "[]");
  }
  must(calls == record.size(), "Perfetto's trace has other calls than the record");
}

double attribute(const Value& node, std::string_view name) {
  for (const Value& one : node.at("attrs").list) {
    if (one.at("name").text == name) return one.at("value").real;
  }
  wrong("a node has no " + std::string(name));
}

void check_pytorch(const CallRecord& record, const std::string& text) {
  constexpr size_t kBefore = 3;  // the process, its thread, the table of groups
  const Value trace = read_json(text);
  const std::vector<Value>& nodes = trace.at("nodes").list;
  must(nodes.size() == record.size() + kBefore, "PyTorch's trace has other calls than the record");
  const Value groups = read_json(nodes[2].at("inputs").at("values").list.at(0).text);
  must(groups.list.size() == record.groups().size(), "PyTorch's trace has other groups than the record");
  for (size_t i = 0; i < record.size(); ++i) {
    const Value& node = nodes[i + kBefore];
    // To a nanosecond, as far as a double tells them apart.
    const double start = absl::ToDoubleMicroseconds(record[i].start);
    const double off = attribute(node, "start_us") - start;
    must(off < 0.001 + start * 1e-15 && off > -0.001 - start * 1e-15,
         "a call of PyTorch's trace starts at another time");
  }
}

void check_run_file(const std::string& text) {
  size_t lines = 0;
  std::string last;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    must(end != std::string::npos, "a run file's last line has no end");
    const Value line = read_json(std::string_view(text).substr(begin, end - begin));
    must(line.has(lines == 0 ? "rlrun" : "t"), "a line of a run file has no tag");
    if (line.has("lines")) must(line.at("lines").integer == static_cast<int64_t>(lines) + 1, "a run file miscounts");
    last = lines == 0 ? "" : line.at("t").text;
    ++lines;
    begin = end + 1;
  }
  must(last == "end", "a run file has no end");
}

void check_record(const CallRecord& record, const std::shared_ptr<CallRecord>& shared) {
  check_perfetto(record, traces::perfetto_json({shared}));
  check_run_file(traces::run_text({shared}));
  check_pytorch(record, traces::pytorch_trace_json(record));
#ifdef RANKLOOM_CHAKRA
  for (const bool lower : {false, true}) {
    const std::vector<std::string> names = read_chakra(traces::chakra_trace(record, lower));
    must(names.size() == record.size(), "Chakra's trace has other calls than the record");
    for (size_t i = 0; i < names.size(); ++i) {
      if (is_utf8(record[i].name)) must(names[i] == record[i].name, "a node of Chakra's trace has another name");
    }
  }
#endif
  must(is_utf8(record.text()) && is_utf8(record.table()), "a record's text is no UTF-8");
}

void fake_step(Input& in, CallRecord& record, std::vector<std::shared_ptr<ProcessGroup>>& groups,
               const CodeSite& code) {
  const auto group = groups[static_cast<size_t>(in.below(static_cast<int>(groups.size())))];
  const auto tensor = [&in] {
    std::vector<int64_t> sizes;
    for (int n = in.below(4); n > 0; --n) sizes.push_back(dimension(in));
    return TensorView::meta(Dims(sizes.begin(), sizes.end()), static_cast<DType>(in.below(internal::kDTypeCount)));
  };
  const int n = group->size();
  switch (in.below(8)) {
    case 0:
      groups.push_back(group->new_group(GroupOptions{.name = in.text(), .description = in.text()}));
      break;
    case 1: {
      const TensorView whole = tensor();
      group->all_reduce(whole, ReduceOp::kMax, {}, code).wait();
      break;
    }
    case 2:
      group->send(tensor(), in.below(n), in.below(256), {}, code).wait();
      break;
    case 3:
      group->barrier({}, in.text(), code).wait();
      break;
    case 4:
      group->broadcast(tensor(), in.below(n), {}, code).wait();
      break;
    case 5: {
      std::vector<int64_t> in_splits, out_splits;
      for (int i = 0; i < n; ++i) in_splits.push_back(in.below(4));
      for (int i = 0; i < n; ++i) out_splits.push_back(in.below(4));
      const auto rows = [](const std::vector<int64_t>& splits) {
        int64_t sum = 0;
        for (const int64_t split : splits) sum += split;
        return TensorView::meta({sum}, DType::kInt8);
      };
      group->all_to_all_single(rows(out_splits), rows(in_splits), out_splits, in_splits, {}, code).wait();
      break;
    }
    default:
      record.compute(duration(in), in.text());
      break;
  }
}

void check_fake(Input& in) {
  std::deque<std::string> files;  // named by the record's calls
  const links::Link link = {.latency = in.below(8) == 0 ? absl::InfiniteDuration() : absl::Nanoseconds(in.below(256)),
                            .bytes_per_second = 1 + static_cast<double>(in.word() >> 32)};
  const auto record = std::make_shared<CallRecord>(in.below(2) == 1 ? CostModel{.link = link} : CostModel{});
  const int size = in.below(3) + 1;
  std::vector<std::shared_ptr<ProcessGroup>> groups = {
      make_fake_process_group({.rank = in.below(size), .world_size = size, .options = {.record = record}})};
  for (int i = 0; i < kMostSteps && !in.empty(); ++i) {
    files.push_back(in.text());
    try {
      fake_step(in, *record, groups, {files.back().c_str(), in.below(256)});
    } catch (const DistError& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) wrong(error.what());
    }
  }
  check_record(*record, record);
}

// ---- what a real run leaves

struct RealStep {
  int kind = 0;
  std::string text, more, file;
  int number = 0;
};

void real_step(const RealStep& step, RankContext& rank, std::vector<std::shared_ptr<ProcessGroup>>& groups) {
  const CodeSite code = {step.file.c_str(), step.number};
  const auto& group = groups[static_cast<size_t>(step.number) % groups.size()];
  std::vector<float> x(3);
  switch (step.kind) {
    case 0:
      groups.push_back(group->new_group(GroupOptions{.name = step.text, .description = step.more}, code));
      break;
    case 1:
      group->all_reduce(x, ReduceOp::kSum, {}, code).wait();
      break;
    case 2:
      group->barrier({}, step.text, code).wait();
      break;
    case 3:
      rank.store().set(step.text, step.more);
      (void)rank.store().get(step.text);
      break;
    case 4:
      rank.world().note(step.text);
      break;
    case 5:
      if (rank.rank() == step.number % 2) throw std::runtime_error(step.text);
      break;
    case 6:  // one member never comes
      if (rank.rank() == 0) group->broadcast(x, 0, {}, code).wait();
      break;
    default:
      rank.sleep_for(absl::Nanoseconds(step.number));
      break;
  }
}

// Of one rank: each group has one entry, under a name of its own, and calls name theirs.
// `calls`: of the rank's record, which another writer makes; without new_group().
void check_flight_records(World& world, int rank, const Value& dump, bool pickle, int64_t calls) {
  std::set<int> ids;
  std::map<int64_t, std::string> names;
  for (const std::shared_ptr<const Group>& group : world.groups()) {
    if (group->group_rank(rank) >= 0) ids.insert(group->id());
  }
  must(dump.at("pg_config").dict.size() >= ids.size(), "groups of a dump are missing");
  must(dump.at("pg_config").dict.size() == dump.at("pg_status").dict.size(), "groups of a dump have no status");
  if (!dump.has("entries")) return must(calls == 0, "a dump has no calls");
  for (const Value& entry : dump.at("entries").list) {
    calls -= entry.at("profiling_name").text.find("split") == std::string::npos;
    const std::string& name = entry.at("process_group").list.at(0).text;
    must(dump.at("pg_config").has(name), "a call's group is not among those of its dump");
    const auto [known, fresh] = names.emplace(entry.at("pg_id").integer, name);
    must(fresh || known->second == name, "a group of a dump has two names");
    must(entry.has("frames") == pickle, "a dump has frames where it should not, or none");
  }
  must(calls == 0, "a dump has not every call, or one that the rank did not make");
  std::set<std::string> different;
  for (const auto& [id, name] : names) must(different.insert(name).second, "two groups of a dump have one name");
}

void check_real(Input& in) {
  WorldOptions options = {.world_size = 2, .schedule = Schedule::seeded(static_cast<uint64_t>(in.below(256)))};
#ifndef RANKLOOM_TSAN
  options.engine = EngineKind::kFibers;
#endif
  options.keep_run = in.below(2) == 1;
  options.recorded_calls = 1 + in.below(8);
  const std::string backend = in.text();
  std::vector<RealStep> steps;
  while (!in.empty() && steps.size() < kMostSteps) {
    RealStep& step = steps.emplace_back();
    step.kind = in.below(8);
    step.number = in.below(256);
    step.text = in.text();
    step.more = in.text();
    step.file = in.text();
  }
  World world(options);
  const RunReport report = world.run([&steps](RankContext& rank) {
    std::vector<std::shared_ptr<ProcessGroup>> groups = {init_process_group(rank)};
    for (const RealStep& step : steps) real_step(step, rank, groups);
  });
  using Format = traces::FlightDumpOptions::Format;
  const std::vector<std::shared_ptr<CallRecord>> records = CallRecord::of_world(world);
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string pickle = traces::flight_records(world, rank, {.format = Format::kPickle, .backend = backend});
    const int64_t calls = records.at(static_cast<size_t>(rank))->size();
    check_flight_records(world, rank, read_pickle(pickle), true, calls);
    const std::string json = traces::flight_records(world, rank, {.format = Format::kJson, .backend = backend});
    check_flight_records(world, rank, read_json(json), false, calls);
  }
  check_run_file(internal::run_file_text(report));
  for (const std::shared_ptr<CallRecord>& record : records) check_record(*record, record);
  read_json(traces::perfetto_json(records));
  check_run_file(traces::run_text(records));
}

}  // namespace
}  // namespace rankloom::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankloom::fuzz::Input in(std::string_view(reinterpret_cast<const char*>(data), size));
  if (in.below(2) == 0) {
    rankloom::fuzz::check_fake(in);
  } else {
    rankloom::fuzz::check_real(in);
  }
  return 0;
}
