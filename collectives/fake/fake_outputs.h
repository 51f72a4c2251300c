#pragma once

#include "absl/status/status.h"
#include "rankloom/collective_call.h"
#include "rankloom/process_group.h"

namespace rankloom::internal {

// Writes the outputs of `call`, which passed its check, as `mode` says. `rank` is the member's rank in its group of
// `size`.
//
// kUniformRanks, where every rank holds this rank's data:
//   sum, premul_sum    the element times `size`; integers wrap; float16 and bfloat16 are rounded once
//   product            the element to the power of `size`
//   avg, min, max, band, bor    the element; bxor: the element or 0; bool comes out as 0 or 1
//   gathers, all_to_all         what this rank sends; where an output is larger than that, it is repeated from its
//                               beginning
//   recv, and scatter beside the root    zeros: what the others hold there is not known here
// The results of reductions are those of a real group in exact arithmetic; a real group adds one by one and rounds each
// time.
//
// kPassThrough: gathers put the input into every part; scatter (at the root) and reduce_scatter keep this rank's part,
// unreduced; all_to_all gives back the input, all_to_all_single repeats it to fit splits. All else stays as it is.
//
// Errors: CollectiveError for an output in device memory.
absl::Status write_fake_outputs(FakeOptions::Outputs mode, const CollectiveCall& call, int rank, int size);

}  // namespace rankloom::internal
