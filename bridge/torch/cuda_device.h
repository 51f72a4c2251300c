#pragma once

#include "bridge/torch/device_streams.h"

namespace rankloom::bridge {

// Lets calls use the memory of GPUs, by rankloom-cuda; null where the bridge is built without it. One of two files has
// it, so that nothing else of the bridge is compiled anew for CUDA.
UseDevice use_gpu();
PrepareDevice prepare_gpu();

}  // namespace rankloom::bridge
