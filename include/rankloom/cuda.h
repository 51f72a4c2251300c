#pragma once

// CUDA streams and tensors, for programs that link rankloom-cuda. No CUDA header is included.

#include "collectives/cuda/cuda_driver.h"
#include "collectives/cuda/cuda_stream.h"
#include "collectives/cuda/cuda_tensor.h"
#include "rankloom/rankloom.h"
