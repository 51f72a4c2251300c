#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "collectives/records/trace_text.h"
#include "rankloom/error.h"
#include "rankloom/records.h"
#include "rankloom/tensor.h"
#include "rankloom/version.h"
#include "sim/base/dist_error.h"
#include "sim/base/printable.h"
#include "sim/base/saturating.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "sim/base/write_file.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

constexpr const char* kVersion = "2.10";
constexpr int64_t kFirstP2pNumber = 1'000'000'000;

// A document of nested dicts and lists, written from front to back.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void begin_dict() = 0;
  virtual void key(std::string_view name) = 0;
  virtual void key(int64_t number) = 0;
  virtual void end_dict() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void pair(std::string_view first, std::string_view second) = 0;
  virtual void text(std::string_view value) = 0;
  virtual void number(int64_t value) = 0;
  virtual void real(double value) = 0;
  virtual void boolean(bool value) = 0;
  virtual void unknown_time() = 0;
  // A number of pg_status.
  virtual void status(int64_t value) = 0;
  virtual bool has_frames() const = 0;
  virtual std::string finish() = 0;
};

// Protocol 2 of Python's pickle: a program for a stack machine that builds the value.
class PickleWriter final : public Writer {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}
  void begin_dict() override { out_ += "}("; }  // an empty dict; a mark, after which keys and values pile up
  void key(std::string_view name) override { text(name); }
  void key(int64_t key) override { number(key); }
  void end_dict() override { out_ += 'u'; }
  void begin_list() override { out_ += "]("; }
  void end_list() override { out_ += 'e'; }
  void pair(std::string_view first, std::string_view second) override {
    text(first);
    text(second);
    out_ += '\x86';
  }
  void text(std::string_view value) override {
    const std::string valid = utf8_text(value);  // or Python refuses the whole dump
    out_ += 'X';
    little_endian(valid.size(), 4);
    out_ += valid;
  }
  void number(int64_t value) override {
    if (value == static_cast<int32_t>(value)) {
      out_ += 'J';
      little_endian(static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      little_endian(static_cast<uint64_t>(value), 8);
    }
  }
  void real(double value) override {
    out_ += 'G';
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift & 0xff);
  }
  void boolean(bool value) override { out_ += value ? '\x88' : '\x89'; }
  void unknown_time() override { out_ += 'N'; }
  void status(int64_t value) override { number(value); }
  bool has_frames() const override { return true; }
  std::string finish() override { return std::move(out_) + '.'; }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> 8 * i & 0xff);
  }

  std::string out_;
};

class JsonWriter final : public Writer {
 public:
  void begin_dict() override { begin('{'); }
  void key(std::string_view name) override {
    text(name);
    out_ += ": ";
    fresh_ = true;
  }
  void key(int64_t number) override { key(std::to_string(number)); }
  void end_dict() override { end('}'); }
  void begin_list() override { begin('['); }
  void end_list() override { end(']'); }
  void pair(std::string_view first, std::string_view second) override {
    begin_list();
    text(first);
    text(second);
    end_list();
  }
  void text(std::string_view value) override { plain(internal::json_string(value)); }
  void number(int64_t value) override { plain(std::to_string(value)); }
  void real(double value) override { plain(absl::StrFormat("%.6f", value)); }
  void boolean(bool value) override { plain(value ? "true" : "false"); }
  void unknown_time() override { number(0); }
  void status(int64_t value) override { text(std::to_string(value)); }
  bool has_frames() const override { return false; }
  std::string finish() override { return std::move(out_) + '\n'; }

 private:
  void separate() {
    if (!fresh_) out_ += ", ";
    fresh_ = false;
  }
  void plain(std::string_view value) {
    separate();
    out_ += value;
  }
  void begin(char bracket) {
    separate();
    out_ += bracket;
    fresh_ = true;
  }
  void end(char bracket) {
    out_ += bracket;
    fresh_ = false;
  }

