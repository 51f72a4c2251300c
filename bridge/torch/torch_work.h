#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "bridge/torch/buffers.h"
#include "bridge/torch/job.h"
#include "bridge/torch/python_frames.h"
#include "bridge/torch/torch_record.h"
#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// Works of the core as one of c10d's. It holds the tensors and the job. Without works, it is done; then `held` may be
// null.
class TorchWork final : public c10d::Work {
 public:
  // `rank`: in the world; `job` may be null (a fake group). `results`: what result() and futures give. `lists`: futures
  // give one tensor for so many of them each, stacked, as those of NCCL's all_gather do and as DDP's hooks expect.
  // `record`: that the works belong to, and that is told of waits; may be null.
  TorchWork(std::shared_ptr<Job> job, int rank, c10d::OpType type, std::vector<rankloom::Work> works,
            std::shared_ptr<HeldTensors> held, at::ArrayRef<at::Tensor> results, std::vector<size_t> lists = {},
            std::shared_ptr<TorchRecord> record = nullptr)
      : c10d::Work(rank, type),
        job_(std::move(job)),
        works_(std::move(works)),
        held_(std::move(held)),
        results_(results.begin(), results.end()),
        lists_(std::move(lists)),
        record_(std::move(record)) {}
  ~TorchWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // The calling thread goes on, and only its stream waits, where TorchStreams may be blocked; else as wait().
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override { return 0; }
  uint64_t getSequencenumber() const override;

  // The work is of a fake group, which was done when it was made: no method waits, or takes a lock under which another
  // thread would want the interpreter's.
  bool is_fake() const { return job_ == nullptr; }

  // Waits as wait() does; how the calls ended is in their future. For a rank that waits for it.
  void settle();
  // Tells an explored run that the calling task looks at the futures that were given out.
  void look_at_futures() const;
  // Of a callback that is about to wait for a future of this work: a later one of the group need not wait for the
  // callback's end, as it does otherwise.
  void let_pass() const;

 private:
  struct Pending;
  void await(std::chrono::milliseconds timeout);
  // Throws DistError if the program has written to the calls' tensors before they are complete: so is a part of what
  // the others get, or the write is lost.
  void check_unwritten() const;
  // Makes all that is queued in the calling thread's stream of `device` from now on wait for the works. False: the
  // thread has to wait itself.
  bool block_stream(std::optional<at::Device> device);
  // As wait(), by block_stream() if that can be.
  void await_on(std::optional<at::Device> device, std::chrono::milliseconds timeout);
  bool done() const;
  // Of one that is done(): without error.
  bool ended_well() const;
  c10::intrusive_ptr<c10::ivalue::Future> future(bool of_result);
  // Waits for the calls unless the future may be complete later than it is given out.
  void come_later_or_settle(const std::shared_ptr<Pending>& pending);
  std::vector<std::shared_ptr<Pending>> given_out() const;  // futures that come later
  bool futures_over() const;
  void await_futures();
  bool joins_order(const std::shared_ptr<Pending>& pending);
  std::weak_ptr<void>* last_of_group() const;

  const std::shared_ptr<Job> job_;
  std::vector<rankloom::Work> works_;
  const std::shared_ptr<HeldTensors> held_;
  const c10::SmallVector<at::Tensor, 1> results_;  // one, mostly: no memory of its own
  const std::vector<size_t> lists_;
  const std::shared_ptr<TorchRecord> record_;
  mutable std::mutex future_mu_;
  c10::intrusive_ptr<c10::ivalue::Future> futures_[2];  // of the tensors, of the outcome
  std::vector<std::shared_ptr<Pending>> pending_;       // under a schedule: of futures that came later
};

// Lets go of handles on calls of the job (null: of none), where others may get their turn: the random state is that of
// the calling thread's rank again.
void let_go(Job* job, std::vector<rankloom::Work> works) noexcept;

// Python's reference to a work. As c10d's own it lets go of the interpreter lock where the last reference goes, but for
// works of fake groups, for which that would cost more than they do.
template <typename T>
class WorkHolder {
 public:
  WorkHolder() = default;
  explicit WorkHolder(T* work) : work_(c10::intrusive_ptr<T>::unsafe_steal_from_new(work)) {}
  WorkHolder(const WorkHolder&) = default;
  WorkHolder(WorkHolder&&) noexcept = default;
  WorkHolder& operator=(const WorkHolder&) = default;
  WorkHolder& operator=(WorkHolder&&) noexcept = default;
  ~WorkHolder() {
    if (!work_.defined() || work_->is_fake()) return;
    const GilRelease no_gil;
    work_.reset();
  }
  T* get() const { return work_.get(); }

 private:
  c10::intrusive_ptr<T> work_;
};

}  // namespace rankloom::bridge
