#include "sim/fiber_engine.h"

#include <cxxabi.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <boost/fiber/algo/algorithm.hpp>
#include <boost/fiber/context.hpp>
#include <boost/fiber/fiber.hpp>
#include <boost/fiber/operations.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "sim/dist_error.h"
#include "sim/fiber_hook.h"
#include "sim/sanitizers.h"
#include "sim/stack_pool.h"
#include "sim/thread_pool.h"

#ifdef RANKLOOM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace rankloom {
namespace {

namespace bf = boost::fibers;

// What the Itanium C++ ABI keeps per thread about exceptions in flight (section 2.2.2). Fibers share their thread's.
struct ExceptionGlobals {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

ExceptionGlobals& exception_globals() { return *reinterpret_cast<ExceptionGlobals*>(abi::__cxa_get_globals()); }

}  // namespace

// What the engine keeps of a fiber beside its context.
struct FiberState {
  ExceptionGlobals globals;
  int saved_errno = 0;
  StackPool::Stack stack;      // empty for the host
  void* fake_stack = nullptr;  // ASan's shadow of this fiber's frames while it is stopped
  const void* asan_bottom = nullptr;
  size_t asan_size = 0;
};

// One per pool thread that ever ran fibers: Boost.Fiber's scheduler of that thread, which asks us who runs.
struct FiberThread {
  class Algorithm final : public bf::algo::algorithm {
   public:
    explicit Algorithm(FiberThread* thread) : thread_(*thread) {}

    void awakened(bf::context* context) noexcept override {
      if (context->is_context(bf::type::dispatcher_context)) thread_.dispatcher = context;
      if (thread_.spawning != nullptr && context->is_context(bf::type::worker_context))
        thread_.spawning->context = context;
    }

    // Asked when a fiber has ended (the next one was unparked before), when the host lets the dispatcher free ended fibers,
    // and by the dispatcher.
    bf::context* pick_next() noexcept override {
      if (Task* const next = thread_.next; next != nullptr) {
        thread_.next = nullptr;
        thread_.leave(nullptr, *next);
        return static_cast<bf::context*>(next->context);
      }
      if (bf::context::active() == thread_.dispatcher) {
        FiberThread::arrive_in_dispatcher();
        thread_.leave(nullptr, thread_.host);
        return static_cast<bf::context*>(thread_.host.context);
      }
      thread_.leave_to_dispatcher();
      return thread_.dispatcher;
    }
    bool has_ready_fibers() const noexcept override { return thread_.next != nullptr; }
    void suspend_until(const std::chrono::steady_clock::time_point&) noexcept override {
      fatal("the fiber dispatcher has nobody to run");
    }
    void notify() noexcept override {}

   private:
    FiberThread& thread_;
  };

  FiberThread() {
    host.context = bf::context::active();
    host.fiber_state = &host_state;
    bf::context::active()->get_scheduler()->set_algo(new Algorithm(this));
    install_overflow_handler();
  }

  static FiberThread& of_this_thread() {
    static thread_local FiberThread* thread = nullptr;
    if (thread == nullptr) thread = new FiberThread;  // as long as the pool thread: until the process ends
    current = thread;
    return *thread;
  }

  // ASan must know of every switch before and after it, or a later throw is reported as an overflow.
  // `state` is where the leaving fiber's fake stack is kept; null if it never comes back.
  void leave([[maybe_unused]] FiberState* state, [[maybe_unused]] Task& next) {
#ifdef RANKLOOM_ASAN
    const FiberState& to = *static_cast<FiberState*>(next.fiber_state);
    __sanitizer_start_switch_fiber(state != nullptr ? &state->fake_stack : nullptr, to.asan_bottom, to.asan_size);
#endif
  }
  void leave_to_dispatcher() {
#ifdef RANKLOOM_ASAN
    // Boost puts the dispatcher's control block at the top of its default stack.
    const size_t size = boost::context::stack_traits::default_size();
    __sanitizer_start_switch_fiber(&host_state.fake_stack, reinterpret_cast<const char*>(dispatcher) - size, size);
#endif
  }
  // The dispatcher's code is Boost's: the first that we see of it is its question who runs next.
  static void arrive_in_dispatcher() {
#ifdef RANKLOOM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  }
  void arrive([[maybe_unused]] FiberState* state) {
#ifdef RANKLOOM_ASAN
    const void* from_bottom = nullptr;
    size_t from_size = 0;
    __sanitizer_finish_switch_fiber(state->fake_stack, &from_bottom, &from_size);
    state->fake_stack = nullptr;
    if (host_state.asan_bottom == nullptr && state != &host_state) {  // the first switch of all came from the host
      host_state.asan_bottom = from_bottom;
      host_state.asan_size = from_size;
    }
#endif
  }

  // A fault in a guard page is an overflow of the stack above it: say whose, then die as usual.
  // ASan has its own handler and its own stack for it.
  static void install_overflow_handler() {
#ifndef RANKLOOM_ASAN
    // The handler needs a stack of its own.
    static constexpr size_t kSignalStack = 64 * 1024;
    stack_t alternative{};
    alternative.ss_sp = new char[kSignalStack];
    alternative.ss_size = kSignalStack;
    sigaltstack(&alternative, nullptr);
    static std::once_flag once;
    std::call_once(once, [] {
      struct sigaction action {};
      action.sa_sigaction = &FiberThread::on_fault;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
      sigaction(SIGSEGV, &action, &previous);
    });
#endif
  }
  static void on_fault(int signal, siginfo_t* info, void* context) {
    const Task* const task = Task::current();
    const auto* const state = task != nullptr ? static_cast<const FiberState*>(task->fiber_state) : nullptr;
    if (current != nullptr && state != nullptr && state->stack.guarded) {
      const char* const bottom = static_cast<const char*>(state->stack.bottom);
      const char* const at = static_cast<const char*>(info->si_addr);
      if (at < bottom && at >= bottom - 4096) {
        char text[200];
        const int size =
            std::snprintf(text, sizeof text,
                          "rankloom: fatal (rank %d): overflow of the fiber's stack of %zu bytes; larger ones: "
                          "WorldOptions::stack_bytes\n",
                          task->info.rank, state->stack.size());
        [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(size));
        std::abort();
      }
    }
    // Not ours: what was there before us decides.
    if (previous.sa_flags & SA_SIGINFO && previous.sa_sigaction != nullptr) {
      previous.sa_sigaction(signal, info, context);
      return;
    }
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
      previous.sa_handler(signal);
      return;
    }
    ::signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }

