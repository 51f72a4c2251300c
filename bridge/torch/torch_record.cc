#include "bridge/torch/torch_record.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bridge/torch/python_frames.h"
#include "collectives/fake/fake_group.h"
#include "collectives/ops/op_table.h"
#include "collectives/records/call_record_state.h"
#include "rankloom/records.h"
#include "sim/base/dist_error.h"

#if defined(RANKLOOM_HAVE_CHAKRA)
#include "rankloom/chakra.h"
#endif

namespace rankloom::bridge {

using namespace internal;

namespace {

const char* kept(std::string text) {
  static std::mutex mu;
  static auto* const texts = new std::unordered_set<std::string>;
  const std::lock_guard<std::mutex> lock(mu);
  return texts->insert(std::move(text)).first->c_str();
}

// Ranks at equal distances cost nothing to keep.
std::shared_ptr<const Group> group_of(int id, const std::string& name, const std::string& description, int size,
                                      const std::vector<int>& ranks) {
  if (ranks.empty()) return std::make_shared<const Group>(id, name, 0, 1, size, description);
  const int stride = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (stride <= 0 || ranks[i] - ranks[i - 1] != stride) {
      return std::make_shared<const Group>(id, name, ranks, description);
    }
  }
  return std::make_shared<const Group>(id, name, ranks[0], stride, size, description);
}

}  // namespace

std::shared_ptr<ProcessGroup> TorchRecord::make_group(int rank, int size, const std::string& name,
                                                      const std::string& description, const std::vector<int>& ranks,
                                                      bool error_on_collective, CodeSite code) {
  // Its errors for a rank and a size that do not fit.
  make_fake_process_group({.rank = rank, .world_size = size}, code);
  const std::lock_guard<std::mutex> lock(mu_);
  if (!closed_.empty()) throw DistError(invalid_argument(closed_), {.rank = -1, .group = {}, .op = "new_group"});
  const int id = static_cast<int>(record_->groups().size());
  auto group = std::make_shared<FakeGroup>(
      group_of(id, name, description, size, ranks), rank,
      FakeOptions{.error_on_collective = error_on_collective, .outputs = outputs_, .record = record_});
  group->set_description(description);
  return group;
}

const char* TorchRecord::scope() const {
  if (!scope_) return nullptr;
  std::string text = scope_();
  return text.empty() ? nullptr : kept(std::move(text));
}

void TorchRecord::enter(const char* scope) { CallRecordState::of(*record_).scope = scope; }

void TorchRecord::met_data(const char* op, CodeSite code) {
  if (on_data_ && !told_of_data_.exchange(true)) on_data_(op, code);
}

void TorchRecord::close(std::string why) {
  const std::lock_guard<std::mutex> lock(mu_);
  closed_ = std::move(why);
}

std::string TorchRecord::closed() {
  const std::lock_guard<std::mutex> lock(mu_);
  return closed_;
}

// ---- for Python

