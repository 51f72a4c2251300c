#include "bridge/torch/torch_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bridge/torch/device_streams.h"
#include "bridge/torch/python_frames.h"
#include "bridge/torch/torch_future.h"
#include "bridge/torch/torch_work.h"
#include "rankloom/fake.h"
#include "sim/base/dist_error.h"
#include "sim/schedule/step_record.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

// The output of a fake group that passes its input on. One of another shape is left as it is.
void pass_on(const at::Tensor& input, const at::Tensor& output) {
  if (at::is_expandable_to(input.sizes(), output.sizes())) output.copy_(input);
}

// Each member's part of an output that is `size` times the input: by elements, since their shapes may differ.
void fill_parts(const at::Tensor& output, const at::Tensor& input, int64_t size) {
  if (output.numel() == 0) return;
  const at::Tensor parts =
      output.is_contiguous() ? output.view({size, -1}) : at::empty({size, input.numel()}, output.options());
  const at::Tensor given = input.reshape({-1});  // may be one of the parts
  for (int64_t i = 0; i < size; ++i) parts.select(0, i).copy_(given);
  if (!output.is_contiguous()) output.copy_(parts.view(output.sizes()));
}

// The member's own part of an input that is `size` times the output.
void fill_with_part(const at::Tensor& output, const at::Tensor& input, int64_t size, int64_t member) {
  if (output.numel() > 0) output.copy_(input.reshape({size, -1}).select(0, member).view(output.sizes()));
}

std::vector<at::Tensor> flat(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// "tp" of a group that is described as "mesh_tp"; else its name.
std::string label_of(const ProcessGroup& group) {
  const std::string description = group.description();
  return absl::StartsWith(description, "mesh_") ? description.substr(5) : group.group_name();
}

}  // namespace

TorchBackend::TorchBackend(std::shared_ptr<Job> job, std::shared_ptr<ProcessGroup> group, std::string name,
                           c10::intrusive_ptr<Options> options, bool owns_rank, std::shared_ptr<TorchRecord> record)
    : c10d::Backend(group->rank(), group->size()),
      job_(std::move(job)),
      group_(std::move(group)),
      name_(std::move(name)),
      options_(std::move(options)),
      owns_rank_(owns_rank),
      fake_(job_ == nullptr),
      record_(std::move(record)),
      who_(record_ != nullptr ? absl::StrCat("rank ", group_->global_rank(), ", group ", label_of(*group_)) : "") {
  if (job_ != nullptr) prepare_device();  // most programs have blocked no stream yet
}

TorchBackend::~TorchBackend() = default;

// The wishes of a call beside its tensors.
struct TorchBackend::Asked {
  Asked() = default;
  template <typename Options>
  explicit Asked(const Options& options) : timeout(options.timeout), waits(!options.asyncOp) {}
  std::chrono::milliseconds timeout{0};
  bool waits = false;  // the call is to be done when it returns: no work is wanted
};

struct TorchBackend::Coalesced {
  explicit Coalesced(std::shared_ptr<Job> of) : job(std::move(of)) {}
  ~Coalesced() { let_go(job.get(), std::move(works)); }
  Coalesced(const Coalesced&) = delete;
  Coalesced& operator=(const Coalesced&) = delete;
  const std::shared_ptr<Job> job;
  std::vector<rankloom::Work> works;
  std::vector<std::shared_ptr<HeldTensors>> held;
  std::vector<at::Tensor> results;
};

