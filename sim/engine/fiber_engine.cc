#include "sim/engine/fiber_engine.h"

#include <cxxabi.h>
#include <signal.h>
#include <unistd.h>

#include <boost/fiber/algo/algorithm.hpp>
#include <boost/fiber/context.hpp>
#include <boost/fiber/fiber.hpp>
#include <boost/fiber/operations.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rankloom/error.h"
#include "sim/base/crash.h"
#include "sim/base/dist_error.h"
#include "sim/base/exception_text.h"
#include "sim/base/forked_run.h"
#include "sim/base/library_scope.h"
#include "sim/base/sanitizers.h"
#include "sim/base/thread_stack.h"
#include "sim/engine/fiber_hook.h"
#include "sim/engine/stack_pool.h"
#include "sim/engine/thread_pool.h"

#ifdef _LIBCPP_VERSION
// libc++abi has the function, as the ABI wants it, and declares it in no header.
namespace __cxxabiv1 {
struct __cxa_eh_globals;
extern "C" __cxa_eh_globals* __cxa_get_globals();
}  // namespace __cxxabiv1
#endif

namespace rankloom::internal {
namespace {

namespace bf = boost::fibers;

// The thread's exceptions in flight, as the Itanium C++ ABI keeps them (section 2.2.2). Fibers share their thread's.
struct ExceptionGlobals {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

ExceptionGlobals& exception_globals() { return *reinterpret_cast<ExceptionGlobals*>(abi::__cxa_get_globals()); }

}  // namespace

// The engine's state of a fiber, beside its context. A fiber runs one task after another, of one world after another:
// making and ending one costs more than many tasks do.
struct FiberState {
  bf::context* context = nullptr;
  Task* task = nullptr;  // null: it is to end
  void (*entry)(Task&) = nullptr;
  ExceptionGlobals globals;
  int saved_errno = 0;
  StackPool::Stack stack;      // empty for the host
  void* fake_stack = nullptr;  // ASan's shadow of this fiber's frames while it is stopped
  const void* asan_bottom = nullptr;
  size_t asan_size = 0;
  void* tsan_fiber = nullptr;  // TSan's state of this fiber, as of a thread
};

// exit() destroys the objects of its thread first. Called by a rank, it would so take Boost's record of the fibers from
// under them, and the host would go on as if the run were over. An object of the thread that is made later, as
// a process of a search has one, is destroyed before this one.
struct ExitWatch {
  ~ExitWatch() {
    const Task* const task = Task::current();
    if (task == nullptr) return;
    std::fprintf(stderr,
                 "rankloom: rank %d called exit() on a fiber: the process ends with code 1, want it called after the "
                 "run, or the ranks to be threads\n",
                 task->info.rank);
    write_buffers();
    _exit(EXIT_FAILURE);
  }
};

// One per pool thread that ever ran fibers: Boost.Fiber's scheduler of that thread, which asks us for the fiber to run.
struct FiberThread {
  class Algorithm final : public bf::algo::algorithm {
   public:
    explicit Algorithm(FiberThread* thread) : thread_(*thread) {}

    void awakened(bf::context* context) noexcept override {
      if (context->is_context(bf::type::dispatcher_context)) thread_.dispatcher = context;
      if (thread_.making != nullptr && context->is_context(bf::type::worker_context)) thread_.making->context = context;
    }

    // Asked when a fiber ends, for which the dispatcher is next: it frees the fiber and asks in turn. Then the host
    // goes on, which told the fiber to end.
    bf::context* pick_next() noexcept override {
      if (bf::context::active() == thread_.dispatcher) {
        FiberThread::arrive_in_dispatcher();
        FiberThread::leave(nullptr, thread_.host_state);
        return thread_.host_state.context;
      }
      thread_.leave_to_dispatcher();
      return thread_.dispatcher;
    }
    bool has_ready_fibers() const noexcept override { return false; }
    void suspend_until(const std::chrono::steady_clock::time_point&) noexcept override {
      fatal("the fiber dispatcher has nobody to run");
    }
    void notify() noexcept override {}

   private:
    FiberThread& thread_;
  };