namespace {

using NamedLink =
    std::tuple<std::string, double, double, std::string>;  // of a dimension: seconds, bytes a second, name

double seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

CostModel cost_model(const std::vector<NamedLink>& links, const std::string& algorithm) {
  CostModel model;
  for (const auto& [dim, latency, bytes_per_second, name] : links) {
    const links::Link link = {absl::Seconds(latency), bytes_per_second, kept(name)};
    if (dim.empty()) {
      model.link = link;
    } else {
      model.dims[dim] = link;
    }
  }
  if (algorithm == "tree") model.algorithm = CostModel::Choice::kTree;
  if (algorithm == "faster") model.algorithm = CostModel::Choice::kFaster;
  return model;
}

FakeOptions::Outputs outputs_named(const std::string& name) {
  if (name == "shapes_only") return FakeOptions::Outputs::kShapesOnly;
  if (name == "uniform_ranks") return FakeOptions::Outputs::kUniformRanks;
  return FakeOptions::Outputs::kPassThrough;
}

// The record may go on a thread without the interpreter lock.
std::shared_ptr<py::function> shared(const py::function& function) {
  return {new py::function(function), [](py::function* last) {
            const py::gil_scoped_acquire gil;
            delete last;
          }};
}

std::shared_ptr<TorchRecord> make_record(const std::vector<NamedLink>& links, const std::string& algorithm,
                                         const std::string& outputs, const py::function& scope,
                                         const py::function& on_data) {
  const auto asked = [ask = shared(scope)] {
    const py::gil_scoped_acquire gil;
    return (*ask)().cast<std::string>();
  };
  auto record = std::make_shared<TorchRecord>(cost_model(links, algorithm), outputs_named(outputs), asked);
  record->on_data([tell = shared(on_data)](const char* op, CodeSite code) {
    const py::gil_scoped_acquire gil;
    (*tell)(op, code.file != nullptr ? code.file : "", code.line);
  });
  return record;
}

using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Tensors tensors(const std::vector<CallRecord::Call::Tensor>& list) {
  Tensors result;
  for (const CallRecord::Call::Tensor& tensor : list) {
    result.emplace_back(dtype_name(tensor.dtype), std::vector<int64_t>(tensor.sizes.begin(), tensor.sizes.end()));
  }
  return result;
}

// A call with what else its record knows of it. A copy: Python objects are made without the record's lock, since their
// memory may make Python collect garbage, works of the record among it.
struct RecordedCall {
  RecordedCall(const CallRecord& record, size_t index) : call(record[index]) {
    if (call.is_compute) return;
    const CallRecord::GroupInfo& info = record.groups()[static_cast<size_t>(call.group)];
    label = info.label();
    group_name = info.name();
    group = info.group;
    module = CallRecordState::of(record).scope_at(index);
  }
  CallRecord::Call call;
  std::string label, group_name, module;
  std::shared_ptr<const Group> group;
};

// The fields of Python's Call, by name.
py::dict call_dict(const RecordedCall& recorded) {
  const CallRecord::Call& call = recorded.call;
  py::dict row;
  row["op"] = call.name;
  row["is_compute"] = call.is_compute;
  row["issued"] = seconds(call.issued);
  row["start"] = seconds(call.start);
  row["duration"] = seconds(call.duration);
  if (call.is_compute) return row;
  row["group"] = recorded.label;
  row["group_name"] = recorded.group_name;
  row["group_size"] = recorded.group->size();
  row["seq"] = call.seq;
  row["module"] = recorded.module;
  row["file"] = call.code.file != nullptr ? call.code.file : "";
  row["line"] = call.code.line;
  row["inputs"] = tensors(call.inputs);
  row["outputs"] = tensors(call.outputs);
  const bool reduces = op_row(call.op).compares(CallField::kReduceOp);
  row["reduce_op"] = reduces ? py::object(py::str(call.reduce_op.name())) : py::none();
  const auto rank_or_none = [&recorded](int rank) {
    return rank >= 0 ? py::object(py::int_(recorded.group->global_rank(rank))) : py::none();
  };
  row["root"] = rank_or_none(call.root);
  row["peer"] = rank_or_none(call.peer);
  row["tag"] = call.tag;
  row["in_splits"] = call.in_splits;
  row["out_splits"] = call.out_splits;
  row["payload"] = call.payload;
  row["ring_steps"] = call.ring.steps;
  row["ring_bytes"] = call.ring.bytes;
  row["tree_steps"] = call.tree.steps;
  row["tree_bytes"] = call.tree.bytes;
  row["waited"] = call.waited_before >= 0;
  row["waited_before"] = call.waited_before;
  return row;
}

py::list calls(TorchRecord& self, size_t first) {
  constexpr size_t kAtOnce = 4096;
  py::list rows;
  std::vector<RecordedCall> some;
  do {
    some.clear();
    {
      const std::lock_guard<std::mutex> lock(self.mu());
      const CallRecord& record = *self.record();
      for (; first < record.size() && some.size() < kAtOnce; ++first) some.emplace_back(record, first);
    }
    for (const RecordedCall& recorded : some) rows.append(call_dict(recorded));
  } while (some.size() == kAtOnce);
  return rows;
}

py::list totals(TorchRecord& self) {
  std::vector<CallRecord::Totals> sums;
  std::vector<std::pair<std::string, int>> groups;  // by the numbers in `sums`: label, size
  {
    const std::lock_guard<std::mutex> lock(self.mu());
    const CallRecord& record = *self.record();
    sums = record.totals();
    for (const CallRecord::GroupInfo& info : record.groups()) groups.emplace_back(info.label(), info.group->size());
  }
  py::list rows;
  for (const CallRecord::Totals& sum : sums) {
    const auto& [label, size] = groups[static_cast<size_t>(sum.group)];
    py::dict row;
    row["op"] = std::string(op_row(sum.op).name);
    row["group"] = label;
    row["group_size"] = size;
    row["calls"] = sum.calls;
    row["payload"] = sum.payload;
    row["ring_steps"] = sum.ring.steps;
    row["ring_bytes"] = sum.ring.bytes;
    row["tree_steps"] = sum.tree.steps;
    row["tree_bytes"] = sum.tree.bytes;
    row["time"] = seconds(sum.time);
    rows.append(row);
  }
  return rows;
}

std::vector<std::pair<std::string, std::vector<std::string>>> groups(TorchRecord& self) {
  const std::lock_guard<std::mutex> lock(self.mu());
  std::vector<std::pair<std::string, std::vector<std::string>>> names;
  for (const CallRecord::GroupInfo& info : self.record()->groups())
    names.push_back({info.label(), {info.name(), info.group->description()}});
  return names;
}

// Of operations by their names in the record; of one group, by its label or name, or of all.
int64_t count(TorchRecord& self, const std::vector<std::string>& ops, const std::optional<std::string>& group) {
  const std::lock_guard<std::mutex> lock(self.mu());
  const CallRecord& record = *self.record();
  int64_t sum = 0;
  for (const OpRow& row : kOps) {
    if (std::find(ops.begin(), ops.end(), row.name) == ops.end()) continue;
    sum += group.has_value() ? record.calls(row.op, *group) : record.calls(row.op);
  }
  return sum;
}

// A value of the record, read under its lock.
template <typename Read>
auto locked(Read read) {
  return [read](TorchRecord& self) {
    const std::lock_guard<std::mutex> lock(self.mu());
    return read(*self.record());
  };
}

// Writes several records: no lock of all of them at once is taken, since worlds are open one after the other. More:
// types of further arguments.
template <typename... More, typename Write>
auto written(Write write) {
  return [write](const std::vector<std::shared_ptr<TorchRecord>>& ranks, const std::string& path, More... more) {
    std::vector<std::shared_ptr<CallRecord>> records;
    for (const std::shared_ptr<TorchRecord>& rank : ranks) records.push_back(rank->record());
    try {
      return write(records, path, more..., python_site());
    } catch (const DistError& error) {
      throw py::value_error(error.what());
    }
  };
}

}  // namespace