  static inline thread_local FiberThread* current = nullptr;
  static inline struct sigaction previous {};

  Task host;
  FiberState host_state;
  bf::context* dispatcher = nullptr;
  Task* spawning = nullptr;  // whose fiber is being made
  Task* next = nullptr;      // was unparked and runs when the running one parks or ends
  StackPool stacks;
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

void FiberEngine::run_host(absl::FunctionRef<void()> main) {
  Parker done;
  ThreadPool::shared().start("rankloom fibers", [&] {
    thread_ = &FiberThread::of_this_thread();
    thread_->stacks.begin(stack_bytes_, stacks_ <= StackPool::kMaxGuarded, stacks_);
    main();
    // Ended fibers are freed by Boost's dispatcher, which runs when the host has nobody else to run.
    bf::context::active()->suspend();
    thread_->arrive(&thread_->host_state);
    done.unpark();
  });
  done.park(Deadline::kNever);
}

void FiberEngine::attach(Task&) { fatal("a thread cannot become a fiber"); }

void FiberEngine::spawn(Task& task, void (*entry)(Task&)) {
  FiberThread* const thread = thread_;
  const StackPool::Stack stack = thread->stacks.take();
  auto* const state = new FiberState;
  state->stack = stack;
  state->asan_bottom = stack.bottom;
  state->asan_size = stack.size();
  task.fiber_state = state;
  thread->spawning = &task;
  bf::fiber fiber(bf::launch::post, std::allocator_arg, StackSource(&thread->stacks, stack),
                  [thread, state, &task, entry] {
                    thread->arrive(state);
                    Task::set_current(&task);
                    exception_globals() = {};
                    errno = 0;
                    entry(task);
                    if (!StackPool::intact(state->stack))
                      fatal(absl::StrCat("overflow of the fiber's stack of ", state->stack.size(),
                                         " bytes; larger ones: WorldOptions::stack_bytes"));
                    Task::set_current(nullptr);
                    task.fiber_state = nullptr;
                    delete state;
                  });
  thread->spawning = nullptr;
  fiber.detach();
}

void FiberEngine::park(Task& task_or_host) {
  FiberThread& thread = *thread_;
  Task& task = task_or_host.id < 0 ? thread.host : task_or_host;
  Task* const next = thread.next;
  thread.next = nullptr;
  if (next == &task) return;
  if (next == nullptr) fatal("a fiber parked and nobody was unparked");
  FiberState& state = *static_cast<FiberState*>(task.fiber_state);
  if (&task != &thread.host && !StackPool::intact(state.stack)) {
    fatal(absl::StrCat("overflow of the fiber's stack of ", state.stack.size(),
                       " bytes; larger ones: WorldOptions::stack_bytes"));
  }
  const FiberHook* const hook = &task != &thread.host ? fiber_hook.load(std::memory_order_acquire) : nullptr;
  if (hook != nullptr) [[unlikely]]
    hook->leave(task);
  ExceptionGlobals& globals = exception_globals();
  state.globals = globals;
  state.saved_errno = errno;
  thread.leave(&state, *next);
  static_cast<bf::context*>(next->context)->resume();
  thread.arrive(&state);
  globals = state.globals;
  errno = state.saved_errno;
  Task::set_current(&task == &thread.host ? nullptr : &task);
  if (hook != nullptr) [[unlikely]]
    hook->arrive(task);
}

void FiberEngine::unpark(Task& task) { thread_->next = task.id < 0 ? &thread_->host : &task; }

}  // namespace rankloom
