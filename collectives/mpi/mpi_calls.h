#pragma once

#include <mpi.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {

// The status of an MPI call, whose communicator returns errors: CollectiveError, "MPI_Ibcast: MPI_ERR_COUNT: ...".
[[gnu::cold]] inline absl::Status mpi_error(int code, const char* call) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return make_error(ErrorKind::kCollectiveError, call, ": ", std::string(text, static_cast<size_t>(length)));
}
inline absl::Status mpi_status(int code, const char* call) {
  return code == MPI_SUCCESS ? absl::OkStatus() : mpi_error(code, call);
}

// A communicator of an engine's own, which returns errors. Collective. Throws CollectiveError.
inline MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm made = MPI_COMM_NULL;
  throw_if_error(mpi_status(MPI_Comm_dup(comm, &made), "MPI_Comm_dup"),
                 {.rank = -1, .group = {}, .op = "run_mpi_world"});
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return made;
}

// An element of so many bytes, as MPI moves it. No arithmetic is asked of MPI, so the type of the same size does.
inline MPI_Datatype mpi_element(size_t bytes) {
  switch (bytes) {
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    case 8:
      return MPI_UINT64_T;
    case 16:
      return MPI_C_DOUBLE_COMPLEX;
    default:
      return MPI_BYTE;
  }
}

// Whether the processes of this machine are more than its cores.
inline bool is_crowded(MPI_Comm processes) {
  MPI_Comm here = MPI_COMM_NULL;
  int count = 1;
  if (MPI_Comm_split_type(processes, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) == MPI_SUCCESS) {
    MPI_Comm_size(here, &count);
    MPI_Comm_free(&here);
  }
  return count > sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace rankloom::internal