void bind_records(py::module_& m) {
  py::class_<TorchRecord, std::shared_ptr<TorchRecord>>(m, "FakeRecord")
      .def(py::init(&make_record), py::arg("links"), py::arg("algorithm"), py::arg("outputs"), py::arg("scope"),
           py::arg("on_data"))
      .def_property_readonly("size", locked([](const CallRecord& record) { return record.size(); }))
      .def_property_readonly("now", locked([](const CallRecord& record) { return seconds(record.now()); }))
      .def_property_readonly("end", locked([](const CallRecord& record) { return seconds(record.end()); }))
      .def_property_readonly("peak_buffer_bytes",
                             locked([](const CallRecord& record) { return record.peak_buffer_bytes(); }))
      .def_property_readonly("live_buffer_bytes",
                             locked([](const CallRecord& record) { return record.live_buffer_bytes(); }))
      .def_property_readonly("group_count", locked([](const CallRecord& record) { return record.groups().size(); }))
      .def("text", locked([](const CallRecord& record) { return record.text(); }))
      .def("table", locked([](const CallRecord& record) { return record.table(); }))
      .def("clear", locked([](CallRecord& record) { record.clear(); }))
      .def("calls", &calls, py::arg("first"))
      .def("totals", &totals)
      .def("groups", &groups)
      .def("count", &count, py::arg("ops"), py::arg("group"))
      .def(
          "compute",
          [](TorchRecord& self, double duration, const std::string& name) {
            const std::lock_guard<std::mutex> lock(self.mu());
            self.record()->compute(absl::Seconds(duration), name);
          },
          py::arg("seconds"), py::arg("name"))
      .def("close", &TorchRecord::close, py::arg("why"));

  m.def("write_perfetto", written([](const auto& records, const std::string& path, CodeSite code) {
          traces::write_perfetto(records, path, code);
        }),
        py::arg("records"), py::arg("path"));
  m.def("write_run", written([](const auto& records, const std::string& path, CodeSite code) {
          traces::write_run(records, path, code);
        }),
        py::arg("records"), py::arg("path"));
  m.def("write_pytorch_trace", written([](const auto& records, const std::string& path, CodeSite code) {
          traces::write_pytorch_trace(*records.at(0), path, code);
        }),
        py::arg("records"), py::arg("path"));
#if defined(RANKLOOM_HAVE_CHAKRA)
  m.attr("has_chakra") = true;
  m.def("write_chakra", written<bool>([](const auto& records, const std::string& prefix, bool lower, CodeSite code) {
          return traces::write_chakra(records, prefix, lower, code);
        }),
        py::arg("records"), py::arg("path"), py::arg("lower"));
#else
  m.attr("has_chakra") = false;
#endif

  py::list presets;
  for (const links::Link& link : {links::kNvlink3, links::kNvlink4, links::kNvlink5, links::kPcie4, links::kPcie5,
                                  links::kInfinibandHdr, links::kInfinibandNdr, links::kEthernet100}) {
    presets.append(py::make_tuple(std::string(link.name), absl::ToDoubleSeconds(link.latency), link.bytes_per_second,
                                  std::string(link.source)));
  }
  m.attr("links") = presets;

  py::list recorded;
  for (const OpRow& row : kOps) {
    // Parts of the first are recorded, and groups that are made are no calls.
    if (row.op == OpType::kCoalesced || row.op == OpType::kNewGroup || row.op == OpType::kSplitGroup) continue;
    recorded.append(std::string(row.name));
  }
  m.attr("recorded_ops") = recorded;
}

}  // namespace rankloom::bridge
