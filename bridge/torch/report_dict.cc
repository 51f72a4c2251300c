#include "bridge/torch/report_dict.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "world/run_file.h"

namespace rankloom::bridge {

std::string RunFile::bytes(const std::string& rerun, const std::vector<std::string>& notes) const {
  RunReport report = *report_;
  report.rerun = rerun;
  report.notes = notes;
  return internal::run_file_text(report);
}

void refuse_fibers(const WorldOptions& options) {
  if (options.engine != EngineKind::kFibers) return;
  throw py::value_error(
      "RANKLOOM_ENGINE is \"fibers\", want threads: fibers of one thread would share the interpreter's state");
}

py::dict report_dict(const JobReport& job) {
  const RunReport& report = job.run;
  py::dict result;
  result["ok"] = report.ok();
  result["text"] = report.text();
  result["first_failed"] = report.first_failed;
  result["cause"] = std::string(report.cause.message());
  result["schedule"] = report.schedule;
  result["steps"] = report.steps;
  result["notes"] = report.notes;
  result["rerun"] = report.rerun;
  py::list outcomes;
  for (const RunReport::Outcome& outcome : report.outcomes) {
    const char* state = "running";
    if (outcome.state == RunReport::Outcome::State::kReturned) state = "returned";
    if (outcome.state == RunReport::Outcome::State::kFailed) state = "failed";
    if (outcome.state == RunReport::Outcome::State::kStopped) state = "stopped";
    outcomes.append(py::make_tuple(state, outcome.text));
  }
  result["outcomes"] = outcomes;
  result["trace"] = py::bytes(report.trace.serialize());
  py::list flight;
  for (const std::string& records : job.flight) flight.append(py::bytes(records));
  result["flight"] = flight;
  result["_run"] = RunFile(report);
  return result;
}

}  // namespace rankloom::bridge
