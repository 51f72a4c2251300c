#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/device_mesh.h"
#include "rankloom/error.h"
#include "rankloom/fake.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/site_text.h"

namespace rankloom {

using namespace internal;

namespace {

bool is_real(const DeviceMesh::MixedDim& dim) { return dim.backend == GroupOptions::Backend::kThreaded; }

void check(const RankContext& rank, const std::vector<DeviceMesh::MixedDim>& dims, CodeSite code) {
  const auto fail = [&rank, code](const auto&... text) {
    refuse({.rank = rank.rank(), .group = {}, .op = "device_mesh"}, ErrorKind::kInvalidArgument, "rank ", rank.rank(),
           ", init_mixed_mesh: ", text..., site_place(Site{.code = code}));
  };
  int64_t real = 1;
  int64_t all = 1;
  std::vector<int> sizes;
  for (const DeviceMesh::MixedDim& dim : dims) {
    if (dim.backend > GroupOptions::Backend::kFake)
      fail("dimension ", dim.name, " has backend ", static_cast<int>(dim.backend), ", want kThreaded or kFake");
    if (dim.size < 1) fail("dimension ", dim.name, " has size ", dim.size, ", want at least 1");
    all *= dim.size;
    if (all > std::numeric_limits<int>::max()) fail("the mesh has more than 2^31 - 1 ranks");
    if (is_real(dim)) {
      real *= dim.size;
      sizes.push_back(dim.size);
    } else if (dim.coordinate < 0 || dim.coordinate >= dim.size) {
      fail("dimension ", dim.name, " has coordinate ", dim.coordinate, ", want 0 <= coordinate < size = ", dim.size);
    }
  }
  if (real != rank.world_size()) {
    const std::string product =
        sizes.size() > 1 ? absl::StrCat(absl::StrJoin(sizes, " * "), " = ", real) : absl::StrCat(real);
    fail("its real dimensions have ", product, " ranks, want the world's ", rank.world_size());
  }
}

}  // namespace

DeviceMesh init_mixed_mesh(RankContext& rank, const std::vector<DeviceMesh::MixedDim>& dims,
                           const DeviceMesh::MixedOptions& options, CodeSite code) {
  check(rank, dims, code);
  std::vector<int> shape, real_shape;
  std::vector<std::string> names, real_names;
  int rest = rank.world_size();  // of the world's ranks, along the real dimensions still to come
  int place = 0;                 // in the whole mesh
  for (const DeviceMesh::MixedDim& dim : dims) {
    shape.push_back(dim.size);
    names.push_back(dim.name);
    int coordinate = dim.coordinate;
    if (is_real(dim)) {
      real_shape.push_back(dim.size);
      real_names.push_back(dim.name);
      rest /= dim.size;
      coordinate = rank.rank() / rest % dim.size;
    }
    place = place * dim.size + coordinate;
  }
  int64_t whole = 1;
  for (const int size : shape) whole *= size;
  const auto base = make_fake_process_group({.rank = place, .world_size = whole, .options = options.fake}, code);
  DeviceMesh mesh = init_device_mesh(base, shape, names, {}, code);
  if (real_shape.empty()) return mesh;
  const DeviceMesh real = init_device_mesh(rank, real_shape, real_names, options.real, code);
  for (size_t dim = 0, next = 0; dim < dims.size(); ++dim) {
    if (is_real(dims[dim])) mesh.groups_[dim] = real.groups_[next++];
  }
  return mesh;
}

}  // namespace rankloom
