#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rankloom/process_group.h"

namespace rankloom {

// The ranks of a group as a grid with named dimensions, and a group along each: a rank's group along "tp" holds the
// ranks that differ from it in that coordinate only. A value; one rank's view of the grid.
// Errors: InvalidArgument that names the mesh and what it has.
class DeviceMesh {
 public:
  // One dimension of a mesh that is real in some dimensions and fake in others.
  struct MixedDim {
    std::string name;
    int size = 1;
    GroupOptions::Backend backend = GroupOptions::Backend::kThreaded;
    int coordinate = 0;  // of a fake dimension: where the ranks of this world stand in it
  };

  struct MixedOptions {
    GroupOptions real = {};  // of the groups along real dimensions
    FakeOptions fake = {};   // of the others, and of the mesh's base
  };

  // A name in brackets, with the line of the brackets: an operator has no second argument.
  struct DimName {
    template <typename Text>
    requires std::is_convertible_v<const Text&, std::string_view> DimName(const Text& name,
                                                                          CodeSite site = CodeSite::here())
        : text(name), code(site) {}  // NOLINT: implicit
    std::string_view text;
    CodeSite code;
  };

  // Copied where others are moved, so that none is left without its groups.
  DeviceMesh(const DeviceMesh&) = default;
  DeviceMesh& operator=(const DeviceMesh&) = default;

  int ndim() const { return static_cast<int>(shape_.size()); }
  const std::vector<int>& shape() const { return shape_; }
  const std::vector<std::string>& dim_names() const { return dim_names_; }  // empty: they have none
  int size() const;                                                         // of all dimensions
  int size(int dim, CodeSite code = CodeSite::here()) const;
  int size(std::string_view name, CodeSite code = CodeSite::here()) const { return size(dim_of(name, code), code); }

  // This rank's place in each dimension.
  const std::vector<int>& get_coordinate() const { return coordinate_; }
  int get_local_rank(int dim, CodeSite code = CodeSite::here()) const;
  int get_local_rank(std::string_view name, CodeSite code = CodeSite::here()) const {
    return get_local_rank(dim_of(name, code), code);
  }

  // This rank's group along a dimension; without one, of a mesh that has one dimension.
  const std::shared_ptr<ProcessGroup>& get_group(int dim, CodeSite code = CodeSite::here()) const;
  const std::shared_ptr<ProcessGroup>& get_group(std::string_view name, CodeSite code = CodeSite::here()) const {
    return get_group(dim_of(name, code), code);
  }
  const std::shared_ptr<ProcessGroup>& get_group(CodeSite code = CodeSite::here()) const;

  // The part of the mesh through this rank along one dimension, or several in the mesh's own order. Shares its groups.
  DeviceMesh operator[](const DimName& name) const { return slice({std::string(name.text)}, name.code); }
  DeviceMesh slice(const std::vector<std::string>& names, CodeSite code = CodeSite::here()) const;

  // The group that the whole mesh was made of.
  const std::shared_ptr<ProcessGroup>& base() const { return base_; }
  // "mesh [2, 4] (dp, tp)".
  std::string text() const;

 private:
  friend DeviceMesh init_device_mesh(const std::shared_ptr<ProcessGroup>& base, const std::vector<int>& shape,
                                     const std::vector<std::string>& dim_names, const GroupOptions& options,
                                     CodeSite code);
  friend DeviceMesh init_mixed_mesh(RankContext& rank, const std::vector<DeviceMesh::MixedDim>& dims,
                                    const DeviceMesh::MixedOptions& options, CodeSite code);
  DeviceMesh() = default;
  int dim_of(std::string_view name, CodeSite code) const;
  int checked(int dim, CodeSite code) const;
  [[noreturn]] void fail(std::string_view text, CodeSite code) const;

  std::shared_ptr<ProcessGroup> base_;
  std::vector<int> shape_;
  std::vector<std::string> dim_names_;
  std::vector<int> coordinate_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;  // [dim]
};

// A mesh over the ranks of `base`, in row-major order: the last dimension varies fastest. Collective, and waits for the
// other members; they give the same shape and names, or all get a Mismatch. All groups are made in one step.
// Shape: its product is the size of `base`. Names: none, or one for each dimension.
DeviceMesh init_device_mesh(const std::shared_ptr<ProcessGroup>& base, const std::vector<int>& shape,
                            const std::vector<std::string>& dim_names = {}, const GroupOptions& options = {},
                            CodeSite code = CodeSite::here());

// The same over a group of all ranks, which it makes with `options`.
DeviceMesh init_device_mesh(RankContext& rank, const std::vector<int>& shape,
                            const std::vector<std::string>& dim_names = {}, const GroupOptions& options = {},
                            CodeSite code = CodeSite::here());

class RankContext;

// A mesh of more ranks than the world has: those of the world are one slice of it, along the real dimensions, and
// collectives there move data; along the others each rank has fake groups. So 8 threads can run the tensor-parallel
// part of a job of 4,096 ranks. Collective: every rank of the world calls it, and gives the same dimensions.
// Ranks: the world's are numbered in row-major order over the real dimensions. base() is a fake group of the whole
// mesh; it and the fake groups know this rank by its place there, real groups by that in the world.
// Errors: InvalidArgument where the real dimensions do not multiply to the size of the world, for a coordinate outside
//   its dimension, and as init_device_mesh().
DeviceMesh init_mixed_mesh(RankContext& rank, const std::vector<DeviceMesh::MixedDim>& dims,
                           const DeviceMesh::MixedOptions& options = {}, CodeSite code = CodeSite::here());

}  // namespace rankloom