void TorchBackend::startCoalescing() {
  // One that an exception left behind goes without the lock.
  auto other = std::make_unique<Coalesced>(job_);
  const std::lock_guard<std::mutex> lock(mu_);
  coalesced_.swap(other);
  coalesces_ = true;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::endCoalescing() {
  std::unique_ptr<Coalesced> all;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    all = std::move(coalesced_);
    coalesces_ = false;
  }
  TORCH_CHECK(all != nullptr, "end of coalescing without its start");
  return c10::make_intrusive<TorchWork>(job_, group_->global_rank(), c10d::OpType::COALESCED, std::move(all->works),
                                        HeldTensors::of(std::move(all->held)), all->results, std::vector<size_t>(),
                                        record_);
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<Options>(name_, opts != nullptr ? opts->timeout : options_->timeout);
  if (opts != nullptr) {
    options->group_name = opts->group_name;
    options->group_desc = opts->group_desc;
  }
  std::vector<int> global;
  for (const int rank : ranks) {
    TORCH_CHECK(rank >= 0 && rank < size_, "split: rank ", rank, " of a group of ", size_, ", want 0 <= rank < size");
    global.push_back(group_->global_rank(rank));
    // As torch counts them, in the default group.
    const std::vector<uint64_t>& whole = options_->global_ranks_in_group;
    const auto index = static_cast<uint64_t>(rank);
    options->global_ranks_in_group.push_back(whole.empty() ? index : whole[index]);
  }
  std::shared_ptr<ProcessGroup> group;
  if (record_ != nullptr) {
    try {
      group = record_->make_group(static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
                                  options->group_name, options->group_desc, global, false, python_site());
    } catch (const DistError& error) {
      throw_to_torch(error, nullptr, python_site());
    }
  } else if (fake_) {
    group = make_fake_process_group({.rank = mine - ranks.begin(),
                                     .world_size = static_cast<int64_t>(ranks.size()),
                                     .options = dynamic_cast<const FakeProcessGroup&>(*group_).options()},
                                    python_site());
  } else {
    const GilRelease no_gil;
    group = job_->make_group(group_->global_rank(), options->group_name, std::move(global));
  }
  group->set_timeout(absl::FromChrono(options->timeout), python_site());
  return c10::make_intrusive<TorchBackend>(job_, group, name_, std::move(options), false, record_);
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::checker() {
  auto options = c10::make_intrusive<Options>(name_, options_->timeout);
  options->group_name = options_->group_name + " (checks)";
  std::shared_ptr<ProcessGroup> group;
  if (fake_) {
    group = make_fake_process_group({.rank = rank_, .world_size = size_}, python_site());
  } else {
    const GilRelease no_gil;
    std::vector<int> global;
    for (int rank = 0; rank < size_; ++rank) global.push_back(group_->global_rank(rank));
    group = job_->make_group(group_->global_rank(), options->group_name, std::move(global));
    group->set_timeout(absl::FromChrono(options->timeout), python_site());
  }
  return c10::make_intrusive<TorchBackend>(job_, group, name_, std::move(options), false);
}

void TorchBackend::setTimeout(std::chrono::milliseconds timeout) {
  const GilRelease no_gil;
  const CodeSite code = python_site();
  try {
    group_->set_timeout(absl::FromChrono(timeout), code);
  } catch (const DistError& error) {
    throw_to_torch(error, job_.get(), code);
  }
  options_->timeout = timeout;
}

void TorchBackend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  group_->set_group_name(uid);
}

c10d::ErrorType TorchBackend::getError() {
  return job_ != nullptr && job_->world().scheduler().aborted() ? c10d::ErrorType::COMM_ERROR
                                                                : c10d::ErrorType::SUCCESS;
}

template <typename Body>
void TorchBackend::at_point(CodeSite code, const Body& body) {
  try {
    body();
  } catch (...) {
    rethrow_to_torch(job_.get(), group_->global_rank(), code);
  }
  if (job_ != nullptr) job_->after_point(group_->global_rank());
}

void TorchBackend::abort() {
  const GilRelease no_gil;
  const CodeSite code = python_site();
  at_point(code, [&] { group_->abort("abort() was called", code); });
}

void TorchBackend::shutdown() {
  const CodeSite code = callers_site();  // none where we end a rank: calls that are waited for tell their own lines
  const GilRelease no_gil;
  at_point(code, [&] { group_->shutdown(code); });
  if (!owns_rank_) return;
  int rank = -1;
  if (Job::current(&rank) == job_ && rank == group_->global_rank()) Job::detach("");
}

const at::Tensor& TorchBackend::only(const char* op, const char* what, const std::vector<at::Tensor>& tensors) const {
  TORCH_CHECK(tensors.size() == 1, "rank ", group_->global_rank(), ", ", op, ": have ", tensors.size(), " ", what,
              " tensors, want 1");
  return tensors[0];
}

Buffers TorchBackend::buffers(const char* op, bool moves_only) const {
  if (record_ == nullptr) return {op, moves_only, fake_ ? Buffers::Data::kNone : Buffers::Data::kReal};
  const bool written = record_->outputs() == FakeOptions::Outputs::kUniformRanks;
  return {op, moves_only, written ? Buffers::Data::kIfReal : Buffers::Data::kNone, &who_};
}

bool TorchBackend::passes_through(const at::Tensor& output) const {
  if (!fake_) return false;
  if (record_ == nullptr) return true;
  return record_->outputs() == FakeOptions::Outputs::kPassThrough && !output.is_meta() &&
         !output.key_set().has(c10::DispatchKey::Python);
}

template <typename Body>
void TorchBackend::issue_recorded(const Buffers& buffers, bool waits, int times, const Body& body,
                                  std::vector<rankloom::Work>& works) {
  const CodeSite code = python_site();
  if (const std::string closed = record_->closed(); !closed.empty()) {
    throw_to_torch(DistError(invalid_argument(who_, ", ", buffers.op(), ": ", closed),
                             {.rank = group_->global_rank(), .group = group_->group_name(), .op = buffers.op()}),
                   nullptr, code);
  }
  const char* const scope = record_->scope();
  {
    const std::lock_guard<std::mutex> lock(record_->mu());
    record_->enter(scope);
    try {
      for (int i = 0; i < times; ++i) works.push_back(body(i, CallOptions{}, code));
    } catch (const DistError& error) {
      works.clear();
      throw_to_torch(error, nullptr, code);
    }
    if (waits) {
      for (rankloom::Work& work : works) work.wait(code);
      works.clear();
    }
  }
  try {
    if (buffers.has_real_numbers()) record_->met_data(buffers.op(), code);
    if (buffers.held() != nullptr) buffers.held()->copy_back();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(record_->mu());  // works of a record end under its lock
    works.clear();
    throw;
  }
}