  std::string out_;
  bool fresh_ = true;  // nothing stands before that a comma must follow
};

using Sizes = std::vector<int64_t>;

// `count` shapes from position `at` on, which moves behind them.
std::vector<Sizes> take_shapes(const FlightShapes& shapes, int count, size_t* at) {
  std::vector<Sizes> taken;
  for (int i = 0; i < count; ++i) taken.push_back(shapes.take(at));
  return taken;
}

int64_t numel(const Sizes& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product = saturating_mul(product, size);
  return product;
}

// A list of tensors, one for each member, as the one tensor that holds them.
void join(std::vector<Sizes>* shapes) {
  if (shapes->empty()) return;
  const bool equal =
      std::all_of(shapes->begin(), shapes->end(), [&](const Sizes& sizes) { return sizes == shapes->front(); });
  Sizes whole = {0};
  if (equal) {
    whole = shapes->front();
    whole.insert(whole.begin(), static_cast<int64_t>(shapes->size()));
  } else {
    for (const Sizes& sizes : *shapes) whole[0] = saturating_add(whole[0], numel(sizes));
  }
  *shapes = {whole};
}

class Dump {
 public:
  Dump(World& world, int rank, const traces::FlightDumpOptions& options, Writer& out)
      : rank_(rank),
        backend_(options.backend),
        out_(out),
        entries_(internal::state_of(world).context(rank).recorder().entries()) {
    // The rank's groups, and those that it has left since it made a call that is still recorded.
    std::map<int, std::shared_ptr<const Group>> by_id;
    for (const std::shared_ptr<const Group>& group : entries_.groups()) by_id.emplace(group->id(), group);
    for (const std::shared_ptr<const Group>& group : world.groups()) {
      if (group->group_rank(rank) >= 0) by_id.insert_or_assign(group->id(), group);
    }
    for (const auto& [id, group] : by_id) groups_.push_back(group);
    // Names key the table of groups: of several groups with one name, those after the first get their id behind it,
    // more than once if another group is called that. Other ranks' groups count, so that a group has one name in the
    // dumps of all its members, as long as all of that name are there.
    for (const std::shared_ptr<const Group>& group : world.groups()) by_id.emplace(group->id(), group);
    std::set<std::string> taken;
    for (const auto& [id, group] : by_id) taken.insert(group->name());
    std::set<std::string> used;
    for (const auto& [id, group] : by_id) {
      std::string name = group->name();
      if (!used.insert(name).second) {
        while (!taken.insert(name).second) absl::StrAppend(&name, "#", id);
      }
      names_[group.get()] = name;
    }
  }

  void write() {
    out_.begin_dict();
    field("version", kVersion);
    field("comm_lib_version", absl::StrCat("rankloom ", sv(version())));
    write_groups();
    write_status();
    if (out_.has_frames() || !entries_.empty()) {
      out_.key("entries");
      out_.begin_list();
      for (const FlightEntry& entry : entries_) write_entry(entry);
      out_.end_list();
    }
    out_.end_dict();
  }

 private:
  void field(std::string_view key, std::string_view value) {
    out_.key(key);
    out_.text(value);
  }
  void field(std::string_view key, int64_t value) {
    out_.key(key);
    out_.number(value);
  }
  void time(std::string_view key, int64_t value) {
    out_.key(key);
    value >= 0 ? out_.number(value) : out_.unknown_time();
  }

  void write_groups() {
    out_.key("pg_config");
    out_.begin_dict();
    for (const std::shared_ptr<const Group>& group : groups_) {
      const std::string& name = names_[group.get()];
      std::vector<int> ranks(static_cast<size_t>(group->size()));
      for (int i = 0; i < group->size(); ++i) ranks[static_cast<size_t>(i)] = group->global_rank(i);
      out_.key(name);
      out_.begin_dict();
      field("name", name);
      field("desc", group->description());
      field("ranks", absl::StrCat("[", absl::StrJoin(ranks, ", "), "]"));
      out_.end_dict();
    }
    out_.end_dict();
  }

