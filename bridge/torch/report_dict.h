#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "bridge/torch/job.h"

namespace rankloom::bridge {

// The report of a run, of which the run file of a Python Report is made. Thread-safety: all methods.
class RunFile {
 public:
  explicit RunFile(RunReport report) : report_(std::make_shared<const RunReport>(std::move(report))) {}

  // The file's bytes (docs/run-files.md). `rerun`, `notes`: what the Python Report says instead of the core's.
  std::string bytes(const std::string& rerun, const std::vector<std::string>& notes) const;

 private:
  std::shared_ptr<const RunReport> report_;
};

// The fields of Python's Report.
pybind11::dict report_dict(const JobReport& job);

// Throws ValueError where the environment asks for fibers.
void refuse_fibers(const WorldOptions& options);

}  // namespace rankloom::bridge