template <typename Body>
void TorchBackend::issue_real(const Buffers& buffers, const Asked& asked, int times, const Body& body,
                              std::vector<rankloom::Work>& works) {
  const GilRelease no_gil;
  const CodeSite code = python_site();
  CallOptions options;
  // c10d passes the group's timeout on, which is no wish of this call.
  if (asked.timeout.count() > 0 && asked.timeout != options_->timeout)
    options.timeout = absl::FromChrono(asked.timeout);
  options.keep_alive = buffers.held();
  if (!asked.waits) buffers.held()->note_versions(code);
  if (StepRecord* const record = job_->world().scheduler().record(); record != nullptr && calls_come_at_once())
    record->uncovered("calls of what is chained to a future in a backward pass: with gloo they may come later");
  works.reserve(static_cast<size_t>(times));
  const int rank = group_->global_rank();
  try {
    DeviceStreams& streams = job_->device_streams();
    const HeldTensors& held = *buffers.held();
    std::shared_ptr<TorchStream> stream;
    if (held.device().has_value()) {
      stream = streams.current(rank, *held.device());
      streams.order(rank, *held.device(), held.device_uses(), code);
      options.stream = stream.get();
    }
    for (int i = 0; i < times; ++i) works.push_back(body(i, options, code));
    if (stream != nullptr) streams.made(rank, held.device_uses(), works);
    if (asked.waits) {
      for (rankloom::Work& work : works) work.wait(code);
    }
  } catch (...) {
    rethrow_to_torch(job_.get(), rank, code);
  }
  if (!asked.waits) return job_->after_point(rank);
  job_->after_call(rank);
  buffers.held()->copy_back();
}

template <typename Body>
c10::intrusive_ptr<c10d::Work> TorchBackend::issue(c10d::OpType type, const Buffers& buffers, Asked asked,
                                                   at::ArrayRef<at::Tensor> results, int times, const Body& body,
                                                   std::vector<size_t> lists) {
  // Parts of a coalesced call are waited for at its end. A compiler may ask for works of calls that were waited for. A
  // call of device tensors is waited for by a stream, where its work can have one wait.
  const bool on_device = buffers.held() != nullptr && buffers.held()->device().has_value();
  if (coalesces_ || on_device || c10d::allow_inflight_collective_as_graph_input()) asked.waits = false;
  std::vector<rankloom::Work> works;
  const absl::Cleanup gone = [this, &works] { let_go(job_.get(), std::move(works)); };
  const int rank = group_->global_rank();
  if (record_ != nullptr) {
    issue_recorded(buffers, asked.waits, times, body, works);
  } else if (fake_) {
    // Done at once, and nobody waits: the interpreter lock stays, and the caller's line is looked up for errors only.
    try {
      for (int i = 0; i < times; ++i) std::ignore = body(i, CallOptions{}, CodeSite{});
    } catch (const DistError& error) {
      throw_to_torch(error, nullptr, python_site());
    }
  } else {
    issue_real(buffers, asked, times, body, works);
  }
  if (asked.waits) return nullptr;
  if (coalesces_) {
    const std::lock_guard<std::mutex> lock(mu_);
    if (coalesced_ != nullptr) {
      coalesced_->works.insert(coalesced_->works.end(), works.begin(), works.end());
      coalesced_->held.push_back(buffers.held());
      coalesced_->results.insert(coalesced_->results.end(), results.begin(), results.end());
    }
  }
  return c10::make_intrusive<TorchWork>(job_, rank, type, std::move(works), buffers.held(), results, std::move(lists),
                                        record_);
}

// The words that programs look for are those of PyTorch's own groups.
void TorchBackend::check_root(const char* op, int64_t root) const {
  TORCH_CHECK(root >= 0 && root < size_, "rank ", group_->global_rank(), ", ", op, ": invalid root rank: ", root,
              ", want 0 <= root rank < ", size_);
}

void TorchBackend::check_like_gloo(const char* op, at::ArrayRef<at::Tensor> tensors, const at::Tensor& one) const {
  if (name_ != "gloo" || fake_ || !one.is_cpu()) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !one.defined()) continue;  // refused by name below
    TORCH_CHECK(tensors[i].sizes() == one.sizes(), "rank ", group_->global_rank(), ", ", op,
                ": invalid tensor size at index ", i, ": have ", tensors[i].sizes(), ", want ", one.sizes(),
                ": gloo takes no other shape");
  }
}