  // Of what is still in the ring.
  void write_status() {
    out_.key("pg_status");
    out_.begin_dict();
    for (const std::shared_ptr<const Group>& group : groups_) {
      int64_t enqueued = -1, started = -1, completed = -1;
      for (const FlightEntry& entry : entries_) {
        if (entry.group != group.get() || entry.is_p2p) continue;
        enqueued = std::max(enqueued, entry.seq);
        if (state_of(entry) != kScheduled) started = std::max(started, entry.seq);
        if (state_of(entry) == kCompleted) completed = std::max(completed, entry.seq);
      }
      out_.key(int64_t{group->id()});
      out_.begin_dict();
      out_.key("last_enqueued_collective");
      out_.status(enqueued);
      out_.key("last_started_collective");
      out_.status(started);
      out_.key("last_completed_collective");
      out_.status(completed);
      out_.end_dict();
    }
    out_.end_dict();
  }

  static constexpr const char* kScheduled = "scheduled";
  static constexpr const char* kStarted = "started";
  static constexpr const char* kCompleted = "completed";
  static const char* state_of(const FlightEntry& entry) {
    if (entry.state == FlightEntry::State::kCompleted) return kCompleted;
    return entry.started_ns >= 0 ? kStarted : kScheduled;
  }

  std::string name_of(const FlightEntry& entry) const {
    std::string name = absl::StrCat(backend_, ":", entry.recorder_name);
    const int me = entry.group->group_rank(rank_);
    // A recv_any that has no source yet: the analyzer wants a rank, and its own is never right.
    const int peer = entry.peer >= 0 ? entry.peer : me;
    if (entry.recorder_name == std::string_view("send")) absl::StrAppend(&name, " ", me, "->", peer);
    if (entry.recorder_name == std::string_view("recv")) absl::StrAppend(&name, " ", me, "<-", peer);
    return name;
  }

  void write_sizes(std::string_view key, const std::vector<Sizes>& shapes) {
    out_.key(key);
    out_.begin_list();
    for (const Sizes& sizes : shapes) {
      out_.begin_list();
      for (const int64_t size : sizes) out_.number(size);
      out_.end_list();
    }
    out_.end_list();
  }

  void write_dtypes(std::string_view key, size_t count, DType dtype) {
    out_.key(key);
    out_.begin_list();
    for (size_t i = 0; i < count; ++i) out_.text(internal::torch_dtype(dtype));
    out_.end_list();
  }

