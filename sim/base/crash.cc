#include "sim/base/crash.h"

#include <execinfo.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "sim/base/dist_error.h"
#include "sim/base/fatal_told.h"
#include "sim/base/sanitizers.h"
#include "sim/base/system.h"
#include "sim/base/thread_stack.h"

namespace rankloom::internal {
namespace {

constexpr size_t kSignalStack = 64 * 1024;

struct Handled {
  int signal;
  const char* name;
  struct sigaction previous {};
};
std::array<Handled, 5> handled{
    {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}}};

// A program's own handler may mean to go on, as one that repairs a page does: its signals are the program's to tell of.
bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}
bool may_go_on(const struct sigaction& action) {
  return has_handler(action) &&
         ((action.sa_flags & SA_SIGINFO) == 0 || action.sa_sigaction != CrashFacts::ends_the_process.load());
}

Handled& handled_as(int signal) {
  for (Handled& one : handled) {
    if (one.signal == signal) return one;
  }
  return handled[0];
}

void put(std::string_view text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

// A line of at most 500 bytes.
[[gnu::format(printf, 1, 2)]] void put_line(const char* format, ...) {
  char line[500];
  va_list values;
  va_start(values, format);
  const int size = std::vsnprintf(line, sizeof line - 1, format, values);
  va_end(values);
  if (size < 0) return;
  const size_t length = std::min(static_cast<size_t>(size), sizeof line - 2);
  line[length] = '\n';
  put({line, length + 1});
}

const char* owner(TaskKind kind) {
  switch (kind) {
    case TaskKind::kRank:
      return "";
    case TaskKind::kHelper:
      return "a helper of ";
    case TaskKind::kStream:
      return "the stream of ";
    case TaskKind::kCompletion:
      return "a completion of ";
  }
  return "";
}

// As last_point_text(), which takes memory.
void put_last_point(const Site& last) {
  if (last.what == std::string_view(Site().what) && last.code.line == 0)
    return put_line("  it has come to no point yet");
  char seq[32] = "";
  if (last.seq >= 0) std::snprintf(seq, sizeof seq, " seq %lld", static_cast<long long>(last.seq));
  if (last.code.file == nullptr || *last.code.file == '\0') return put_line("  its last point: %s%s", last.what, seq);
  const char* const slash = std::strrchr(last.code.file, '/');
  put_line("  its last point: %s%s [%s:%d]", last.what, seq, slash != nullptr ? slash + 1 : last.code.file,
           last.code.line);
}

void put_rerun(const Task& task) {
  const CrashFacts::Rerun rerun = CrashFacts::rerun.load();
  const char* const command = rerun != nullptr ? rerun(task) : "";
  if (*command == '\0') return;
  put("  run it again: ");
  put(command);
  put("\n");
}

// Whether the signal was sent by somebody: nothing at this place of the program caused it.
bool sent(const siginfo_t& info) { return info.si_code <= 0; }

void tell(const Task& task, const Handled& what, const siginfo_t& info, const void* context, bool* overflowed) {
  char text[300];
  const CrashFacts::Overflow overflow = CrashFacts::overflow.load();
  *overflowed = what.signal == SIGSEGV && overflow != nullptr && overflow(task, info, context, text, sizeof text);
  if (!*overflowed) {
    bool addressed = !sent(info);
#ifdef SI_KERNEL
    addressed = addressed && info.si_code != SI_KERNEL;
#endif
    std::snprintf(text, sizeof text, addressed ? "%s at address %p" : "%s", what.name, info.si_addr);
  }
  put_line("rankloom: fatal (%srank %d): %s", owner(task.info.kind), task.info.rank, text);
  put_last_point(task.last.site());
  put_line("  its stack:");
  write_signal_stack(STDERR_FILENO, context, "    ");
  put_rerun(task);
}

// A sanitizer has told of a bug, and ends the process.
void on_sanitizer_death() {
  const Task* const task = Task::current();
  if (task == nullptr || task->info.rank < 0 || fatal_told.load()) return;
  put_line("rankloom: fatal (%srank %d): ended by the sanitizer, for what it reports above", owner(task->info.kind),
           task->info.rank);
  put_last_point(task->last.site());
  put_rerun(*task);
}

// Whether the program has a sanitizer that tells of such signals itself.
bool sanitizer_tells() { return __sanitizer_start_switch_fiber != nullptr || __tsan_get_current_fiber != nullptr; }

// As the kernel would call the program's handler.
void call_handler(Handled& what, int signal, siginfo_t* info, void* context) {
  const struct sigaction own = what.previous;
  if ((own.sa_flags & SA_RESETHAND) != 0) {
    what.previous.sa_flags = 0;
    what.previous.sa_handler = SIG_DFL;
  }
  sigset_t blocked = own.sa_mask;
  if ((own.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, signal);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  if ((own.sa_flags & SA_SIGINFO) != 0) {
    own.sa_sigaction(signal, info, context);
  } else {
    own.sa_handler(signal);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Passes the signal on to the handler, or the default action, that stood before ours.
void pass_on(Handled& what, int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = what.previous;
  if (previous.sa_handler == SIG_IGN && sent(*info)) return;
  if (has_handler(previous)) return call_handler(what, signal, info, context);
  // The instruction faults again when the handler returns: a core file and a debugger see that place.
  ::signal(signal, SIG_DFL);
  if (sent(*info)) raise(signal);
}

// The number of the thread that tells of its crash; 0: none yet.
std::atomic<int> teller{0};

[[maybe_unused]] void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  Handled& what = handled_as(signal);
  const Task* const task = Task::current();
  const bool ignored = what.previous.sa_handler == SIG_IGN && sent(*info);
  if (task != nullptr && task->info.rank >= 0 && !ignored && !fatal_told.load()) {
    const int self = this_thread();
    int first = 0;
    if (teller.compare_exchange_strong(first, self)) {
      bool overflowed = false;
      if (!sanitizer_tells() && !may_go_on(what.previous)) {
        tell(*task, what, *info, context, &overflowed);
      } else if (const CrashFacts::Overflow overflow = CrashFacts::overflow.load(); signal == SIGSEGV && overflow) {
        char text[300];
        overflowed = overflow(*task, *info, context, text, sizeof text);
        if (overflowed) put_line("rankloom: fatal (%srank %d): %s", owner(task->info.kind), task->info.rank, text);
      }
      if (overflowed) std::abort();
      if (may_go_on(what.previous)) teller.store(0);
    } else if (first != self) {
      // Another one tells, and the process ends with that.
      for (int i = 0; i < 50 && teller.load() != 0; ++i) poll(nullptr, 0, /*milliseconds=*/100);
    }
  }
  errno = saved_errno;
  pass_on(what, signal, info, context);
}

}  // namespace

void install_crash_handler() {
  // There is one callback at most, and libFuzzer's keeps the input.
  static const bool told = [] {
    if (__sanitizer_set_death_callback == nullptr || LLVMFuzzerTestOneInput != nullptr) return false;
    __sanitizer_set_death_callback(&on_sanitizer_death);
    return true;
  }();
  (void)told;
#if !defined(RANKLOOM_ASAN) && !defined(RANKLOOM_TSAN)
  // ThreadSanitizer does not hand out its own handler as the previous one: nobody could pass a signal on to it.
  if (__tsan_get_current_fiber != nullptr) return;
  static const bool installed = [] {
    void* first[1];
    backtrace(first, 1);  // loads the unwinder, which the handler must not
    struct sigaction action {};
    action.sa_sigaction = &on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (Handled& one : handled) {
      sigaction(one.signal, nullptr, &one.previous);
      // A fiber's overflow is told in any case.
      if (one.signal == SIGSEGV || !may_go_on(one.previous)) sigaction(one.signal, &action, nullptr);
    }
    return true;
  }();
  (void)installed;
#endif
}

stack_t use_signal_stack() {
  stack_t stack{};
#ifndef RANKLOOM_ASAN
  // A sanitizer's stack will do. No `new`: only the kernel knows of it, so it would be a leak in the eyes of LSan and
  // Valgrind.
  if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_DISABLE) == 0 && stack.ss_size >= kSignalStack / 2)
    return stack;
  void* const memory = mmap(nullptr, kSignalStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fatal(absl::StrCat("cannot map a stack for signals: ", std::strerror(errno)));
  stack = {};
  stack.ss_sp = memory;
  stack.ss_size = kSignalStack;
  sigaltstack(&stack, nullptr);
#endif
  return stack;
}

void free_signal_stack(const stack_t& stack) {
  stack_t now{};
  if (sigaltstack(nullptr, &now) != 0 || now.ss_sp != stack.ss_sp || stack.ss_size != kSignalStack) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(stack.ss_sp, stack.ss_size);
}

}  // namespace rankloom::internal
