#include "bridge/torch/device_streams.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "sim/scheduler/scheduler.h"
#include "world/world_state.h"

namespace rankloom::bridge {

using namespace internal;

namespace {

UseDevice& use_device_of_calls() {
  static auto* const value = new UseDevice;
  return *value;
}

PrepareDevice& prepare_device_of_calls() {
  static auto* const value = new PrepareDevice;
  return *value;
}

// Torch's own side of a kind of device, which it has wherever it has tensors there.
const c10::impl::DeviceGuardImplInterface& torch_side(c10::Device device) {
  return *c10::impl::getDeviceGuardImpl(device.type());
}

}  // namespace

void set_use_device(UseDevice use, PrepareDevice prepare) {
  use_device_of_calls() = std::move(use);
  prepare_device_of_calls() = std::move(prepare);
}

void prepare_device() {
  const c10::Device device(c10::kCUDA, 0);
  if (prepare_device_of_calls() == nullptr || !at::globalContext().hasCUDA() || !calls_reach(device)) return;
  if (!at::detail::getCUDAHooks().hasPrimaryContext(device.index())) return;
  try {
    prepare_device_of_calls()(device.index());
  } catch (const DistError&) {  // a group for tensors of the host needs none
  }
}

bool calls_reach(c10::Device device) {
  return device.is_cuda() && use_device_of_calls() != nullptr && c10::impl::hasDeviceGuardImpl(device.type()) &&
         torch_side(device).deviceCount() == 1;
}

std::optional<c10::Device> current_device() {
  const c10::Device any(c10::kCUDA, 0);
  if (!calls_reach(any)) return std::nullopt;
  return torch_side(any).getDevice();
}

void keep_for_current_stream(const at::Tensor& tensor) {
  const c10::impl::DeviceGuardImplInterface& torch = torch_side(tensor.device());
  torch.recordDataPtrOnStream(tensor.storage().data_ptr(), torch.getStream(tensor.device()));
}

c10::Event mark_current_stream(c10::Device device) {
  c10::Event mark(device.type());
  mark.record(torch_side(device).getStream(device));
  return mark;
}

void wait_in_current_stream(const c10::Event& mark) { mark.block(torch_side(mark.device()).getStream(mark.device())); }

absl::StatusOr<rankloom::Work> TorchStream::issue(ProcessGroup& group, CollectiveCall&& call) {
  absl::StatusOr<std::shared_ptr<DeviceMark>> here = mark();
  if (!here.ok()) return here.status();
  call.way.ready = *std::move(here);
  return group.execute(std::move(call));
}

std::shared_ptr<TorchStream> DeviceStreams::current(int rank, c10::Device device) {
  const c10::impl::DeviceGuardImplInterface& torch = torch_side(device);
  const c10::Stream stream = torch.getStream(device);
  void* const handle = torch.getStreamNativeHandle(stream);
  const Place place{device.index(), handle};
  const std::lock_guard<std::mutex> lock(mu_);
  std::shared_ptr<TorchStream>& known = streams_[{rank, place}];
  if (known == nullptr) {
    RankContext& context = world_.context(rank);
    use_device_of_calls()(context, device.index());
    const std::string name =
        absl::StrCat(stream.id() == 0 ? "default stream" : absl::StrCat("stream ", stream.id()), " of ", device.str());
    known = std::make_shared<TorchStream>(state_of(context), device.index(), handle, name);
    users_[place].insert(rank);
  }
  return known;
}

std::shared_ptr<TorchStream> DeviceStreams::to_block(int rank, c10::Device device) {
  if (world_.scheduler().deterministic()) return nullptr;
  if (torch_side(device).getStream(device).id() == 0) return nullptr;
  std::shared_ptr<TorchStream> stream = current(rank, device);
  const std::lock_guard<std::mutex> lock(mu_);
  return users_[{stream->device(), stream->handle()}].size() == 1 ? stream : nullptr;
}

bool DeviceUses::meets(const DeviceUses& other) const {
  const auto meet = [](const std::vector<Range>& some, const std::vector<Range>& others) {
    return std::any_of(some.begin(), some.end(), [&others](Range a) {
      return std::any_of(others.begin(), others.end(), [a](Range b) { return a.begin < b.end && b.begin < a.end; });
    });
  };
  return meet(writes, other.writes) || meet(writes, other.reads) || meet(reads, other.writes);
}

void DeviceStreams::order(int rank, c10::Device device, const DeviceUses& uses, CodeSite code) {
  std::vector<std::shared_ptr<WorkState>> before;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const OnItsWay& call : on_their_way_[rank]) {
      if (!call.work->is_over() && call.uses.meets(uses)) before.push_back(call.work);
    }
  }
  if (before.empty()) return;
  const std::shared_ptr<TorchStream> stream = to_block(rank, device);
  for (const std::shared_ptr<WorkState>& work : before) {
    rankloom::Work handle = WorkState::handle(work);
    stream != nullptr ? stream->wait_for(handle, absl::InfiniteDuration(), code) : handle.wait(code);
  }
}

void DeviceStreams::made(int rank, const DeviceUses& uses, const std::vector<rankloom::Work>& works) {
  std::vector<OnItsWay> over;  // goes without the lock: tensors go with their calls
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<OnItsWay>& calls = on_their_way_[rank];
  const auto first_over =
      std::partition(calls.begin(), calls.end(), [](const OnItsWay& call) { return !call.work->is_over(); });
  over.assign(std::make_move_iterator(first_over), std::make_move_iterator(calls.end()));
  calls.erase(first_over, calls.end());
  for (const rankloom::Work& work : works) {
    if (std::shared_ptr<WorkState> state = WorkState::shared(work); state != nullptr && !state->is_over())
      calls.push_back({std::move(state), uses});
  }
}

}  // namespace rankloom::bridge