  void write_entry(const FlightEntry& entry) {
    const std::string_view op = entry.recorder_name;
    size_t at = 0;
    std::vector<Sizes> inputs = take_shapes(entry.shapes, entry.inputs, &at);
    std::vector<Sizes> outputs = take_shapes(entry.shapes, entry.outputs, &at);
    // NCCL's records, which the analyzer is written for, have one tensor where ours is a list of one for each member.
    // all_to_all_single, which has one tensor to begin with, is an "all_to_all" of the recorder, too.
    const bool all_to_all_of_lists = op == "all_to_all" && entry.op != std::string_view("all_to_all_single");
    if (op == "broadcast") inputs = outputs;
    if (op == "all_gather" || all_to_all_of_lists) join(&outputs);
    if (op == "reduce_scatter" || all_to_all_of_lists) join(&inputs);
    const bool completed = entry.state == FlightEntry::State::kCompleted;
    const int64_t started_ns = entry.started_ns < 0 && completed ? entry.completed_ns : entry.started_ns;

    out_.begin_dict();
    field("record_id", entry.record_id);
    field("pg_id", int64_t{entry.group->id()});
    out_.key("process_group");
    const auto name = names_.find(entry.group);
    out_.pair(name != names_.end() ? name->second : entry.group->name(), entry.group->description());
    field("thread_name", absl::StrCat("rank ", rank_));
    field("thread_id", absl::StrCat(rank_));
    field("collective_seq_id", entry.is_p2p ? entry.other_seq : entry.seq);
    field("p2p_seq_id", kFirstP2pNumber + (entry.is_p2p ? entry.seq : entry.other_seq));
    field("op_id", entry.op_id);
    field("profiling_name", name_of(entry));
    field("time_created_ns", entry.created_ns);
    if (completed && entry.started_ns >= 0) {
      out_.key("duration_ms");
      out_.real(static_cast<double>(entry.completed_ns - entry.started_ns) / 1e6);
    }
    write_sizes("input_sizes", inputs);
    write_dtypes("input_dtypes", inputs.size(), static_cast<DType>(entry.dtype));
    write_sizes("output_sizes", outputs);
    write_dtypes("output_dtypes", outputs.size(), static_cast<DType>(entry.dtype));
    field("state", state_of(entry));
    time("time_discovered_started_ns", started_ns);
    // As PyTorch's dumps: a call that failed is retired, and was never seen to complete. Its CallRecord has the end.
    time("time_discovered_completed_ns", completed ? entry.completed_ns : -1);
    out_.key("retired");
    out_.boolean(entry.state != FlightEntry::State::kScheduled);
    field("timeout_ms", entry.timeout_ns < 0 ? 0 : entry.timeout_ns / 1'000'000);
    out_.key("is_p2p");
    out_.boolean(entry.is_p2p);
    if (out_.has_frames()) {
      out_.key("frames");
      out_.begin_list();
      out_.begin_dict();
      field("name", entry.op);
      field("filename", entry.code.file);
      field("line", int64_t{entry.code.line});
      out_.end_dict();
      out_.end_list();
    }
    out_.end_dict();
  }

  const int rank_;
  const std::string backend_;
  Writer& out_;
  const FlightEntries entries_;
  std::vector<std::shared_ptr<const Group>> groups_;  // the rank's, by id
  std::map<const Group*, std::string> names_;
};

}  // namespace

std::string traces::flight_records(World& world, int rank, const traces::FlightDumpOptions& options, CodeSite code) {
  if (rank < 0 || rank >= world.size()) {
    refuse({.rank = rank, .group = {}, .op = "flight_records"}, ErrorKind::kInvalidArgument, "flight_records: rank is ",
           rank, ", want 0 <= rank < world_size = ", world.size(), site_place(Site{.code = code}));
  }
  if (options.format > FlightDumpOptions::Format::kJson) {
    refuse({.rank = rank, .group = {}, .op = "flight_records"}, ErrorKind::kInvalidArgument,
           "flight_records: format is ", static_cast<int>(options.format), ", want kPickle or kJson",
           site_place(Site{.code = code}));
  }
  if (StepRecord* const record = world.scheduler().record(); record != nullptr && Task::current() != nullptr)
    record->uncovered("flight records, which tell of all calls so far");
  const auto write = [&](Writer& out) {
    Dump(world, rank, options, out).write();
    return out.finish();
  };
  if (options.format == FlightDumpOptions::Format::kJson) {
    JsonWriter json;
    return write(json);
  }
  PickleWriter pickle;
  return write(pickle);
}

void traces::dump_flight_records(World& world, const std::string& prefix, const traces::FlightDumpOptions& options,
                                 CodeSite code) {
  // Of ranks in other processes this one has nothing, and theirs write their files.
  const bool elsewhere = internal::state_of(world).group_backend() != nullptr;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (elsewhere && internal::state_of(world).context(rank).recorder().entries().empty()) continue;
    const std::string path =
        absl::StrCat(prefix, rank, options.format == FlightDumpOptions::Format::kJson ? ".json" : "");
    const std::string bytes = traces::flight_records(world, rank, options, code);
    if (const absl::Status written = write_file(path, bytes); !written.ok()) {
      refuse({.rank = rank, .group = {}, .op = "dump_flight_records"}, ErrorKind::kInvalidArgument,
             "dump_flight_records: ", written.message(), site_place(Site{.code = code}));
    }
  }
}

}  // namespace rankloom
