#include "bridge/torch/cuda_device.h"

#include "rankloom/cuda.h"

namespace rankloom::bridge {

UseDevice use_gpu() {
  return [](RankContext& rank, int device) { use_cuda(rank, device); };
}

PrepareDevice prepare_gpu() { return &prepare_cuda; }

}  // namespace rankloom::bridge
