#pragma once

#include <utility>

#include "sim/rank_mutex.h"

namespace rankloom {

template <typename T>
class RankPtr;

// Base of what the members of a group share through RankPtr: it goes with the last of them.
class RankShared {
 public:
  RankShared(const RankShared&) = delete;
  RankShared& operator=(const RankShared&) = delete;

 protected:
  // `scheduler` may be null: an object that belongs to no world.
  explicit RankShared(const Scheduler* scheduler) : shares_(scheduler) {}
  ~RankShared() = default;

 private:
  template <typename T>
  friend class RankPtr;
  mutable RankCounter shares_;
};

// A share of a T, which is a RankShared: as std::shared_ptr, but where ranks are fibers, which take and give back a share with
// every call, that costs no atomic step. Thread-safety: as RankMutex.
template <typename T>
class RankPtr {
 public:
  RankPtr() = default;
  explicit RankPtr(T* object) : object_(object) {
    if (object_ != nullptr) object_->shares_.add(1);
  }
  RankPtr(const RankPtr& other) : RankPtr(other.object_) {}
  RankPtr(RankPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  RankPtr& operator=(RankPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RankPtr() {
    if (object_ != nullptr && object_->shares_.add(-1) == 0) delete object_;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace rankloom
