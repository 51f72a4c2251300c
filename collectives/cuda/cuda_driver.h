#pragma once

#include <memory>
#include <string>

#include "collectives/streams/device_driver.h"

namespace rankloom {

class RankContext;

// Lets calls of the world of `rank` use CUDA memory and streams. CudaStream and CudaTensor do it themselves; a program with
// device memory of other origin calls it before its first such call, on every rank or on any. The first time in a process it
// loads the kernels of `device`, which should happen while no stream of it is blocked.
// Errors: DistError(CollectiveError) if there is no such device or no driver.
void use_cuda(RankContext& rank, int device = 0);

// Why there is no CUDA device that could be used, "" if there is one.
std::string cuda_missing();

// The one driver of this process: there is one CUDA context for a device and process. Never destroyed, since the device may
// look at its memory until the process ends.
std::shared_ptr<DeviceDriver> cuda_driver();

}  // namespace rankloom
