#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "bridge/torch/buffers.h"
#include "bridge/torch/compat.h"
#include "bridge/torch/job.h"
#include "bridge/torch/torch_record.h"
#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// A group of ours as a backend of c10d. One class for the threaded and the fake group: the difference is below, in the
// core's own group, but for the outputs of a fake one, which are filled as PyTorch's fake group fills them.
class TorchBackend final : public c10d::Backend {
 public:
  // `job` is null for a fake group. `owns_rank`: shutdown() ends the calling rank's part in the job. `record`: of a
  // group that record->make_group() made; null for others.
  TorchBackend(std::shared_ptr<Job> job, std::shared_ptr<ProcessGroup> group, std::string name,
               c10::intrusive_ptr<Options> options, bool owns_rank, std::shared_ptr<TorchRecord> record = nullptr);
  ~TorchBackend() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setGroupUid(const std::string& uid) override;
  bool supportsSplitting() const override { return true; }
  // Calls do not wait, so those between start and end are issued as they come; the end is a work over all of them. Said
  // to torch, which then gives one work for a batch of messages; gloo gives one for each.
  bool supportsCoalescing() const override { return name_ != "gloo"; }
  bool supportsTimeEstimation() const override { return false; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return static_cast<uint64_t>(group_->sequence_number()); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  void waitForPendingWorks() override {}
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;

  // A further group over the same ranks, for the checks of TORCH_DISTRIBUTED_DEBUG=DETAIL.
  c10::intrusive_ptr<c10d::Backend> checker();

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> RANKLOOM_C10D_ALL_GATHER_SINGLE(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> RANKLOOM_C10D_ALL_GATHER_SINGLE_COALESCED(std::vector<at::Tensor>& outputs,
                                                                           std::vector<at::Tensor>& inputs,
                                                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> RANKLOOM_C10D_REDUCE_SCATTER_SINGLE(at::Tensor& output, at::Tensor& input,
                                                                     const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> RANKLOOM_C10D_REDUCE_SCATTER_SINGLE_COALESCED(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> RANKLOOM_C10D_ALL_TO_ALL_SINGLE(at::Tensor& output, at::Tensor& input,
                                                                 std::vector<int64_t>& output_splits,
                                                                 std::vector<int64_t>& input_splits,
                                                                 const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  struct Asked;
  // One call or several of the core, as one work; null for calls that were to be waited for, which torch.distributed
  // takes for just that. `body(options, code)` issues one and may be called again for the next.
  template <typename Body>
  c10::intrusive_ptr<c10d::Work> issue(c10d::OpType type, const Buffers& buffers, Asked asked,
                                       at::ArrayRef<at::Tensor> results, int times, const Body& body,
                                       std::vector<size_t> lists = {});
  template <typename Body>
  void issue_real(const Buffers& buffers, const Asked& asked, int times, const Body& body,
                  std::vector<rankloom::Work>& works);
  // Of a fake world's group: the calls are recorded, and its works wait in virtual time.
  template <typename Body>
  void issue_recorded(const Buffers& buffers, bool waits, int times, const Body& body,
                      std::vector<rankloom::Work>& works);
  Buffers buffers(const char* op, bool moves_only) const;
  // Whether the outputs of a fake group's call are filled here, as PyTorch's fake group fills them. Tensors without
  // data have nothing to fill.
  bool passes_through(const at::Tensor& output) const;
  bool passes_through(const std::vector<at::Tensor>& outputs) const {
    return !outputs.empty() && passes_through(outputs[0]);
  }
  void check_root(const char* op, int64_t root) const;
  c10::intrusive_ptr<c10d::Work> gather_all(const std::vector<std::vector<at::Tensor>>& outputs,
                                            const std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts);
  // Of tensors on the CPU in a group that was asked for as gloo, which compares shapes where others compare numbers of
  // elements: each of `tensors` is like `one`.
  void check_like_gloo(const char* op, at::ArrayRef<at::Tensor> tensors, const at::Tensor& one) const;
  // The same of the ranks' parts of `whole`, which lie behind each other along the first dimension.
  void check_parts_like_gloo(const char* op, const at::Tensor& whole, const at::Tensor& part) const;
  void check_contiguous_like_gloo(const char* op, const char* what, const at::Tensor& tensor) const;
  // Writes to each output that gloo counts in the call: copies of its result, and of what it has copied aside.
  void count_writes_like_gloo(const Buffers& buffers, int times = 1) const;
  // The one tensor of a list, with an error that counts them.
  const at::Tensor& only(const char* op, const char* what, const std::vector<at::Tensor>& tensors) const;

  // Runs what comes to scheduling points: the random state is this rank's after them, and errors are PyTorch's.
  template <typename Body>
  void at_point(CodeSite code, const Body& body);

  const std::shared_ptr<Job> job_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::string name_;
  const c10::intrusive_ptr<Options> options_;
  const bool owns_rank_;
  const bool fake_;
  const std::shared_ptr<TorchRecord> record_;
  const std::string who_;  // of a group with a record: "rank 5, group tp"

  struct Coalesced;
  std::mutex mu_;
  int64_t monitored_ = 0;                 // monitored barriers so far
  std::unique_ptr<Coalesced> coalesced_;  // guarded by mu_; null: not between start and end
  std::atomic<bool> coalesces_ = false;   // whether it is there, so that most calls take no lock
};

}  // namespace rankloom::bridge
