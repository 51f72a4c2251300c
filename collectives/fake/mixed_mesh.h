#pragma once

#include <string>
#include <vector>

#include "collectives/call/fake_options.h"
#include "collectives/group/device_mesh.h"

namespace rankloom {

class RankContext;

// One dimension of a mesh that is real in some dimensions and fake in others.
struct MixedDim {
  std::string name;
  int size = 1;
  BackendKind backend = BackendKind::kThreaded;
  int coordinate = 0;  // of a fake dimension: where the ranks of this world stand in it
};

struct MixedMeshOptions {
  GroupOptions real = {};  // of the groups along real dimensions
  FakeOptions fake = {};   // of the others, and of the mesh's base
};

// A mesh of more ranks than the world has: those of the world are one slice of it, along the real dimensions, and collectives
// there move data; along the others each rank has fake groups. So 8 threads can run the tensor-parallel part of a job of 4,096
// ranks. Collective: every rank of the world calls it, and gives the same dimensions.
// Ranks: the world's are numbered in row-major order over the real dimensions. base() is a fake group of the whole mesh; it and
// the fake groups know this rank by its place there, real groups by that in the world.
// Errors: InvalidArgument where the real dimensions do not multiply to the size of the world, for a coordinate outside its
//   dimension, and as init_device_mesh().
DeviceMesh init_mixed_mesh(RankContext& rank, const std::vector<MixedDim>& dims, const MixedMeshOptions& options = {},
                           CodeSite code = CodeSite::here());

}  // namespace rankloom
