#pragma once

// Calls of tensors on a device, CUDA's or a test's: kernels of ours use them where they are, behind what the caller's
// stream holds.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/streams/device_stream.h"
#include "collectives/work/work_state.h"
#include "rankloom/rankloom.h"
#include "world/open_outputs.h"

namespace rankloom::bridge {

// Lets the calls of the rank's world use memory of a device: use_cuda(), or a test's.
using UseDevice = std::function<void(RankContext& rank, int device)>;
// Makes, while no stream is blocked, what ranks need of a device later: internal::cuda::prepare().
using PrepareDevice = std::function<void(int device)>;

// `use` null, as where the bridge was built without CUDA: tensors on devices go through memory of the host. Called
// before there are ranks.
void set_use_device(UseDevice use, PrepareDevice prepare = nullptr);

// Prepares the device whose tensors calls will take, if the process uses CUDA by now. A failure is left to the first
// call.
void prepare_device();

// Whether calls take the tensors of a device as they are. Not where there are several: ranks of a program for several
// GPUs have one each, and the tensors of all members of a call have to be on one.
bool calls_reach(c10::Device device);

// The device of the calling thread's work, which calls reach; null: there is none.
std::optional<c10::Device> current_device();

// The memory of a tensor that goes stays until all that is queued in the calling thread's stream then is done.
void keep_for_current_stream(const at::Tensor& tensor);

// A mark behind all that is queued in the calling thread's stream of a device, and a wait of that stream for one.
c10::Event mark_current_stream(c10::Device device);
void wait_in_current_stream(const c10::Event& mark);

// A stream of torch's. A call put on it begins behind what is queued there; the stream itself waits for the call only
// where wait_for() says so, as torch's Work.wait() does.
class TorchStream final : public internal::DeviceStream {
 public:
  using DeviceStream::DeviceStream;
  absl::StatusOr<rankloom::Work> issue(ProcessGroup& group, CollectiveCall&& call) override;
};

// The memory of a device that a call uses.
struct DeviceUses {
  using Range = internal::OpenOutputs::Range;
  std::vector<Range> reads, writes;

  // Whether calls with these uses may not change places.
  bool meets(const DeviceUses& other) const;
};

// The streams that the ranks of a job use, and their calls there. Thread-safety: all methods.
class DeviceStreams {
 public:
  explicit DeviceStreams(World* world) : world_(*world) {}

  // The calling thread's stream of `device`, as a stream of `rank`.
  // Errors: DistError(CollectiveError), with the device's words.
  std::shared_ptr<TorchStream> current(int rank, c10::Device device);
  // The same, of which a wait may block what is queued later; null: the thread has to wait. That is so for a stream
  // that several ranks use, as they do the default one: blocked for one rank, it would keep the others from what that
  // rank waits for. And where a schedule picks the next rank, which would not see that a rank waits for its stream.
  std::shared_ptr<TorchStream> to_block(int rank, c10::Device device);

  // Makes a call with these uses, which `rank` is about to make, begin behind those of its calls on their way that it
  // may not change places with: calls of a group of NCCL's come one behind the other, whether anybody waits or not.
  // Blocking: where to_block() is null, until those are done.
  void order(int rank, c10::Device device, const DeviceUses& uses, CodeSite code);
  // The rank has made it.
  void made(int rank, const DeviceUses& uses, const std::vector<rankloom::Work>& works);

 private:
  struct OnItsWay {
    std::shared_ptr<internal::WorkState> work;
    DeviceUses uses;
  };

  using Place = std::pair<int, void*>;  // device, the device's own stream

  World& world_;
  std::mutex mu_;
  std::map<std::pair<int, Place>, std::shared_ptr<TorchStream>> streams_;  // by rank and place
  std::map<Place, std::set<int>> users_;                                   // the ranks
  std::map<int, std::vector<OnItsWay>> on_their_way_;                      // by rank
};

}  // namespace rankloom::bridge