  FiberThread() : globals(exception_globals()), error_number(errno) {
    host_state.context = bf::context::active();
    if (__tsan_get_current_fiber != nullptr) host_state.tsan_fiber = __tsan_get_current_fiber();
    host.context = host_state.context;
    host.fiber_state = &host_state;
    bf::context::active()->get_scheduler()->set_algo(new Algorithm(this));
    signal_stack = use_signal_stack();
    CrashFacts::overflow.store(&overflow_text);
  }

  static FiberThread& of_this_thread() {
    static thread_local FiberThread* thread = nullptr;
    if (thread == nullptr) thread = new FiberThread;  // as long as the pool thread: until the process ends
    static thread_local const ExitWatch watch;  // made after Boost's record of the thread, so that it goes before that
    (void)watch;
    current = thread;
    return *thread;
  }

  // ASan must know of every switch before and after it, or a later throw is reported as an overflow. TSan must know of
  // it, or the calls of all fibers make one stack.
  // `state` is where the leaving fiber's fake stack is kept; null if it never comes back.
  static void leave(FiberState* state, const FiberState& to) {
    if (__sanitizer_start_switch_fiber != nullptr)
      __sanitizer_start_switch_fiber(state != nullptr ? &state->fake_stack : nullptr, to.asan_bottom, to.asan_size);
    switch_tsan(to);
  }
  // The leaving fiber has ended.
  void leave_to_dispatcher() const {
    if (__sanitizer_start_switch_fiber != nullptr) {
      // Boost puts the dispatcher's control block at the top of its default stack.
      const size_t size = boost::context::stack_traits::default_size();
      __sanitizer_start_switch_fiber(nullptr, reinterpret_cast<const char*>(dispatcher) - size, size);
    }
    switch_tsan(host_state);
  }
  // The dispatcher's code is Boost's: the first that we see of it is its question for the next fiber.
  static void arrive_in_dispatcher() {
    if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
  }
  void arrive(FiberState* state) {
    if (__sanitizer_finish_switch_fiber == nullptr) return;
    const void* from_bottom = nullptr;
    size_t from_size = 0;
    __sanitizer_finish_switch_fiber(state->fake_stack, &from_bottom, &from_size);
    state->fake_stack = nullptr;
    if (host_state.asan_bottom == nullptr && state != &host_state) {  // the first switch of all came from the host
      host_state.asan_bottom = from_bottom;
      host_state.asan_size = from_size;
    }
  }
  static void switch_tsan(const FiberState& to) {
    if (__tsan_get_current_fiber == nullptr) return;  // the program has no ThreadSanitizer
    if (to.tsan_fiber != nullptr && to.tsan_fiber != __tsan_get_current_fiber())
      __tsan_switch_to_fiber(to.tsan_fiber, 0);
  }
  // TSan counts a fiber as a thread, of which it takes some 8,000. Fibers without a state of their own share the
  // host's.
  void* new_tsan_fiber() {
    static constexpr int kMost = 2000;
    if (__tsan_create_fiber == nullptr || tsan_fibers >= kMost) return host_state.tsan_fiber;
    ++tsan_fibers;
    return __tsan_create_fiber(0);
  }
  void end_tsan_fiber(const FiberState& fiber) {
    if (fiber.tsan_fiber == host_state.tsan_fiber) return;
    --tsan_fibers;
    __tsan_destroy_fiber(fiber.tsan_fiber);
  }

  // Whether a fiber that faulted at `at` had come below its stack. A large local is not written from its top on, and
  // may reach below the guard: then the stack pointer tells.
  bool overflowed(const StackPool::Stack& stack, const char* at, const char* pointer) const {
    const char* const bottom = static_cast<const char*>(stack.bottom);
    if (at < bottom && at >= bottom - stack.guard) return true;
    const char* const signals = static_cast<const char*>(signal_stack.ss_sp);
    const bool in_handler = pointer >= signals && pointer < signals + signal_stack.ss_size;
    return pointer != nullptr && pointer < bottom && !in_handler;
  }
  // A fault in the guard below a stack, or with a stack pointer that has left the stack, is an overflow of it.
  static bool overflow_text(const Task& task, const siginfo_t& info, const void* context, char* text, size_t size) {
    const auto* const state = static_cast<const FiberState*>(task.fiber_state);
    if (current == nullptr || state == nullptr ||
        !current->overflowed(state->stack, static_cast<const char*>(info.si_addr), stack_pointer(context)))
      return false;
    std::snprintf(text, size, "overflow of the fiber's stack of %zu bytes; larger ones: WorldOptions::stack_bytes",
                  state->stack.asked());
    return true;
  }

