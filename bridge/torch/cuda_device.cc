#include "bridge/torch/cuda_device.h"

#include "collectives/cuda/prepare.h"
#include "rankloom/cuda.h"

namespace rankloom::bridge {

using namespace internal;

UseDevice use_gpu() {
  return [](RankContext& rank, int device) { use_cuda(rank, device); };
}

PrepareDevice prepare_gpu() { return &cuda::prepare; }

}  // namespace rankloom::bridge
