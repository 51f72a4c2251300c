#include "sim/base/thread_stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "sim/base/parker.h"
#include "sim/base/system.h"
#include "sim/base/text.h"
#ifdef RANKLOOM_LINUX
#include <link.h>
#include <sys/auxv.h>
#endif

namespace rankloom::internal {
namespace {

constexpr int kMaxFrames = 64;

// The stack as the handler of the signal leaves it: addresses only, since names need memory.
using Frames = std::array<void*, kMaxFrames>;
struct Walked {
  Frames frames;
  int count = 0;
  void* at = nullptr;  // where the thread was interrupted
  std::atomic<bool> done{false};
};
Walked walked;

// The instruction that a signal interrupted; null: not known.
void* interrupted_at(const void* context) {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__APPLE__) && defined(__x86_64__)
  return reinterpret_cast<void*>(machine->__ss.__rip);
#elif defined(__APPLE__) && defined(__aarch64__)
  return reinterpret_cast<void*>(__darwin_arm_thread_state64_get_pc(machine->__ss));
#elif defined(__linux__) && defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  return reinterpret_cast<void*>(machine.pc);
#else
  return nullptr;
#endif
}

// Whether a call puts its return address on the stack; else it is in a register.
constexpr bool pushes_return_address() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

void walk(int, siginfo_t*, void* context) {
  const int saved_errno = errno;
  walked.at = interrupted_at(context);
  walked.count = backtrace(walked.frames.data(), kMaxFrames);
  walked.done.store(true, std::memory_order_release);
  errno = saved_errno;
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// The name of the function that holds the address; no memory, no locks. A return address may be that of the next
// function.
bool symbolize(void* address, bool returns, char* name, int size) {
  return absl::Symbolize(returns ? static_cast<const char*>(address) - 1 : address, name, size);
}

// "train()", or the object that holds the address.
std::string name_of(void* address, bool returns) {
  char name[512];
  if (symbolize(address, returns, name, sizeof name)) return name;
  Dl_info info;
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) return absl::StrCat("in ", info.dli_fname);
  return "?";
}

// Whether `name` is a function that runs ranks: such frames are the same in every stack.
bool runs_ranks(std::string_view name) {
  return has(name, "rankloom::internal::WorldState::run_") ||
         has(name, "rankloom::internal::RankFailures::run_guarded") ||
         has(name, "rankloom::internal::FiberThread::run_tasks") || has(name, "rankloom::internal::ThreadPool::work");
}

// Whether `name` is a function that calls a callable: such frames tell a reader nothing.
bool calls_callable(std::string_view name) {
  return has(name, "std::__invoke") || has(name, "std::invoke<") || has(name, "functional_internal::Invoke");
}

// Stands for the frame of "std::invoke" or its like, into which the compiler has put the rank's program: where the
// program has no other.
constexpr const char* kInlined = "the rank's program, inlined";

// The code of the executable, apart from that of shared libraries; empty: not known. Takes no memory and no locks.
struct CodeRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool has(uintptr_t at) const { return at >= begin && at < end; }
};

CodeRange executable_code() {
  CodeRange code;
#ifdef RANKLOOM_LINUX
  const auto* const headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  const size_t count = headers != nullptr ? getauxval(AT_PHNUM) : 0;
  uintptr_t base = 0;  // where an executable that may lie anywhere has its first byte
  for (size_t i = 0; i < count; ++i) {
    if (headers[i].p_type == PT_PHDR) base = reinterpret_cast<uintptr_t>(headers) - headers[i].p_vaddr;
  }
  for (size_t i = 0; i < count; ++i) {
    if (headers[i].p_type != PT_LOAD || (headers[i].p_flags & PF_X) == 0) continue;
    const uintptr_t first = base + headers[i].p_vaddr;
    if (code.begin == 0) code.begin = first;
    code.end = first + headers[i].p_memsz;
  }
#endif
  return code;
}

// Picks the frames of a rank that are shown. Takes no memory and no locks.
class ShownFrames {
 public:
  enum class Shown : uint8_t { kYes, kNo, kEnd };
  Shown next(void* address, std::string_view name) {
    if (runs_ranks(name)) return Shown::kEnd;
    if (calls_callable(name)) {
      callable_ = true;
      return Shown::kNo;
    }
    const bool executable = code_.end == 0 || code_.has(reinterpret_cast<uintptr_t>(address));
    own_ = own_ || (executable && !has(name, "rankloom::internal::"));
    return Shown::kYes;
  }
  // Whether kInlined is the last frame.
  bool inlined() const { return callable_ && !own_; }

