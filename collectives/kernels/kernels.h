#pragma once

#include "rankloom/collective_call.h"

namespace rankloom::internal {

class KernelPlan;

// A kernel does one whole collective: it reads and writes the buffers of all members, in rank order. It runs once,
// after all calls were checked and compared, on the thread of the member that arrived last. It cannot fail, takes no
// lock, waits for nobody. Large buffers are split over cores by elements, never by ranks, so that bits do not depend on
// the split. With a plan it touches no memory, and adds to the plan what it would do: for buffers of a device.
// Reading and writing: inputs may be the outputs of the same member (in place) where the operation's rule allows it.

void run_broadcast(MemberCalls calls, KernelPlan* plan = nullptr);
void run_all_reduce(MemberCalls calls, KernelPlan* plan = nullptr);  // also the coalesced form
void run_reduce(MemberCalls calls, KernelPlan* plan = nullptr);
void run_all_gather(MemberCalls calls, KernelPlan* plan = nullptr);
void run_all_gather_into_tensor(MemberCalls calls, KernelPlan* plan = nullptr);  // also the coalesced form
void run_gather(MemberCalls calls, KernelPlan* plan = nullptr);
void run_scatter(MemberCalls calls, KernelPlan* plan = nullptr);
void run_reduce_scatter(MemberCalls calls, KernelPlan* plan = nullptr);
void run_reduce_scatter_tensor(MemberCalls calls, KernelPlan* plan = nullptr);  // also the coalesced form
void run_all_to_all(MemberCalls calls, KernelPlan* plan = nullptr);
void run_all_to_all_single(MemberCalls calls, KernelPlan* plan = nullptr);
void run_nothing(MemberCalls calls, KernelPlan* plan = nullptr);  // barriers

// For groups whose members' buffers do not all lie in this process: the reductions of the kernels above over buffers
// that were brought here, in the order and with the bits that those have. `inputs`: by rank.

// All of a tensor's `numel` elements.
void reduce_gathered(const CollectiveCall& call, DType dtype, int64_t numel, absl::Span<void* const> inputs,
                     void* output);
// `numel` elements that lie in chunk `chunk`: of a reduce_scatter, the part of that rank; of the others, the elements
// from chunk * gathered_chunk() on.
void reduce_gathered_chunk(const CollectiveCall& call, DType dtype, int64_t chunk, int64_t numel,
                           absl::Span<void* const> inputs, void* output);
// In how many elements each of `ranks` chunks goes, but for the last ones.
int64_t gathered_chunk(int64_t numel, int64_t ranks);

// Whether there is a kernel for this reduction: the rule of ReduceOp's comment.
bool reduction_supported(ReduceOp op, DType dtype);

}  // namespace rankloom::internal
