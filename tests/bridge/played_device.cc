// A Python module that puts a device played by a thread (fake_device.h) into CUDA's place, in a torch that has no CUDA:
// torch's own side of it, streams and events and the two operations that the bridge asks of torch, and the driver that
// rankloom asks. Memory of the device is memory of the process.

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/streams/fake_device.h"

namespace rankloom {
namespace {

const std::shared_ptr<FakeDriver>& driver() {
  static auto* const made = new std::shared_ptr<FakeDriver>(std::make_shared<FakeDriver>(/*seed=*/5));
  return *made;
}

const c10::Device kPlayed(c10::kCUDA, 0);
std::atomic<int> device_count = 1;
std::atomic<int> kept = 0;
thread_local c10::StreamId current_stream = 0;

// The device's streams by torch's number; 0 is the default one.
class Streams {
 public:
  c10::StreamId make() {
    const std::lock_guard<std::mutex> lock(mu_);
    handles_.push_back(driver()->make_stream());
    return static_cast<c10::StreamId>(handles_.size()) - 1;
  }
  void* handle(c10::StreamId id) {
    const std::lock_guard<std::mutex> lock(mu_);
    return handles_.at(static_cast<size_t>(id));
  }

 private:
  std::mutex mu_;
  std::vector<void*> handles_{driver()->make_stream()};
};

Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

void check(const absl::Status& status) { TORCH_CHECK(status.ok(), std::string(status.message())); }
template <typename T>
T checked(absl::StatusOr<T> value) {
  check(value.status());
  return *std::move(value);
}

void await_idle(c10::StreamId id) {
  while (!checked(driver()->idle(streams().handle(id)))) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// Stands for the class that torch's CUDA registers, as far as it is asked.
struct PlayedGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kPlayed, id); }

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return kPlayed; }
  c10::Device getDevice() const override { return kPlayed; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count.load()); }

  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(streams().make()); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  void* getStreamNativeHandle(const c10::Stream of) const override { return streams().handle(of.id()); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { ++kept; }

  void record(void** event, const c10::Stream& in, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = checked(driver()->take_event(0));
    check(driver()->record(*event, streams().handle(in.id())));
  }
  void block(void* event, const c10::Stream& which) const override {
    if (event != nullptr) check(driver()->wait_event(streams().handle(which.id()), event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || checked(driver()->passed(event)); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) driver()->give_event(0, event);
  }
};

at::Tensor on_device(const at::Tensor& host) {
  return at::for_blob(host.mutable_data_ptr(), host.sizes())
      .strides(host.strides())
      .deleter([host](void*) {})
      .options(host.options().device(kPlayed))
      .target_device(kPlayed)
      .make_tensor();
}

at::Tensor on_host(const at::Tensor& tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .deleter([tensor](void*) {})
      .options(tensor.options().device(c10::kCPU))
      .make_tensor();
}

void enqueue(std::function<void()> kernel) {
  driver()->enqueue(streams().handle(current_stream), [kernel = std::move(kernel)] {
    kernel();
    return true;
  });
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat>) {
  return on_device(at::empty(sizes, at::TensorOptions().dtype(dtype)));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  // The device reads in its own time, and memory of the host as it is now.
  const at::Tensor source = from.is_cpu() ? from.clone() : on_host(from);
  const at::Tensor target = to.is_cpu() ? to : on_host(to);
  enqueue([source, target] { target.copy_(source); });
  if (to.is_cpu()) {
    std::optional<pybind11::gil_scoped_release> no_gil;
    if (PyGILState_Check() != 0) no_gil.emplace();
    await_idle(current_stream);
  }
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("copy_", TORCH_FN(copy));
}

// An entry of a stream that lasts until it is let through.
class Barrier {
 public:
  Barrier() {
    driver()->enqueue(streams().handle(current_stream), [open = open_] { return open->load(); });
  }
  void open() { *open_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

PYBIND11_MODULE(played_device, m) {
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new PlayedGuard);
  // The pointer in the capsule is for ever.
  m.def("driver", [] { return pybind11::capsule(&driver()); });
  m.def("on_device", &on_device);
  m.def("on_host", &on_host);
  m.def("new_stream", [] { return streams().make(); });
  m.def("use_stream", [](c10::StreamId id) { current_stream = id; });
  m.def("idle", [] { return checked(driver()->idle(streams().handle(current_stream))); });
  m.def("synchronize", [] {
    const c10::StreamId id = current_stream;
    const pybind11::gil_scoped_release no_gil;
    await_idle(id);
  });
  m.def("add", [](const at::Tensor& tensor, double value) {
    enqueue([host = on_host(tensor), value]() mutable { host.add_(value); });
  });
  m.def("plans_run", [] { return driver()->plans_run(); });
  m.def("kept", [] { return kept.load(); });
  m.def("set_device_count", [](int count) { device_count = count; });
  pybind11::class_<Barrier>(m, "Barrier").def(pybind11::init<>()).def("open", &Barrier::open);
}

}  // namespace
}  // namespace rankloom
