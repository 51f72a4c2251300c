#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "tests/campaign/values.h"

namespace rankloom {

// Whether MPI can make the call: all but reductions of dtypes that it has no type for.
bool mpi_has(const JobCall& call);

// The collective, made in `comm` by MPI's functions alone. `inputs`: the tensors of this process. Its outputs, one
// tensor after another.
std::string made_by_mpi(const JobCall& call, const std::vector<Bytes>& inputs, MPI_Comm comm);

}  // namespace rankloom