void TorchBackend::check_parts_like_gloo(const char* op, const at::Tensor& whole, const at::Tensor& part) const {
  if (name_ != "gloo" || fake_ || !whole.defined() || !part.defined() || !part.is_cpu()) return;
  std::vector<int64_t> want = part.sizes().vec();
  if (!want.empty()) want[0] *= size_;
  TORCH_CHECK(!want.empty() && whole.sizes() == want, "rank ", group_->global_rank(), ", ", op,
              ": invalid tensor size: have ", whole.sizes(), " of all ranks and ", part.sizes(),
              " of one: gloo wants the ranks' one behind the other along the first dimension");
}

void TorchBackend::check_contiguous_like_gloo(const char* op, const char* what, const at::Tensor& tensor) const {
  if (name_ != "gloo" || fake_ || !tensor.is_cpu()) return;
  TORCH_CHECK(tensor.is_contiguous(), "rank ", group_->global_rank(), ", ", op, ": ", what,
              " tensor has to be contiguous: have sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              ": gloo copies none aside");
}

void TorchBackend::count_writes_like_gloo(const Buffers& buffers, int times) const {
  if (name_ == "gloo" && !fake_ && buffers.held() != nullptr) buffers.held()->count_writes(times);
}

c10::intrusive_ptr<c10d::Work> TorchBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                       const c10d::BroadcastOptions& opts) {
  check_root("broadcast", opts.rootRank);
  TORCH_CHECK(opts.rootTensor >= 0 && static_cast<size_t>(opts.rootTensor) < tensors.size(), "rank ",
              group_->global_rank(), ", broadcast: invalid root tensor: ", opts.rootTensor,
              ", want 0 <= root tensor < ", tensors.size());
  Buffers held = buffers("broadcast", true);
  const TensorView view =
      tensors.size() == 1 ? held.out(tensors[0]) : held.copied(tensors, static_cast<size_t>(opts.rootTensor));
  return issue(c10d::OpType::BROADCAST, held, Asked(opts), tensors, 1,
               [&](int, const CallOptions& options, CodeSite code) {
                 return group_->broadcast(view, static_cast<int>(opts.rootRank), options, code);
               });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(!tensors.empty(), "all_reduce: requires non-empty tensor list");
  if (tensors[0].layout() == at::kSparse) return allreduce_sparse(tensors, opts);
  Buffers held = buffers("all_reduce", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const TensorView view = tensors.size() == 1 ? held.out(tensors[0]) : held.reduced(tensors, opts.reduceOp);
  return issue(
      c10d::OpType::ALLREDUCE, held, Asked(opts), tensors, 1,
      [&](int, const CallOptions& options, CodeSite code) { return group_->all_reduce(view, op, options, code); });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                 const c10d::AllreduceCoalescedOptions& opts) {
  Buffers held = buffers("all_reduce_coalesced", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const std::vector<TensorView> views = held.outs(tensors);
  count_writes_like_gloo(held);
  return issue(c10d::OpType::ALLREDUCE_COALESCED, held, Asked(opts), tensors, 1,
               [&](int, const CallOptions& options, CodeSite code) {
                 return group_->all_reduce_coalesced(views, op, options, code);
               });
}

// A sum of sparse tensors is the tensor of all members' entries, coalesced. Members have different numbers of entries,
// so those are exchanged first, and the call waits for that.
c10::intrusive_ptr<c10d::Work> TorchBackend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                              const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(opts.reduceOp.op_ == c10d::ReduceOp::SUM,
              "all_reduce of a sparse tensor: unsupported reduction operation, want SUM");
  for (size_t i = 1; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].layout() == at::kSparse, "all_reduce: invalid tensor layout at index ", i, ": have ",
                tensors[i].layout(), ", want Sparse as at index 0");
    TORCH_CHECK(tensors[i].sizes() == tensors[0].sizes(), "all_reduce: invalid tensor size at index ", i, ": have ",
                tensors[i].sizes(), ", want ", tensors[0].sizes(), " as at index 0");
  }
  if (fake_) return barrier({});
  at::Tensor mine = tensors[0].coalesce();
  for (size_t i = 1; i < tensors.size(); ++i) mine = mine.add(tensors[i]).coalesce();
  const int64_t dims = mine.sparse_dim();
  const auto n = static_cast<size_t>(size_);
  // Elements, sparse dimensions, dimensions, and their sizes: of the same length for all.
  constexpr int64_t kMostDims = 64;  // at::Tensor's
  std::vector<int64_t> numbers = {mine._nnz(), dims, mine.dim()};
  numbers.insert(numbers.end(), mine.sizes().begin(), mine.sizes().end());
  numbers.resize(3 + kMostDims, 0);
  std::vector<at::Tensor> counts{at::tensor(numbers, at::kLong)};
  std::vector<std::vector<at::Tensor>> all_counts(1);
  for (size_t i = 0; i < n; ++i) all_counts[0].push_back(at::empty({3 + kMostDims}, at::kLong));
  gather_all(all_counts, counts, {})->wait();
  std::vector<std::vector<at::Tensor>> all_indices(1), all_values(1);
  for (size_t i = 0; i < n; ++i) {
    const int64_t nnz = all_counts[0][i][0].item<int64_t>();
    TORCH_CHECK(all_counts[0][i][1].item<int64_t>() == dims, "all_reduce of a sparse tensor: rank ", i, " has ",
                all_counts[0][i][1].item<int64_t>(), " sparse dimensions, rank ", rank_, " has ", dims);
    const at::Tensor theirs = all_counts[0][i].narrow(0, 3, all_counts[0][i][2].item<int64_t>()).contiguous();
    const at::IntArrayRef their_sizes(theirs.const_data_ptr<int64_t>(), static_cast<size_t>(theirs.numel()));
    TORCH_CHECK(their_sizes == mine.sizes(), "all_reduce of a sparse tensor: rank ", i, " has sizes ", their_sizes,
                ", rank ", rank_, " has ", mine.sizes());
    std::vector<int64_t> sizes = mine.values().sizes().vec();
    sizes[0] = nnz;
    all_indices[0].push_back(at::empty({dims, nnz}, mine.indices().options()));
    all_values[0].push_back(at::empty(sizes, mine.values().options()));
  }
  std::vector<at::Tensor> indices{mine.indices().contiguous()}, values{mine.values().contiguous()};
  gather_all(all_indices, indices, {})->wait();
  const c10::intrusive_ptr<c10d::Work> work = gather_all(all_values, values, {});
  work->wait();
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor sum =
      at::sparse_coo_tensor(at::cat(all_indices[0], 1), at::cat(all_values[0], 0), mine.sizes(), mine.options())
          .coalesce();
  for (at::Tensor& theirs : tensors) theirs.copy_(sum);
  return c10::make_intrusive<TorchWork>(job_, group_->global_rank(), c10d::OpType::_ALLREDUCE_SPARSE,
                                        std::vector<rankloom::Work>(), std::make_shared<HeldTensors>(), tensors);
}