  static inline thread_local FiberThread* current = nullptr;
  static inline thread_local bool lent = false;  // this thread runs no fibers now, and may

  // This thread's, which all of its fibers share.
  ExceptionGlobals& globals;
  int& error_number;
  Task host;
  FiberState host_state;
  bf::context* dispatcher = nullptr;
  // Whether the program has a sanitizer that wants to know of switches.
  const bool announces = __sanitizer_start_switch_fiber != nullptr || __tsan_switch_to_fiber != nullptr;
  int tsan_fibers = 0;
  stack_t signal_stack{};
  FiberState* making = nullptr;  // the fiber that is being made
  Task* next = nullptr;          // was unparked and runs when the running one parks or ends
  std::vector<FiberState*> idle;
  StackPool stacks;

  // Fibers for the next world. Fibers with other stacks than the world wants end.
  void begin(size_t stack_bytes, bool guarded, int expected) {
    if (!stacks.fits(stack_bytes, guarded)) end_idle();
    stacks.begin(stack_bytes, guarded, expected);
  }
  // After a world, whose fibers are idle: keeps them for the next, unless that may be another thread's and want guards.
  void end_world() {
    if (stacks.may_be_kept()) return;
    end_idle();
    stacks.release();
  }
  void end_idle() {
    for (FiberState* const fiber : idle) {
      fiber->task = nullptr;
      switch_to(host_state, *fiber);
      end_tsan_fiber(*fiber);
      delete fiber;
    }
    idle.clear();
  }

  // A fiber that waits for its first task or for another.
  FiberState* take();

  // Stops the fiber that runs and lets another one go on; returns when it is this one's turn again.
  void switch_to(FiberState& from, FiberState& to) {
    if (announces) [[unlikely]]
      return announce_switch(from, to);
    to.context->resume();
  }
  [[gnu::noinline]] void announce_switch(FiberState& from, const FiberState& to) {
    leave(&from, to);
    to.context->resume();
    arrive(&from);
  }

  // The same for a task's fiber, with what belongs to the task beside the stack.
  [[gnu::always_inline]] void pass(Task& from, FiberState& to) {
    FiberState& state = *static_cast<FiberState*>(from.fiber_state);
    check_stack(state, __builtin_frame_address(0));
    const FiberHook* const hook = fiber_hook.load(std::memory_order_acquire);
    if (hook != nullptr) [[unlikely]]
      hook->leave(from);
    state.globals = globals;
    state.saved_errno = error_number;
    from.frame = __builtin_frame_address(0);
    switch_to(state, to);
    globals = state.globals;
    error_number = state.saved_errno;
    Task::set_current(&from);
    if (hook != nullptr) [[unlikely]]
      hook->arrive(from);
  }

  // The body of a fiber.
  void run_tasks(FiberState& self) {
    arrive(&self);
    const LibraryScope library;
    while (self.task != nullptr) {
      Task& task = *self.task;
      Task::set_current(&task);
      globals = {};
      error_number = 0;
      self.entry(task);
      check_stack(self, self.stack.bottom);
      Task::set_current(nullptr);
      task.fiber_state = nullptr;
      idle.push_back(&self);
      Task* const follows = std::exchange(next, nullptr);
      if (follows == nullptr) fatal("a fiber ended and nobody was unparked");
      switch_to(self, *static_cast<FiberState*>(follows->fiber_state));
    }
  }

