#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "rankloom/process_group.h"

namespace rankloom {

namespace internal {
class FakeGroup;
}  // namespace internal

// One member of a group whose other members are not there: checks every call by the rules of the real groups, moves no
// data and waits for nobody, so that a world of any size costs what one rank costs. For traces, for estimates, and for
// tests of what a program calls. Works of its calls are done at once. make_fake_process_group() and
// init_process_group() make one.
//
//   auto pg = make_fake_process_group({.rank = 5, .world_size = 16384});
//   DeviceMesh mesh = init_device_mesh(pg, {2048, 8}, {"dp", "tp"});
//   mesh.get_group("tp")->all_reduce(TensorView::meta({8192, 8192}, DType::kBFloat16)).wait();
//   pg->set_rank(6);
//   pg->barrier().wait();
//
// Not checked: whether the other members would make the same call. A real group compares.
// Thread-safety and errors: those of ProcessGroup; CollectiveError for a call that FakeOptions refuses.
class FakeProcessGroup : public ProcessGroup {
 public:
  // Of a fake group without a world: which member, of how many.
  struct Member {
    int64_t rank = 0;
    int64_t world_size = 1;
    FakeOptions options = {};
  };

  virtual const FakeOptions& options() const = 0;
  // From here on, this is the group of its member `rank`: one handle can trace what each rank would do. Groups that
  // were made from it stay those of the member that made them.
  // Errors: InvalidArgument for a rank outside the group, in a world (where a rank is a thread's), and if the record
  // has calls or further groups already.
  virtual void set_rank(int rank, CodeSite code = CodeSite::here()) = 0;

 private:
  friend class internal::FakeGroup;
  // Written out: nvcc 13.0 ends with an internal error where constructors with such a default are inherited.
  FakeProcessGroup(RankContext& rank, std::shared_ptr<const Group> group, CodeSite code = CodeSite::here())
      : ProcessGroup(rank, std::move(group), code) {}
  FakeProcessGroup(std::shared_ptr<const Group> group, int rank, CodeSite code = CodeSite::here())
      : ProcessGroup(std::move(group), rank, code) {}
};

// Without any world or store: one member of a group of all ranks, named "0".
// Errors: InvalidArgument for a world_size below 1 or above 2^31 - 1, and for a rank outside the world.
std::shared_ptr<FakeProcessGroup> make_fake_process_group(const FakeProcessGroup::Member& options,
                                                          CodeSite code = CodeSite::here());

}  // namespace rankloom