c10::intrusive_ptr<c10d::Work> TorchBackend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  check_root("reduce", opts.rootRank);
  Buffers held = buffers("reduce", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const TensorView view = held.out(only("reduce", "input", tensors));
  return issue(c10d::OpType::REDUCE, held, Asked(opts), tensors, 1,
               [&](int, const CallOptions& options, CodeSite code) {
                 return group_->reduce(view, static_cast<int>(opts.rootRank), op, options, code);
               });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                       std::vector<at::Tensor>& inputs,
                                                       const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "all_gather: have ", outputs.size(), " output lists and ", inputs.size(),
              " input tensors, want as many of each");
  for (size_t i = 0; i < inputs.size(); ++i) check_like_gloo("all_gather", outputs[i], inputs[i]);
  return gather_all(outputs, inputs, opts);
}

c10::intrusive_ptr<c10d::Work> TorchBackend::gather_all(const std::vector<std::vector<at::Tensor>>& outputs,
                                                        const std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& opts) {
  Buffers held = buffers("all_gather", true);
  const std::vector<TensorView> in = held.ins(inputs);
  std::vector<std::vector<TensorView>> out;
  std::vector<size_t> lists;
  for (const std::vector<at::Tensor>& list : outputs) {
    out.push_back(held.outs(list));
    lists.push_back(list.size());
  }
  count_writes_like_gloo(held);
  // Futures of gloo's hold the one list that a call may have.
  if (name_ == "gloo" && outputs.size() == 1) lists.clear();
  auto work = issue(
      c10d::OpType::ALLGATHER, held, Asked(opts), flat(outputs), static_cast<int>(in.size()),
      [&](int i, const CallOptions& options, CodeSite code) {
        return group_->all_gather(out[static_cast<size_t>(i)], in[static_cast<size_t>(i)], options, code);
      },
      std::move(lists));
  if (fake_ && passes_through(flat(outputs))) {
    const at::AutoDispatchBelowAutograd guard;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const at::Tensor& output : outputs[i]) pass_on(inputs[i], output);
    }
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::RANKLOOM_C10D_ALL_GATHER_SINGLE(at::Tensor& output, at::Tensor& input,
                                                                             const c10d::AllgatherOptions& opts) {
  check_parts_like_gloo("all_gather_into_tensor", output, input);
  Buffers held = buffers("all_gather_into_tensor", true);
  const TensorView in = held.in(input);
  const TensorView out = held.out(output);
  count_writes_like_gloo(held, 2);
  // Futures of gloo's hold the ranks' parts.
  std::vector<at::Tensor> results = name_ == "gloo" && !fake_ ? at::chunk(output, size_) : std::vector{output};
  auto work = issue(c10d::OpType::_ALLGATHER_BASE, held, Asked(opts), std::move(results), 1,
                    [&](int, const CallOptions& options, CodeSite code) {
                      return group_->all_gather_into_tensor(out, in, options, code);
                    });
  if (passes_through(output)) {
    const at::AutoDispatchBelowAutograd guard;
    fill_parts(output, input, size_);
  }
  return work;
}

