#pragma once

#include <pybind11/pybind11.h>

#include "bridge/torch/job.h"

namespace rankloom::bridge {

// What Python's Report is made of.
pybind11::dict report_dict(const JobReport& job);

// Throws ValueError where the environment asks for fibers.
void refuse_fibers(const WorldOptions& options);

}  // namespace rankloom::bridge
