#include "bridge/torch/cuda_device.h"

namespace rankloom::bridge {

UseDevice use_gpu() { return nullptr; }

}  // namespace rankloom::bridge