// outputs[member][i] becomes the member's inputs[i].
c10::intrusive_ptr<c10d::Work> TorchBackend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(!inputs.empty(), "all_gather_coalesced: have 0 input tensors, want at least 1");
  TORCH_CHECK(outputs.size() == static_cast<size_t>(size_), "all_gather_coalesced: have ", outputs.size(),
              " output lists, want one a rank = ", size_);
  Buffers held = buffers("all_gather_coalesced", true);
  const std::vector<TensorView> in = held.ins(inputs);
  std::vector<at::Tensor> by_input;  // the members' outputs of the first, of the second, ...
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const std::vector<at::Tensor>& list : outputs) {
      TORCH_CHECK(list.size() == inputs.size(), "all_gather_coalesced: an output list has ", list.size(),
                  " tensors, want one an input = ", inputs.size());
      check_like_gloo("all_gather_coalesced", {&list[i], 1}, inputs[i]);
      by_input.push_back(list[i]);
    }
  }
  const std::vector<TensorView> views = held.outs(by_input);
  std::vector<std::vector<TensorView>> out;
  for (size_t i = 0; i < views.size(); i += outputs.size())
    out.emplace_back(views.begin() + static_cast<ptrdiff_t>(i),
                     views.begin() + static_cast<ptrdiff_t>(i + outputs.size()));
  count_writes_like_gloo(held);
  auto work = issue(c10d::OpType::ALLGATHER_COALESCED, held, Asked(opts), flat(outputs), static_cast<int>(in.size()),
                    [&](int i, const CallOptions& options, CodeSite code) {
                      return group_->all_gather(out[static_cast<size_t>(i)], in[static_cast<size_t>(i)], options, code);
                    });
  if (fake_ && passes_through(flat(outputs))) {
    const at::AutoDispatchBelowAutograd guard;
    for (std::vector<at::Tensor>& list : outputs) {
      for (size_t i = 0; i < list.size(); ++i) pass_on(inputs[i], list[i]);
    }
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::RANKLOOM_C10D_ALL_GATHER_SINGLE_COALESCED(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  for (size_t i = 0; i < std::min(inputs.size(), outputs.size()); ++i)
    check_parts_like_gloo("all_gather_into_tensor_coalesced", outputs[i], inputs[i]);
  Buffers held = buffers("all_gather_into_tensor_coalesced", true);
  const std::vector<TensorView> in = held.ins(inputs);
  const std::vector<TensorView> out = held.outs(outputs);
  count_writes_like_gloo(held, 2);
  auto work = issue(c10d::OpType::COALESCED, held, Asked(opts), outputs, 1,
                    [&](int, const CallOptions& options, CodeSite code) {
                      return group_->all_gather_into_tensor_coalesced(out, in, options, code);
                    });
  if (passes_through(outputs)) {
    const at::AutoDispatchBelowAutograd guard;
    for (size_t i = 0; i < outputs.size(); ++i) fill_parts(outputs[i], inputs[i], size_);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                    std::vector<at::Tensor>& inputs, const c10d::GatherOptions& opts) {
  check_root("gather", opts.rootRank);
  Buffers held = buffers("gather", true);
  const std::vector<at::Tensor> all = flat(outputs);
  check_like_gloo("gather", all, only("gather", "input", inputs));
  const TensorView in = held.in(inputs[0]);
  const std::vector<TensorView> out = held.outs(all);
  count_writes_like_gloo(held);
  auto work =
      issue(c10d::OpType::GATHER, held, Asked(opts), all, 1, [&](int, const CallOptions& options, CodeSite code) {
        return group_->gather(out, in, static_cast<int>(opts.rootRank), options, code);
      });
  if (passes_through(all)) {
    const at::AutoDispatchBelowAutograd guard;
    for (const at::Tensor& output : all) pass_on(inputs[0], output);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::scatter(std::vector<at::Tensor>& outputs,
                                                     std::vector<std::vector<at::Tensor>>& inputs,
                                                     const c10d::ScatterOptions& opts) {
  check_root("scatter", opts.rootRank);
  Buffers held = buffers("scatter", true);
  const std::vector<at::Tensor> all = flat(inputs);
  check_like_gloo("scatter", all, only("scatter", "output", outputs));
  const std::vector<TensorView> in = held.ins(all);
  const TensorView out = held.out(outputs[0]);
  auto work =
      issue(c10d::OpType::SCATTER, held, Asked(opts), outputs, 1, [&](int, const CallOptions& options, CodeSite code) {
        return group_->scatter(out, in, static_cast<int>(opts.rootRank), options, code);
      });
  if (!all.empty() && passes_through(outputs)) {
    const at::AutoDispatchBelowAutograd guard;
    pass_on(all[static_cast<size_t>(rank_)], outputs[0]);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                            std::vector<std::vector<at::Tensor>>& inputs,
                                                            const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter: have ", outputs.size(), " output tensors and ",
              inputs.size(), " input lists, want as many of each");
  for (size_t i = 0; i < outputs.size(); ++i) check_like_gloo("reduce_scatter", inputs[i], outputs[i]);
  Buffers held = buffers("reduce_scatter", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  std::vector<std::vector<TensorView>> in;
  for (const std::vector<at::Tensor>& list : inputs) in.push_back(held.ins(list));
  const std::vector<TensorView> out = held.outs(outputs);
  count_writes_like_gloo(held);
  auto work =
      issue(c10d::OpType::REDUCE_SCATTER, held, Asked(opts), outputs, static_cast<int>(out.size()),
            [&](int i, const CallOptions& options, CodeSite code) {
              return group_->reduce_scatter(out[static_cast<size_t>(i)], in[static_cast<size_t>(i)], op, options, code);
            });
  if (passes_through(outputs)) {
    const at::AutoDispatchBelowAutograd guard;
    for (size_t i = 0; i < outputs.size(); ++i) pass_on(inputs[i][static_cast<size_t>(rank_)], outputs[i]);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::RANKLOOM_C10D_REDUCE_SCATTER_SINGLE(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  check_parts_like_gloo("reduce_scatter_tensor", input, output);
  Buffers held = buffers("reduce_scatter_tensor", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const TensorView in = held.in(input);
  const TensorView out = held.out(output);
  count_writes_like_gloo(held);
  auto work = issue(c10d::OpType::_REDUCE_SCATTER_BASE, held, Asked(opts), {output}, 1,
                    [&](int, const CallOptions& options, CodeSite code) {
                      return group_->reduce_scatter_tensor(out, in, op, options, code);
                    });
  if (passes_through(output)) {
    const at::AutoDispatchBelowAutograd guard;
    fill_with_part(output, input, size_, rank_);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::RANKLOOM_C10D_REDUCE_SCATTER_SINGLE_COALESCED(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::ReduceScatterOptions& opts) {
  for (size_t i = 0; i < std::min(inputs.size(), outputs.size()); ++i)
    check_parts_like_gloo("reduce_scatter_tensor_coalesced", inputs[i], outputs[i]);
  Buffers held = buffers("reduce_scatter_tensor_coalesced", false);
  const ReduceOp op = reduce_op(opts.reduceOp);
  const std::vector<TensorView> in = held.ins(inputs);
  const std::vector<TensorView> out = held.outs(outputs);
  count_writes_like_gloo(held);
  auto work = issue(RANKLOOM_C10D_OP_REDUCE_SCATTER_TENSOR_COALESCED, held, Asked(opts), outputs, 1,
                    [&](int, const CallOptions& options, CodeSite code) {
                      return group_->reduce_scatter_tensor_coalesced(out, in, op, options, code);
                    });
  if (passes_through(outputs)) {
    const at::AutoDispatchBelowAutograd guard;
    for (size_t i = 0; i < outputs.size(); ++i) fill_with_part(outputs[i], inputs[i], size_, rank_);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::RANKLOOM_C10D_ALL_TO_ALL_SINGLE(at::Tensor& output, at::Tensor& input,
                                                                             std::vector<int64_t>& output_splits,
                                                                             std::vector<int64_t>& input_splits,
                                                                             const c10d::AllToAllOptions& opts) {
  Buffers held = buffers("all_to_all_single", true);
  const TensorView in = held.in(input);
  const TensorView out = held.out(output);
  auto work = issue(c10d::OpType::ALLTOALL_BASE, held, Asked(opts), {output}, 1,
                    [&](int, const CallOptions& options, CodeSite code) {
                      return group_->all_to_all_single(out, in, output_splits, input_splits, options, code);
                    });
  if (passes_through(output)) {
    // The others' tensors are not known: each part repeats the input's first rows, as in PyTorch's fake group.
    const at::AutoDispatchBelowAutograd guard;
    if (output_splits.empty() && input_splits.empty()) {
      output.copy_(input);
    } else if (output.dim() > 0 && input.dim() > 0 && input.size(0) > 0) {
      int64_t at = 0;
      std::vector<int64_t> splits = output_splits;
      if (splits.empty()) splits.assign(static_cast<size_t>(size_), output.size(0) / size_);
      for (int64_t left : splits) {
        while (left > 0) {
          const int64_t rows = std::min(left, input.size(0));
          output.narrow(0, at, rows).copy_(input.narrow(0, 0, rows));
          at += rows;
          left -= rows;
        }
      }
    }
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                      const c10d::AllToAllOptions& opts) {
  Buffers held = buffers("all_to_all", true);
  const std::vector<TensorView> in = held.ins(inputs);
  const std::vector<TensorView> out = held.outs(outputs);
  count_writes_like_gloo(held);
  auto work =
      issue(c10d::OpType::ALLTOALL, held, Asked(opts), outputs, 1,
            [&](int, const CallOptions& options, CodeSite code) { return group_->all_to_all(out, in, options, code); });
  if (passes_through(outputs)) {
    const at::AutoDispatchBelowAutograd guard;
    for (size_t i = 0; i < outputs.size(); ++i) pass_on(inputs[i], outputs[i]);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> TorchBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  Buffers held = buffers("send", true);
  check_contiguous_like_gloo("send", "input", only("send", "input", tensors));
  const TensorView view = held.in(tensors[0]);
  return issue(c10d::OpType::SEND, held, {}, tensors, 1, [&](int, const CallOptions& options, CodeSite code) {
    return group_->send(view, destination, tag, options, code);
  });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  Buffers held = buffers("recv", true);
  check_contiguous_like_gloo("recv", "output", only("recv", "output", tensors));
  const TensorView view = held.out(tensors[0]);
  return issue(c10d::OpType::RECV, held, {}, tensors, 1, [&](int, const CallOptions& options, CodeSite code) {
    return group_->recv(view, source, tag, options, code);
  });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  Buffers held = buffers("recv_any", true);
  check_contiguous_like_gloo("recv_any", "output", only("recv_any", "output", tensors));
  const TensorView view = held.out(tensors[0]);
  return issue(c10d::OpType::RECVANYSOURCE, held, {}, tensors, 1, [&](int, const CallOptions& options, CodeSite code) {
    return group_->recv_any(view, tag, options, code);
  });
}

c10::intrusive_ptr<c10d::Work> TorchBackend::barrier(const c10d::BarrierOptions& opts) {
  const Buffers held = buffers("barrier", true);
  return issue(c10d::OpType::BARRIER, held, Asked(opts), {}, 1,
               [&](int, const CallOptions& options, CodeSite code) { return group_->barrier(options, {}, code); });
}

// The texts are gloo's, since programs look for them; what the core says follows, with all missing members.
void TorchBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // torch.distributed gives every call the time that it gives every group: no wish of this call.
  const bool unset = opts.timeout == c10d::kUnsetTimeout || opts.timeout == options_->timeout ||
                     opts.timeout == kBackendDefaultTimeout;
  const std::chrono::milliseconds timeout = unset ? options_->timeout : opts.timeout;
  if (record_ != nullptr) {
    std::vector<rankloom::Work> works;
    const auto call = [&](int, const CallOptions&, CodeSite code) {
      group_->monitored_barrier(std::nullopt, wait_all_ranks, {}, code);
      return rankloom::Work();
    };
    issue_recorded(buffers("monitored_barrier", true), /*waits=*/false, 1, call, works);
    return;
  }
  const std::string name = absl::StrCat("group ", group_->group()->id(), " barrier ", ++monitored_);
  if (job_ != nullptr) job_->arrive(name, rank_);
  const CodeSite code = python_site();
  try {
    const GilRelease no_gil;
    group_->monitored_barrier(unset ? std::nullopt : std::optional(absl::FromChrono(timeout)), wait_all_ranks, {},
                              code);
    if (job_ != nullptr) job_->after_call(group_->global_rank());
  } catch (const DistError& error) {
    if (job_ != nullptr) job_->after_point(group_->global_rank());
    if (error.kind() != ErrorKind::kTimeout && error.kind() != ErrorKind::kDeadlock)
      throw_to_torch(error, job_.get(), code);
    const std::set<int> here = job_ != nullptr ? job_->arrived(name) : std::set<int>();
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (here.count(rank) == 0 && (missing.empty() || wait_all_ranks)) missing.push_back(rank);
    }
    std::string text;
    if (rank_ != 0) {
      text = absl::StrCat("Rank ", rank_,
                          " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                          "from rank 0. Please check rank 0 logs for faulty rank.");
    } else if (timeout.count() == 0 || missing.empty()) {
      text = absl::StrCat("Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms.");
    } else {
      text = absl::StrCat(wait_all_ranks ? "Ranks " : "Rank ", absl::StrJoin(missing, ", "),
                          " failed to pass monitoredBarrier in ", timeout.count(), " ms");
    }
    C10_THROW_ERROR(DistBackendError, absl::StrCat(text, "\n", error.what()));
  } catch (...) {
    rethrow_to_torch(job_.get(), group_->global_rank(), code);
  }
}

}  // namespace rankloom::bridge
