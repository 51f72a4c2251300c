#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "bridge/torch/device_streams.h"
#include "rankloom/rankloom.h"

namespace rankloom::bridge {

// The tensors of one call: held until it is done, by the core's call and by torch's work. A tensor passes without a
// copy if it is contiguous and on the CPU, or on a device that calls reach; another is copied aside, and back when the
// call is done.
class HeldTensors {
 public:
  // Writes what was copied aside back to where it belongs. The first call only; safe from any thread. On a device:
  // behind what is queued in the calling thread's stream, which waits for the call, or the call is done; streams that
  // come later wait for that.
  void copy_back();
  // The device on which the call uses all its tensors; null: memory of the host, or there are no tensors.
  std::optional<at::Device> device() const { return device_; }
  const DeviceUses& device_uses() const { return device_uses_; }
  // Whether memory of the host has to be written when the call is done.
  bool copies_on_host() const { return copies_on_host_; }
  // Torch's counters of writes in place are to tell of the outputs once the call is done, as they do where gloo copies
  // a result into them: a backward pass that needs what was there before is refused.
  void count_writes(int times) { counted_writes_ = times; }
  // One for several, of which some may be null.
  static std::shared_ptr<HeldTensors> of(std::vector<std::shared_ptr<HeldTensors>> parts);

  // For written_early(): the call that is made at `code` goes on behind the program's back.
  void note_versions(CodeSite code);
  struct EarlyWrite {
    CodeSite code;  // of the call
    bool to_input;
  };
  // A tensor to which the program has written in place since, as torch's counters of such writes tell; null: none, as
  // far as they can tell. Views of a memory share a counter: they tell of a tensor on the CPU that is all of its
  // memory. Not of memory that is copied aside, nor of a tensor that is another by now.
  std::optional<EarlyWrite> written_early() const;

 private:
  friend class Buffers;
  struct Noted {
    const void* data;  // null: nothing is known
    int64_t dim;
    uint32_t version;
  };
  static Noted noted(const at::Tensor& tensor);
  c10::SmallVector<bool, 8> is_input_;  // [tensor]
  c10::SmallVector<Noted, 1> noted_;    // [tensor]; empty: nobody asked
  CodeSite noted_at_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aside_;  // the caller's, ours
  std::vector<c10::Event> copied_at_;                     // by device; written by the first copy_back()
  std::vector<std::shared_ptr<HeldTensors>> parts_;
  std::optional<at::Device> device_;
  DeviceUses device_uses_;
  bool copies_on_host_ = false;
  int counted_writes_ = 0;  // of each output
  std::once_flag copied_;
};

// Makes views of tensors. Errors: c10::Error for a tensor that no collective can move.
class Buffers {
 public:
  enum class Data {
    kReal,    // tensors have data, and are held
    kNone,    // data is not looked at, and nothing held
    kIfReal,  // data is looked at where there is any; fake and meta tensors are passed as such
  };
  // `op`: for error texts. `moves_only`: any dtype is well, by its size. `who`: in the text for a call that mixes
  // tensors with and without data, which is refused if this is not null.
  Buffers(const char* op, bool moves_only, Data data, const std::string* who = nullptr)
      : op_(op),
        moves_only_(moves_only),
        data_(data),
        who_(who),
        held_(data == Data::kNone ? nullptr : std::make_shared<HeldTensors>()) {}

  TensorView in(const at::Tensor& tensor) { return view(tensor, Use::kRead); }
  TensorView out(const at::Tensor& tensor) { return view(tensor, Use::kWritten); }
  std::vector<TensorView> ins(at::ArrayRef<at::Tensor> tensors);
  // Outputs that share memory are written one after the other, in this order, when the call is done.
  std::vector<TensorView> outs(at::ArrayRef<at::Tensor> tensors);
  // One output whose result each of `tensors` gets: the reduction of them all, which the call goes on with.
  TensorView reduced(at::ArrayRef<at::Tensor> tensors, const c10d::ReduceOp& op);
  // tensors[root] as the output; the others get its result.
  TensorView copied(at::ArrayRef<at::Tensor> tensors, size_t root);

  // Null for Data::kNone.
  const std::shared_ptr<HeldTensors>& held() const { return held_; }
  // Whether the call has floating-point tensors with data; known where `who` was given.
  bool has_real_numbers() const { return has_real_numbers_; }
  const char* op() const { return op_; }

 private:
  enum class Use { kRead, kWritten, kWrittenAside };
  // Whether the call uses such a tensor where it is, if its elements lie one after the other.
  bool reaches(const at::Tensor& tensor) const;
  // A contiguous tensor like this one, that the call reaches.
  at::Tensor aside(const at::Tensor& tensor) const;
  void write_back(const at::Tensor& theirs, const at::Tensor& ours);
  TensorView view(const at::Tensor& tensor, Use use);
  TensorView view_of(const at::Tensor& used, DType dtype, Use use);
  DType check(const at::Tensor& tensor);
  void check_kind(const at::Tensor& tensor);
  bool is_fake(const at::Tensor& tensor) const;
  void check_alike(at::ArrayRef<at::Tensor> tensors) const;

  const char* const op_;
  const bool moves_only_;
  const Data data_;
  const std::string* const who_;
  bool has_real_ = false;
  bool has_fake_ = false;
  bool has_real_numbers_ = false;
  const std::shared_ptr<HeldTensors> held_;
  std::optional<at::Device> first_;
};

// Errors: c10::Error for an operation that is none.
ReduceOp reduce_op(const c10d::ReduceOp& op);

}  // namespace rankloom::bridge
