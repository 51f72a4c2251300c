#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace rankloom::internal {

class WorkState;

struct Site;

// A scope in which this thread completes works. No code of users runs within, and no destructor of a handle, of a work
// or of what calls hold: those would find works that are neither done nor to be withdrawn, and wait for this very
// thread. Actions that become due are put off until the outermost Completion ends; those that only wake others come
// first, since the rest may wait for whom they wake. No scheduling point lies in one.
class Completion {
 public:
  Completion() : outermost_(current_ == nullptr) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdangling-pointer"  // close(), in the destructor too, takes it back
#endif
    if (outermost_) current_ = this;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
  }
  ~Completion() { close(); }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Ends this Completion; the outermost then runs all that was put off, and rethrows what one of the actions threw.
  void end() {
    close();
    if (due_ != nullptr) [[unlikely]]
      run_due();
  }

  // Whether this thread is in one.
  static bool open() { return current_ != nullptr; }
  // Runs `action` when the outermost has ended; now, if none is open. An action may wait, and be the code of users.
  static void run_later(absl::AnyInvocable<void()> action);
  // The same for one that only wakes others, and waits for nothing.
  static void wake_later(absl::AnyInvocable<void()> action);
  // Lets go of `pointer` when the outermost has ended; now, if none is open.
  template <typename T>
  static void drop(std::shared_ptr<T> pointer) {
    if (current_ != nullptr && pointer != nullptr) [[unlikely]]
      run_later([pointer = std::move(pointer)] {});
  }

 private:
  using Actions = std::vector<absl::AnyInvocable<void()>>;
  struct Nest;
  struct Due {
    Actions wake;
    Actions others;
  };
  void close() {
    if (current_ == this) current_ = nullptr;
  }
  static void put_off(Actions Due::*list, absl::AnyInvocable<void()> action);
  void run_due();

  const bool outermost_;
  std::unique_ptr<Due> due_;  // of the outermost

  static inline thread_local Completion* current_ = nullptr;
};

// A scheduling point of the calling task. Before a task changes what others see, so that they may come first; and
// behind what has its own rank's callbacks run, so that these may come before the task goes on. None on a thread of no
// world, on a task that completes works, which must not wait, and in an aborted world, whose listeners may come here.
void point_of_caller(const Site& site);

// A listener that is told of the end of a work just before the work is done, on the completing thread: for works that
// are made of others. The work holds it until then. The listener does not wait, and owns no handle on the work.
class Dependant {
 public:
  virtual ~Dependant() = default;
  virtual void ended(const absl::Status& status) = 0;
};

// Tells an explored run of a completion that finds a work gone, `object` by name: it would have ended the work.
void ended_too_late(uint64_t object);

// A function of a work that is told how another one ended.
using Told = void(const std::shared_ptr<WorkState>&, const absl::Status&);

// Tells `work`, if it is still there, by `told`: a Told, or a method of T. T is a WorkState.
template <typename T, typename By>
std::unique_ptr<Dependant> tell(std::weak_ptr<T> work, By told) {
  struct Tell final : Dependant {
    Tell(std::weak_ptr<T>&& work, By told)
        : object(work.lock()->explored_object()), work(std::move(work)), told(told) {}
    void ended(const absl::Status& status) override {
      std::shared_ptr<T> alive = work.lock();
      if (alive == nullptr) {
        if (object != 0) [[unlikely]]
          ended_too_late(object);
        return;
      }
      if constexpr (std::is_member_function_pointer_v<By>) {
        (alive.get()->*told)(status);
      } else {
        told(alive, status);
      }
      Completion::drop(std::move(alive));
    }
    const uint64_t object;
    const std::weak_ptr<T> work;
    const By told;
  };
  return std::make_unique<Tell>(std::move(work), told);
}

// Keeps `work` until the end that the listener is told of, which `told` is told of, if given. T is a WorkState.
template <typename T>
std::unique_ptr<Dependant> keep(std::shared_ptr<T> work, Told* told = nullptr) {
  struct Keep final : Dependant {
    Keep(std::shared_ptr<T>&& work, Told* told) : work(std::move(work)), told(told) {}
    void ended(const absl::Status& status) override {
      if (told != nullptr) told(work, status);
      Completion::drop(std::move(work));
    }
    std::shared_ptr<T> work;
    Told* const told;
  };
  return std::make_unique<Keep>(std::move(work), told);
}

}  // namespace rankloom::internal
