#pragma once

// What differs between versions of torch, in one place. Written for 2.13; later versions rename the overridables of
// c10d::Backend as they have renamed those of c10d::ProcessGroup.

#include <torch/version.h>

#define RANKLOOM_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !RANKLOOM_TORCH_AT_LEAST(2, 11)
#error "rankloom.torch needs torch 2.11 or later"
#endif

#if RANKLOOM_TORCH_AT_LEAST(2, 14)
#define RANKLOOM_C10D_ALL_GATHER_SINGLE all_gather_single
#define RANKLOOM_C10D_ALL_GATHER_SINGLE_COALESCED all_gather_single_coalesced
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE reduce_scatter_single
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE_COALESCED reduce_scatter_single_coalesced
#define RANKLOOM_C10D_ALL_TO_ALL_SINGLE all_to_all_single
#else
#define RANKLOOM_C10D_ALL_GATHER_SINGLE _allgather_base
#define RANKLOOM_C10D_ALL_GATHER_SINGLE_COALESCED allgather_into_tensor_coalesced
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE _reduce_scatter_base
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE_COALESCED reduce_scatter_tensor_coalesced
#define RANKLOOM_C10D_ALL_TO_ALL_SINGLE alltoall_base
#endif
