#pragma once

// The differences between versions of torch, in one place. Compiled against 2.11 and 2.13. A later Backend.hpp calls
// these methods all_gather_single and the like, and forwards to the names below as long as those are what a backend
// overrides.

#include <torch/version.h>

#define RANKLOOM_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !RANKLOOM_TORCH_AT_LEAST(2, 11)
#error "rankloom.torch needs torch 2.11 or later"
#endif

#define RANKLOOM_C10D_ALL_GATHER_SINGLE _allgather_base
#define RANKLOOM_C10D_ALL_GATHER_SINGLE_COALESCED allgather_into_tensor_coalesced
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE _reduce_scatter_base
#define RANKLOOM_C10D_REDUCE_SCATTER_SINGLE_COALESCED reduce_scatter_tensor_coalesced
#define RANKLOOM_C10D_ALL_TO_ALL_SINGLE alltoall_base

#if RANKLOOM_TORCH_AT_LEAST(2, 13)
#define RANKLOOM_C10D_PREMUL_SUM_SUPPLEMENT c10d::PreMulSumSupplement
#define RANKLOOM_C10D_OP_REDUCE_SCATTER_TENSOR_COALESCED c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED
#else
#define RANKLOOM_C10D_PREMUL_SUM_SUPPLEMENT c10d::NCCLPreMulSumSupplement
#define RANKLOOM_C10D_OP_REDUCE_SCATTER_TENSOR_COALESCED c10d::OpType::COALESCED
#endif