 private:
  const CodeRange code_ = executable_code();
  bool own_ = false;       // a frame of the program's
  bool callable_ = false;  // a frame that was left out
};

// The frames of an interrupted thread: the handler, and what called it, stand before the place of the interrupt.
Frames::iterator innermost_of(Frames& frames, int count, void* at) {
  const auto end = frames.begin() + count;
  const auto frame = std::find(frames.begin(), end, at);
  return frame == end ? frames.begin() + std::min(2, count) : frame;
}

}  // namespace

std::string thread_stack_text(int thread, std::string_view indent) {
  if (thread == 0) return absl::StrCat(sv(indent), "not known: no thread of its own runs it");
  void* first[1];
  backtrace(first, 1);  // loads the unwinder, which the handler must not
#ifdef SIGRTMAX
  const int signal = SIGRTMAX - 1;
#else
  const int signal = SIGUSR2;
#endif
  walked.done.store(false, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_sigaction = &walk;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  const int error = sigaction(signal, &action, nullptr) != 0 ? errno : signal_thread(thread, signal);
  if (error != 0) return absl::StrCat(sv(indent), "not known: ", std::strerror(error));
  Parker nobody;
  const int64_t until_ns = monotonic_ns() + 2'000'000'000;
  while (!walked.done.load(std::memory_order_acquire)) {
    if (monotonic_ns() > until_ns) return absl::StrCat(sv(indent), "not known: its thread took no signal");
    nobody.park(monotonic_ns() + 1'000'000);
  }
  const auto end = walked.frames.begin() + walked.count;
  const auto innermost = innermost_of(walked.frames, walked.count, walked.at);
  std::string text;
  int number = 0;
  const auto add = [&](const std::string& name) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", sv(indent), "#", number++, " ", name);
  };
  ShownFrames shown;
  for (auto frame = innermost; frame != end; ++frame) {
    const std::string name = name_of(*frame, /*returns=*/frame != innermost);
    const ShownFrames::Shown show = shown.next(*frame, name);
    if (show == ShownFrames::Shown::kEnd) break;
    if (show == ShownFrames::Shown::kYes) add(name);
  }
  if (shown.inlined()) add(kInlined);
  return text;
}

const char* stack_pointer(const void* context) {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__APPLE__) && defined(__x86_64__)
  return reinterpret_cast<const char*>(machine->__ss.__rsp);
#elif defined(__APPLE__) && defined(__aarch64__)
  return reinterpret_cast<const char*>(__darwin_arm_thread_state64_get_sp(machine->__ss));
#elif defined(__linux__) && defined(__x86_64__)
  return reinterpret_cast<const char*>(machine.gregs[REG_RSP]);
#elif defined(__linux__) && defined(__aarch64__)
  return reinterpret_cast<const char*>(machine.sp);
#else
  return nullptr;
#endif
}

void write_signal_stack(int file, const void* context, const char* indent) {
  Frames frames;
  int count = backtrace(frames.data(), kMaxFrames);
  void* const at = interrupted_at(context);
  auto innermost = innermost_of(frames, count, at);
  if (*innermost != at || innermost + 1 == frames.begin() + count) {
    // A call of what is no function has made no frame: its return address is the last on the stack.
    innermost = frames.begin();
    count = 0;
    frames[static_cast<size_t>(count++)] = at;
    if (const char* const stack = stack_pointer(context); stack != nullptr && pushes_return_address())
      frames[static_cast<size_t>(count++)] = *reinterpret_cast<void* const*>(stack);
  }
  const auto end = frames.begin() + count;
  int number = 0;
  char name[512];
  const auto add = [&](const char* function) {
    char line[600];
    const int size = std::snprintf(line, sizeof line, "%s#%d %s\n", indent, number++, function);
    [[maybe_unused]] const ssize_t written = write(file, line, static_cast<size_t>(size));
  };
  ShownFrames shown;
  for (auto frame = innermost; frame != end; ++frame) {
    if (!symbolize(*frame, /*returns=*/frame != innermost, name, sizeof name))
      std::snprintf(name, sizeof name, "0x%zx", reinterpret_cast<size_t>(*frame));
    const ShownFrames::Shown show = shown.next(*frame, name);
    if (show == ShownFrames::Shown::kEnd) break;
    if (show == ShownFrames::Shown::kYes) add(name);
  }
  if (shown.inlined()) add(kInlined);
}

}  // namespace rankloom::internal
