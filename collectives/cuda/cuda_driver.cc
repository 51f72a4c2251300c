#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "collectives/cuda/cuda_status.h"
#include "collectives/cuda/launch.h"
#include "collectives/cuda/launch_count.h"
#include "collectives/cuda/plan_tables.h"
#include "collectives/cuda/prepare.h"
#include "collectives/cuda/stream_pool.h"
#include "collectives/streams/device_runtime.h"
#include "rankloom/cuda.h"
#include "rankloom/error.h"
#include "rankloom/world.h"
#include "sim/base/dist_error.h"
#include "sim/base/lock_order.h"
#include "sim/base/text.h"
#include "world/world_state.h"

namespace rankloom {

using namespace internal;

namespace {

using cuda::Batch;
using cuda::DeviceScope;
using cuda::LaunchTable;
using cuda::to_status;

// Streams share queues of the hardware, 8 by default, in which a wait holds up what other streams put behind it: 8
// ranks that ran ahead, each on a stream, hung on an H200 with 8, and did not with 32. CUDA reads the variable when it
// is first used. Set when the program or library is loaded: others may read the environment later.
[[gnu::constructor]] void ask_for_queues() { (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

constexpr int kMaxDevices = 128;
// Made at once, since the driver may wait for blocked streams when it pins memory: 256 KiB.
constexpr size_t kWords = 4096;
// Of a plan's tables, that a lane has room for from the beginning: those of an all_gather of 64 ranks, and more.
constexpr size_t kTableBytes = 256 << 10;
// Where a kernel polls: how long past its limit it goes on before it gives up. The host ends the wait at the limit.
constexpr absl::Duration kSpinGrace = absl::Seconds(10);
constexpr uint64_t kForeverNs = ~uint64_t{0};

cudaStream_t native(DeviceDriver::StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(DeviceDriver::EventHandle event) { return static_cast<cudaEvent_t>(event); }

std::atomic<int64_t> launches = 0;

// The runtime needs more of a stack than a fiber may have when it loads code.
absl::Status on_a_thread(absl::FunctionRef<absl::Status()> body) {
  absl::Status status;
  std::thread thread([&] { status = body(); });
  thread.join();
  return status;
}

cudaError_t launch_reduces(const cuda::Signature& signature, const LaunchTable& table, unsigned blocks,
                           cudaStream_t stream) {
  if (is_complex(signature.dtype)) return cuda::launch_complex(signature, table, blocks, stream);
  if (signature.dtype == DType::kFloat16 || signature.dtype == DType::kBFloat16)
    return cuda::launch_halves(signature, table, blocks, stream);
  if (is_floating(signature.dtype)) return cuda::launch_floats(signature, table, blocks, stream);
  return cuda::launch_integers(signature, table, blocks, stream);
}

class CudaLane final : public DeviceDriver::Lane {
 public:
  CudaLane(int device, int processors) : device_(device), processors_(processors) {}
  // The stream's work still runs; nothing here is used by it once the lane is idle, and a lane that is not is lost.
  ~CudaLane() override {
    if (stream_ == nullptr) return;
    if (cudaStreamQuery(stream_) == cudaSuccess) {
      if (scratch_ != nullptr) (void)cudaFreeAsync(scratch_, stream_);
    }
    (void)cudaStreamDestroy(stream_);
  }

  absl::Status init() {
    const DeviceScope scope(device_);
    if (!scope.status().ok()) return scope.status();
    // Of the highest priority: the driver keeps such streams out of the hardware queues of ordinary ones, behind whose
    // blocked waits a kernel would else be stuck.
    int least = 0;
    int greatest = 0;
    if (absl::Status status =
            to_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
        !status.ok())
      return status;
    const absl::Status made = to_status(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                                        "cudaStreamCreateWithPriority");
    return made.ok() ? grow(kTableBytes) : made;
  }

  absl::Status wait_event(DeviceDriver::EventHandle event) override {
    return to_status(cudaStreamWaitEvent(stream_, event_of(event), 0), "cudaStreamWaitEvent");
  }

  absl::Status run(KernelPlan& plan) override {
    const DeviceScope scope(device_);
    if (!scope.status().ok()) return scope.status();
    const cuda::Tables tables = cuda::make_tables(plan);
    const bool far = std::any_of(tables.batches.begin(), tables.batches.end(),
                                 [](const Batch& batch) { return batch.bytes > cuda::kNearBytes; });
    if (far) {
      if (absl::Status fetched = fetch(tables.bytes); !fetched.ok()) return fetched;
    }
    if (table_ == nullptr) table_ = std::make_unique<LaunchTable>();
    for (const Batch& batch : tables.batches) {
      LaunchTable& table = *table_;
      const bool near = batch.bytes <= cuda::kNearBytes;
      table.far = near ? nullptr : static_cast<const unsigned char*>(scratch_) + batch.offset;
      table.tiles = batch.tiles;
      table.entries = batch.entries;
      if (near) std::memcpy(table.near, tables.bytes.data() + batch.offset, batch.bytes);
      const auto blocks = static_cast<unsigned>(std::min<int64_t>(batch.tiles, int64_t{8} * processors_));
      const cudaError_t launched = batch.copies ? cuda::launch_copies(table, blocks, stream_)
                                                : launch_reduces(batch.signature, table, blocks, stream_);
      if (absl::Status status = to_status(launched, batch.copies ? "launch of copies" : "launch of reductions");
          !status.ok())
        return status;
      launches.fetch_add(1, std::memory_order_relaxed);
    }
    return absl::OkStatus();
  }

  absl::Status call_host(void (*function)(void*), void* argument) override {
    return to_status(cudaLaunchHostFunc(stream_, function, argument), "cudaLaunchHostFunc");
  }

  absl::Status health() override {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaErrorNotReady) (void)cudaGetLastError();
    return error == cudaErrorNotReady ? absl::OkStatus() : to_status(error, "kernel");
  }

 private:
  // Brings the tables of a large plan to the device. Not with a copy: a blocked stream's copies may hold up the copy
  // engine.
  absl::Status fetch(const std::vector<unsigned char>& bytes) {
    const size_t size = (bytes.size() + 15) / 16 * 16;
    if (size > capacity_) {
      if (absl::Status grown = grow(std::max(size, 2 * capacity_)); !grown.ok()) return grown;
    }
    std::memcpy(staging_, bytes.data(), bytes.size());
    void* seen = nullptr;
    if (absl::Status status = to_status(cudaHostGetDevicePointer(&seen, staging_, 0), "cudaHostGetDevicePointer");
        !status.ok())
      return status;
    launches.fetch_add(1, std::memory_order_relaxed);
    return to_status(cuda::launch_fetch(scratch_, seen, size, stream_), "launch of fetch");
  }

  // To `wanted` bytes. The lane is idle, so nothing uses the old memory; that of the host stays all the same, since to
  // free it is to wait for all streams of the device.
  absl::Status grow(size_t wanted) {
    if (scratch_ != nullptr) (void)cudaFreeAsync(scratch_, stream_);
    scratch_ = staging_ = nullptr;
    capacity_ = 0;
    absl::Status made = to_status(cudaMallocAsync(&scratch_, wanted, stream_), "cudaMallocAsync");
    if (made.ok()) made = to_status(cudaHostAlloc(&staging_, wanted, cudaHostAllocMapped), "cudaHostAlloc");
    if (made.ok()) capacity_ = wanted;
    return made;
  }

  const int device_;
  const int processors_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<LaunchTable> table_;  // too large for a fiber's stack
  void* scratch_ = nullptr;             // device memory
  void* staging_ = nullptr;             // pinned host memory
  size_t capacity_ = 0;                 // of both
};

class CudaDriver final : public DeviceDriver {
 public:
  // Loads the device's code and makes what is taken later, the first time: later both could have to wait for blocked
  // streams.
  absl::Status prepare(int device) {
    if (device < 0 || device >= kMaxDevices) return invalid_argument("CUDA: there is no device ", device);
    std::atomic<bool>& ready = ready_[static_cast<size_t>(device)];
    if (ready.load(std::memory_order_acquire)) return absl::OkStatus();
    internal::OrderedMutexLock lock(&mu_);
    if (ready.load(std::memory_order_acquire)) return absl::OkStatus();
    absl::Status loaded = on_a_thread([&] { return load(device); });
    if (loaded.ok()) ready.store(true, std::memory_order_release);
    return loaded;
  }

  absl::StatusOr<bool> idle(StreamHandle stream) override {
    return is_over(cudaStreamQuery(native(stream)), "cudaStreamQuery");
  }
  absl::Status record(EventHandle event, StreamHandle stream) override {
    return to_status(cudaEventRecord(event_of(event), native(stream)), "cudaEventRecord");
  }
  absl::StatusOr<bool> passed(EventHandle event) override {
    return is_over(cudaEventQuery(event_of(event)), "cudaEventQuery");
  }
  absl::Status wait_event(StreamHandle stream, EventHandle event) override {
    return to_status(cudaStreamWaitEvent(native(stream), event_of(event), 0), "cudaStreamWaitEvent");
  }

  absl::Status wait_word(StreamHandle stream, ControlWord* word, absl::Duration limit) override {
    void* seen = nullptr;
    if (absl::Status status = to_status(cudaHostGetDevicePointer(&seen, word, 0), "cudaHostGetDevicePointer");
        !status.ok())
      return status;
    int device = 0;
    if (absl::Status status = to_status(cudaStreamGetDevice(native(stream), &device), "cudaStreamGetDevice");
        !status.ok())
      return status;
    if (absl::Status ready = prepare(device); !ready.ok()) return ready;
    const DeviceScope scope(device);
    if (!scope.status().ok()) return scope.status();
    if (stream_wait_ != nullptr && !polls_.load(std::memory_order_relaxed)) {
      const CUresult result =
          stream_wait_(native(stream), reinterpret_cast<CUdeviceptr>(seen), 1, CU_STREAM_WAIT_VALUE_EQ);
      if (result == CUDA_SUCCESS) return absl::OkStatus();
      if (result != CUDA_ERROR_NOT_SUPPORTED) {
        return make_error(ErrorKind::kCollectiveError, "CUDA: cuStreamWaitValue32: error ", static_cast<int>(result));
      }
      polls_.store(true, std::memory_order_relaxed);
    }
    const uint64_t limit_ns = limit == absl::InfiniteDuration()
                                  ? kForeverNs
                                  : static_cast<uint64_t>(absl::ToInt64Nanoseconds(limit + kSpinGrace));
    return to_status(cuda::launch_spin(static_cast<unsigned*>(seen), limit_ns, native(stream)), "launch of spin");
  }

 protected:
  absl::StatusOr<EventHandle> make_event(int device) override {
    const DeviceScope scope(device);
    if (!scope.status().ok()) return scope.status();
    cudaEvent_t event = nullptr;
    if (absl::Status made = to_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
        !made.ok())
      return made;
    return static_cast<EventHandle>(event);
  }

  absl::StatusOr<std::shared_ptr<Lane>> make_lane(int device) override {
    int processors = 0;
    if (absl::Status asked = to_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                                       "cudaDeviceGetAttribute");
        !asked.ok())
      return asked;
    auto lane = std::make_shared<CudaLane>(device, processors);
    if (absl::Status made = lane->init(); !made.ok()) return made;
    return lane;
  }

  absl::StatusOr<std::vector<ControlWord*>> make_words(int device) override {
    const DeviceScope scope(device);
    if (!scope.status().ok()) return scope.status();
    void* memory = nullptr;
    if (absl::Status made =
            to_status(cudaHostAlloc(&memory, kWords * sizeof(ControlWord), cudaHostAllocMapped | cudaHostAllocPortable),
                      "cudaHostAlloc");
        !made.ok())
      return made;
    std::vector<ControlWord*> words(kWords);
    for (size_t i = 0; i < kWords; ++i) words[i] = new (static_cast<ControlWord*>(memory) + i) ControlWord();
    return words;
  }

 private:
  static absl::StatusOr<bool> is_over(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotReady) return to_status(error, what);
    (void)cudaGetLastError();  // no error, and not to be found by the next caller that asks for one
    return false;
  }

  absl::Status load(int device) {
    if (absl::Status set = to_status(cudaSetDevice(device), "cudaSetDevice"); !set.ok()) return set;
    for (cudaError_t (*const load)() :
         {&cuda::load_copies, &cuda::load_floats, &cuda::load_halves, &cuda::load_complex, &cuda::load_integers}) {
      if (absl::Status loaded = to_status(load(), "loading kernels"); !loaded.ok()) return loaded;
    }
    if (stream_wait_ == nullptr) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
      const cudaError_t asked =
          cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 11070, cudaEnableDefault, &result);
      if (asked == cudaSuccess && result == cudaDriverEntryPointSuccess)
        stream_wait_ = reinterpret_cast<PFN_cuStreamWaitValue32_v11070>(found);
    }
    return fill(device);
  }