  // `frame`: where the fiber's stack has come to, below its end if a large local leapt over the guard or the canary.
  static void check_stack(const FiberState& fiber, const void* frame) {
    if (StackPool::intact(fiber.stack) && frame >= fiber.stack.bottom) [[likely]]
      return;
    fatal(absl::StrCat("overflow of the fiber's stack of ", fiber.stack.asked(),
                       " bytes; larger ones: WorldOptions::stack_bytes"));
  }
};

namespace {

// Boost's name for what gives stacks.
class StackSource {
 public:
  StackSource(StackPool* pool, StackPool::Stack stack) : pool_(pool), stack_(stack) {}
  boost::context::stack_context allocate() {
    boost::context::stack_context context;
    context.sp = stack_.top;
    context.size = stack_.size();
    return context;
  }
  void deallocate(boost::context::stack_context& context) { pool_->give(context.sp); }

 private:
  StackPool* pool_;
  StackPool::Stack stack_;
};

}  // namespace

FiberState* FiberThread::take() {
  if (!idle.empty()) {
    FiberState* const fiber = idle.back();
    idle.pop_back();
    return fiber;
  }
  const StackPool::Stack stack = stacks.take();
  auto* const made = new FiberState;
  made->stack = stack;
  made->asan_bottom = stack.bottom;
  made->asan_size = stack.size();
  made->tsan_fiber = new_tsan_fiber();
  making = made;
  bf::fiber(bf::launch::post, std::allocator_arg, StackSource(&stacks, stack), [this, made] {
    run_tasks(*made);
  }).detach();
  making = nullptr;
  return made;
}

void FiberEngine::run_host(absl::FunctionRef<void()> main) {
  const auto run = [&] {
    thread_ = &FiberThread::of_this_thread();
    thread_->begin(stack_bytes_, stacks_ <= StackPool::kMaxGuarded, stacks_);
    main();
    thread_->end_world();
  };
  if (FiberThread::lent) {  // by with_fiber_thread()
    FiberThread::lent = false;
    run();
    FiberThread::lent = true;
    return;
  }
  Parker done;
  ThreadPool::of_fibers().start("rankloom fibers", [&] {
    run();
    done.unpark();
  });
  done.park(Deadline::kNever);
}

void with_fiber_thread(absl::FunctionRef<void()> body) {
  Parker done;
  std::exception_ptr thrown;
  ThreadPool::of_fibers().start("rankloom fibers", [&] {
    FiberThread::lent = true;
    try {
      body();
    } catch (...) {
      thrown = handled_exception();
    }
    FiberThread::lent = false;
    done.unpark();
  });
  done.park(Deadline::kNever);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void FiberEngine::attach(Task&) { fatal("a thread cannot become a fiber"); }

void FiberEngine::spawn(Task& task, void (*entry)(Task&)) {
  FiberState* const fiber = thread_->take();
  fiber->task = &task;
  fiber->entry = entry;
  task.fiber_state = fiber;
  task.context = fiber->context;
  task.frame = nullptr;
}

void FiberEngine::park(Task& task_or_host) {
  FiberThread& thread = *thread_;
  Task& task = task_or_host.id < 0 ? thread.host : task_or_host;
  Task* const next = thread.next;
  thread.next = nullptr;
  if (next == &task) return;
  if (next == nullptr) fatal("a fiber parked and nobody was unparked");
  FiberState& to = *static_cast<FiberState*>(next->fiber_state);
  if (&task != &thread.host) return thread.pass(task, to);
  const ExceptionGlobals globals = thread.globals;
  const int saved_errno = thread.error_number;
  thread.switch_to(thread.host_state, to);
  thread.globals = globals;
  thread.error_number = saved_errno;
  Task::set_current(nullptr);
}

void FiberEngine::pass(Task& from, Task& to) {
  thread_->pass(from, *static_cast<FiberState*>((to.id < 0 ? thread_->host : to).fiber_state));
}

void FiberEngine::prefetch(const Task& task, Fetch step) {
  if (step == Fetch::kPointers) {
    prefetch_lines(task.context, 0, 64);
    prefetch_lines(task.fiber_state, 0, sizeof(FiberState));
  } else if (task.frame != nullptr) {
    prefetch_lines(task.frame, -kBelowFrame, kAboveFrame);
  }
}

void FiberEngine::unpark(Task& task) { thread_->next = task.id < 0 ? &thread_->host : &task; }

}  // namespace rankloom::internal
