#include "bridge/torch/cuda_device.h"

namespace rankloom::bridge {

UseDevice use_gpu() { return nullptr; }
PrepareDevice prepare_gpu() { return nullptr; }

}  // namespace rankloom::bridge
