#pragma once

#include "absl/status/status.h"
#include "rankloom/collective_call.h"

namespace rankloom::internal {

// One member's rules, an operation each; rows of the op table point here (that of coalesced calls, which asks the rows
// of its parts, is in op_table.cc). A rule looks at the call alone and never at the data. `rank` is the member's rank
// in its group of `size`.
//
// Result: OK, or InvalidArgument whose text says what, have, want: `output has 5 elements, want size * input = 3 * 2 =
// 6`. The front puts the caller in front: `rank 2, group 0, all_gather_into_tensor seq 1: `.
// For every tensor: no negative size, contiguous, data unless it is empty or on the meta device. Within a call: one
// dtype, one device. Empty tensors and groups of one are fine.
// In place: a member's own part may be one memory in input and output, exactly: all_reduce and reduce (all of it),
// gather, scatter, all_gather, reduce_scatter and their tensor forms (the part of `rank`). Any other overlap of an
// input with an output, or of two outputs, is an error; all_to_all and all_to_all_single allow none.
// Cost: some nanoseconds where the call is right; nothing is allocated but where tensors of a list lie in no order.
absl::Status check_broadcast(const CollectiveCall& call, int rank, int size);
absl::Status check_all_reduce(const CollectiveCall& call, int rank, int size);
absl::Status check_all_reduce_coalesced(const CollectiveCall& call, int rank, int size);
absl::Status check_reduce(const CollectiveCall& call, int rank, int size);
absl::Status check_all_gather(const CollectiveCall& call, int rank, int size);
absl::Status check_all_gather_into_tensor(const CollectiveCall& call, int rank, int size);
absl::Status check_all_gather_into_tensor_coalesced(const CollectiveCall& call, int rank, int size);
absl::Status check_gather(const CollectiveCall& call, int rank, int size);
absl::Status check_scatter(const CollectiveCall& call, int rank, int size);
absl::Status check_reduce_scatter(const CollectiveCall& call, int rank, int size);
absl::Status check_reduce_scatter_tensor(const CollectiveCall& call, int rank, int size);
absl::Status check_reduce_scatter_tensor_coalesced(const CollectiveCall& call, int rank, int size);
absl::Status check_all_to_all(const CollectiveCall& call, int rank, int size);
absl::Status check_all_to_all_single(const CollectiveCall& call, int rank, int size);
absl::Status check_barrier(const CollectiveCall& call, int rank, int size);  // also monitored_barrier
absl::Status check_send(const CollectiveCall& call, int rank, int size);
absl::Status check_recv(const CollectiveCall& call, int rank, int size);
absl::Status check_new_group(const CollectiveCall& call, int rank, int size);

// The splits of all_to_all_single as the kernel uses them: rows (elements of dimension 0) that `call`, which passed its
// check, sends to `peer` or expects of it, and elements of a row (0 if there is no row).
struct SplitRows {
  int64_t rows;
  int64_t row_elements;
};
SplitRows rows_sent(const CollectiveCall& call, int peer, int size);
SplitRows rows_expected(const CollectiveCall& call, int peer, int size);

}  // namespace rankloom::internal