  internal::OrderedMutex mu_{internal::LockLevel::kDeviceCode};
  std::array<std::atomic<bool>, kMaxDevices> ready_ = {};
  PFN_cuStreamWaitValue32_v11070 stream_wait_ = nullptr;  // written before the first device is known
  std::atomic<bool> polls_ = false;                       // the device cannot wait for a word: a kernel does
};

// The one driver of this process: there is one CUDA context for a device and process. Never destroyed, since the device
// may look at its memory until the process ends.
const std::shared_ptr<CudaDriver>& the_driver() {
  static const auto* const driver = new std::shared_ptr<CudaDriver>(std::make_shared<CudaDriver>());
  return *driver;
}

}  // namespace

int64_t internal::cuda::launches_made() { return launches.load(std::memory_order_relaxed); }

std::string cuda_missing() {
  int count = 0;
  const absl::Status asked =
      on_a_thread([&count] { return to_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount"); });
  if (!asked.ok()) return message_of(asked);
  return count > 0 ? "" : "CUDA: there is no device";
}

namespace {

absl::Status prepared(int device) {
  static const std::string missing = cuda_missing();
  return missing.empty() ? the_driver()->prepare(device) : make_error(ErrorKind::kCollectiveError, missing);
}

// The streams that a world is likely to take: made by the first of its ranks while the others wait, since a rank that
// goes on may block one.
struct ReservedStreams {
  absl::Status status;
};

absl::Status reserved(WorldState& world, int device) {
  const auto reserve = [&] {
    return std::make_shared<ReservedStreams>(cuda::reserve_streams(device, 2 * world.size() + 1));
  };
  return world.shared<ReservedStreams>(absl::StrCat("cuda streams ", device), reserve, WorldState::Maker::kSame)
      ->status;
}

}  // namespace

void internal::cuda::prepare(int device) {
  throw_if_error(prepared(device), {.rank = -1, .group = {}, .op = "use_cuda"});
}

void use_cuda(RankContext& rank, int device) {
  WorldState& world = state_of(rank).world();
  absl::Status ready = prepared(device);
  if (ready.ok()) ready = reserved(world, device);
  if (!ready.ok()) {
    throw_dist_error(prefixed(ready, "rank ", rank.rank(), ": "), {.rank = rank.rank(), .group = {}, .op = "use_cuda"});
  }
  use_device(world, the_driver());
}

}  // namespace rankloom
