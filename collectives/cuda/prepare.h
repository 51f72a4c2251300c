#pragma once

namespace rankloom::internal::cuda {

// Loads the kernels of `device` into this process and makes what its streams need, unless that was done. CUDA may have
// all of that wait for streams that are blocked, so it should happen while none is. use_cuda() does it.
// Errors: DistError(CollectiveError) if there is no such device or no driver. Thread-safety: any thread.
void prepare(int device);

}  // namespace rankloom::internal::cuda
