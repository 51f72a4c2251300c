#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// Moves the data of one collective between the members of a communicator, by MPI's nonblocking collectives. Reductions
// are ours: parts are sent to the members that reduce them, in the order that the call asks for, with the kernels of
// all other groups, and the results are gathered. So their bits are those of a group in one process.
//
//   exchange.begin(call, comm, rank, size, &requests);    // posts
//   while (exchange.next(&requests)) { until all requests are done }
//
// Members' calls agree, sizes that they expect of each other included. One call at a time; memory is kept for the next.
class PieceExchange {
 public:
  using Requests = absl::InlinedVector<MPI_Request, 4>;

  absl::Status begin(const CollectiveCall& call, MPI_Comm comm, int rank, int size, Requests* requests);
  // When the requests are done. `*requests` stays empty: so is the call.
  absl::Status next(Requests* requests);

  // The call's data as this member gives them, in one row of bytes: how many; -1: more than `most`.
  static int64_t given_bytes(const CollectiveCall& call, int rank, int64_t most);
  static void write_given(const CollectiveCall& call, int rank, char* to);
  // How many of the bytes that a member gives the call reads at most, if calls may differ.
  static int64_t taken_bytes(const CollectiveCall& call, int rank);
  // Does the whole call with the data that all members have given so; `given(member)` is where those of one are.
  static void run_given(const CollectiveCall& call, int rank, int size, absl::FunctionRef<const char*(int)> given);

 private:
  enum class Stage : uint8_t { kLast, kReduce, kCopy };

  char* room(size_t bytes);
  absl::Status begin_reduction(Requests* requests);
  absl::Status begin_reduce_scatter(Requests* requests);
  absl::Status begin_scatter(Requests* requests);
  absl::Status begin_gathers(Requests* requests);
  absl::Status begin_all_to_all(Requests* requests);
  absl::Status reduce(Requests* requests);
  void copy_out();
  int* ints(size_t count);

  const CollectiveCall* call_ = nullptr;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  Stage stage_ = Stage::kLast;
  struct Copy {
    void* to;
    const char* from;
    size_t bytes;
  };
  std::vector<Copy> copies_;
  std::vector<char*> parts_;                  // of each tensor: where the others' parts are, one after another
  std::vector<std::unique_ptr<int[]>> ints_;  // counts and places that MPI reads until its call is done
  // memory that is kept
  struct Room {
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
  };
  std::vector<Room> rooms_;
  size_t rooms_used_ = 0;
};

}  // namespace rankloom::internal
