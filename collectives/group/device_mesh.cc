#include "rankloom/device_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group/group_front.h"
#include "collectives/ops/group_request.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/printable.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

// "mesh [2, 4] (dp, tp)". A name that could be taken for two is in quotes: members agree on this text.
std::string mesh_text(const std::vector<int>& shape, const std::vector<std::string>& names) {
  const auto one = [](std::string* out, const std::string& name) {
    absl::StrAppend(out, absl::StrContains(name, ", ") || name.starts_with('"') ? json_string(name) : name);
  };
  return absl::StrCat("mesh [", absl::StrJoin(shape, ", "), "]",
                      names.empty() ? "" : absl::StrCat(" (", absl::StrJoin(names, ", ", one), ")"));
}

[[noreturn]] void fail_mesh(int rank, const std::string& mesh, std::string_view text, CodeSite code) {
  refuse({.rank = rank, .group = {}, .op = "device_mesh"}, ErrorKind::kInvalidArgument, "rank ", rank, ", ", mesh, ": ",
         sv(text), site_place(Site{.code = code}));
}

constexpr int64_t kTooMany = int64_t{1} << 31;  // more ranks are not counted

// The mistake in a mesh of `size` ranks; empty: none.
std::string mistake(const std::vector<int>& shape, const std::vector<std::string>& names, int size) {
  if (shape.empty()) return "it has no dimensions, want at least one";
  int64_t product = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 1) return absl::StrCat("dimension ", dim, " has size ", shape[dim], ", want at least 1");
    product = std::min<int64_t>(product * shape[dim], kTooMany);
  }
  if (product != size) {
    const std::string total = product < kTooMany ? absl::StrCat(" = ", product) : " >= 2^31";
    const std::string want =
        shape.size() > 1 ? absl::StrCat(absl::StrJoin(shape, " * "), total) : absl::StrCat(product);
    return absl::StrCat("it has ", want, " ranks, want the group's ", size);
  }
  if (names.empty()) return "";
  if (names.size() != shape.size()) {
    return absl::StrCat("it has ", names.size(), names.size() == 1 ? " name" : " names",
                        ", want none or one for each of ", shape.size(), " dimensions");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) return absl::StrCat("the name of dimension ", i, " is empty");
    if (std::find(names.begin(), names.begin() + static_cast<int64_t>(i), names[i]) !=
        names.begin() + static_cast<int64_t>(i)) {
      return absl::StrCat("the name ", names[i], " is given twice, want each once");
    }
  }
  return "";
}

}  // namespace

std::string DeviceMesh::text() const { return mesh_text(shape_, dim_names_); }

void DeviceMesh::fail(std::string_view text, CodeSite code) const {
  fail_mesh(base_->global_rank(), this->text(), text, code);
}

int DeviceMesh::checked(int dim, CodeSite code) const {
  if (dim < 0 || dim >= ndim()) fail(absl::StrCat("dimension is ", dim, ", want 0 <= dimension < ", ndim()), code);
  return dim;
}

int DeviceMesh::dim_of(std::string_view name, CodeSite code) const {
  const auto at = std::find(dim_names_.begin(), dim_names_.end(), name);
  if (at == dim_names_.end()) {
    fail(dim_names_.empty()
             ? absl::StrCat("its dimensions have no names, one was asked for as ", sv(name))
             : absl::StrCat("it has no dimension ", sv(name), ", want one of ", absl::StrJoin(dim_names_, ", ")),
         code);
  }
  return static_cast<int>(at - dim_names_.begin());
}

int DeviceMesh::size() const {
  int product = 1;
  for (const int size : shape_) product *= size;
  return product;
}

int DeviceMesh::size(int dim, CodeSite code) const { return shape_[static_cast<size_t>(checked(dim, code))]; }
int DeviceMesh::get_local_rank(int dim, CodeSite code) const {
  return coordinate_[static_cast<size_t>(checked(dim, code))];
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::get_group(int dim, CodeSite code) const {
  return groups_[static_cast<size_t>(checked(dim, code))];
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::get_group(CodeSite code) const {
  if (ndim() != 1)
    fail(absl::StrCat("it has ", ndim(), " dimensions, want get_group(dimension) or get_group(name)"), code);
  return groups_[0];
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names, CodeSite code) const {
  if (names.empty()) fail("slice: there are no names, want at least one", code);
  DeviceMesh part;
  part.base_ = base_;
  int last = -1;
  for (const std::string& name : names) {
    const int dim = dim_of(name, code);
    if (dim <= last)
      fail(absl::StrCat("slice: the names are ", absl::StrJoin(names, ", "),
                        ", want each once and in the order of the mesh"),
           code);
    last = dim;
    const auto i = static_cast<size_t>(dim);
    part.shape_.push_back(shape_[i]);
    part.dim_names_.push_back(name);
    part.coordinate_.push_back(coordinate_[i]);
    part.groups_.push_back(groups_[i]);
  }
  return part;
}

DeviceMesh init_device_mesh(const std::shared_ptr<ProcessGroup>& base, const std::vector<int>& shape,
                            const std::vector<std::string>& dim_names, const GroupOptions& options, CodeSite code) {
  if (base == nullptr) fail_mesh(-1, mesh_text(shape, dim_names), "its group is null, want one", code);
  DeviceMesh mesh;
  mesh.base_ = base;
  mesh.shape_ = shape;
  mesh.dim_names_ = dim_names;
  if (const std::string wrong = mistake(shape, dim_names, base->size()); !wrong.empty())
    fail_mesh(base->global_rank(), mesh.text(), wrong, code);
  internal::GroupFront& front = internal::GroupFront::of(*base);
  const CallScope scope = front.enter("init_device_mesh", code);
  GroupRequest request = front.request_of("init_device_mesh", options, code);
  request.kind = GroupRequest::Kind::kMesh;
  request.shape = shape;
  request.dim_names = dim_names;
  front.agree_on(OpType::kNewGroup, &request, options, mesh.text(), code);
  int below = mesh.size();
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    below /= shape[dim];
    mesh.coordinate_.push_back(base->rank() / below % shape[dim]);
    GroupOptions along = options;
    along.description = request.made[dim]->description();
    mesh.groups_.push_back(front.make_child(request.made[dim], along, code));
  }
  return mesh;
}

DeviceMesh init_device_mesh(RankContext& rank, const std::vector<int>& shape, const std::vector<std::string>& dim_names,
                            const GroupOptions& options, CodeSite code) {
  if (const std::string wrong = mistake(shape, dim_names, rank.world_size()); !wrong.empty())
    fail_mesh(rank.rank(), mesh_text(shape, dim_names), wrong, code);
  return init_device_mesh(init_process_group(rank, options, code), shape, dim_names, options, code);
}

}  // namespace rankloom
