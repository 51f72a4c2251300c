#include "collectives/streams/wanted_stream.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sim/base/lock_order.h"

namespace rankloom::internal {

namespace {

// Streams of several worlds and ranks may wait for each other.
OrderedMutex& wants_mu() {
  static OrderedMutex& mu = *new OrderedMutex(LockLevel::kStreamWants);  // events of the program may go after statics
  return mu;
}

void remove_one(std::vector<WantedStream*>* from, WantedStream* what) {
  from->erase(std::find(from->begin(), from->end(), what));
}

}  // namespace

class WantedStream::Want {
 public:
  Want(std::shared_ptr<WantedStream> by, std::shared_ptr<WantedStream> of) : by_(std::move(by)), of_(std::move(of)) {
    OrderedMutexLock lock(&wants_mu());
    by_->wants_.push_back(of_.get());
    of_->wanted_by_.push_back(by_.get());
  }
  ~Want() {
    {
      OrderedMutexLock lock(&wants_mu());
      remove_one(&by_->wants_, of_.get());
      remove_one(&of_->wanted_by_, by_.get());
    }
    of_->give_up_unwanted();
  }
  Want(const Want&) = delete;
  Want& operator=(const Want&) = delete;

 private:
  const std::shared_ptr<WantedStream> by_;
  const std::shared_ptr<WantedStream> of_;
};

WantedStream::WantedStream(absl::AnyInvocable<void()> give_up) : give_up_(std::move(give_up)) {}

void WantedStream::let_go() {
  {
    OrderedMutexLock lock(&wants_mu());
    held_ = false;
  }
  give_up_unwanted();
}

std::shared_ptr<const void> WantedStream::want(const std::shared_ptr<WantedStream>& by) {
  if (by.get() == this) return nullptr;
  {
    OrderedMutexLock lock(&wants_mu());
    if (gone_) return nullptr;
  }
  return std::make_shared<const Want>(by, shared_from_this());
}

// This stream and, where it is not wanted, those that it wants in turn.
void WantedStream::give_up_unwanted() {
  std::vector<std::shared_ptr<WantedStream>> unwanted;
  {
    OrderedMutexLock lock(&wants_mu());
    std::vector<WantedStream*> looked_at = {this};
    for (size_t i = 0; i < looked_at.size(); ++i) {
      WantedStream& stream = *looked_at[i];
      if (stream.gone_ || stream.is_wanted()) continue;
      stream.gone_ = true;
      unwanted.push_back(stream.shared_from_this());
      looked_at.insert(looked_at.end(), stream.wants_.begin(), stream.wants_.end());
    }
  }
  for (const std::shared_ptr<WantedStream>& stream : unwanted) stream->give_up_();
}

bool WantedStream::is_wanted() const {
  std::vector<const WantedStream*> looked_at = {this};
  for (size_t i = 0; i < looked_at.size(); ++i) {
    if (looked_at[i]->held_) return true;
    for (const WantedStream* const by : looked_at[i]->wanted_by_) {
      if (!by->gone_ && std::find(looked_at.begin(), looked_at.end(), by) == looked_at.end()) looked_at.push_back(by);
    }
  }
  return false;
}

}  // namespace rankloom::internal
