#include "sim/base/thread_stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "sim/base/parker.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

constexpr int kMaxFrames = 64;

// What the handler of the signal leaves: addresses only, since names need memory.
struct Walked {
  std::array<void*, kMaxFrames> frames;
  int count = 0;
  void* at = nullptr;  // where the thread was interrupted
  std::atomic<bool> done{false};
};
Walked walked;

void walk(int, siginfo_t*, void* context) {
  const int saved_errno = errno;
#if defined(__x86_64__)
  walked.at = reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  walked.at = reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#endif
  walked.count = backtrace(walked.frames.data(), kMaxFrames);
  walked.done.store(true, std::memory_order_release);
  errno = saved_errno;
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// "train()", or the object that holds the address.
std::string name_of(void* address, bool returns) {
  char name[512];
  // A return address may be that of the next function.
  const void* const in = returns ? static_cast<const char*>(address) - 1 : address;
  if (absl::Symbolize(in, name, sizeof name)) return name;
  Dl_info info;
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) return absl::StrCat("in ", info.dli_fname);
  return "?";
}

}  // namespace

std::string thread_stack_text(int thread, std::string_view indent) {
  if (thread == 0) return absl::StrCat(sv(indent), "not known: no thread of its own runs it");
  void* first[1];
  backtrace(first, 1);  // loads the unwinder, which the handler must not
  const int signal = SIGRTMAX - 1;
  walked.done.store(false, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_sigaction = &walk;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0 || syscall(SYS_tgkill, getpid(), thread, signal) != 0)
    return absl::StrCat(sv(indent), "not known: ", std::strerror(errno));
  Parker nobody;
  const int64_t until_ns = monotonic_ns() + 2'000'000'000;
  while (!walked.done.load(std::memory_order_acquire)) {
    if (monotonic_ns() > until_ns) return absl::StrCat(sv(indent), "not known: its thread took no signal");
    nobody.park(monotonic_ns() + 1'000'000);
  }
  // The handler, and what called it, stand before the place of the interrupt.
  const auto end = walked.frames.begin() + walked.count;
  auto frame = std::find(walked.frames.begin(), end, walked.at);
  if (frame == end) frame = walked.frames.begin() + std::min(2, walked.count);
  std::string text;
  const auto innermost = frame;
  for (int number = 0; frame != end; ++frame) {
    const std::string name = name_of(*frame, /*returns=*/frame != innermost);
    // What runs a rank is the same for all, and what calls a callable says nothing.
    if (has(name, "rankloom::internal::WorldState::run_") || has(name, "rankloom::internal::RankFailures::run_guarded"))
      break;
    if (has(name, "std::__invoke") || has(name, "std::invoke<") || has(name, "functional_internal::Invoke")) continue;
    absl::StrAppend(&text, text.empty() ? "" : "\n", sv(indent), "#", number++, " ", name);
  }
  return text;
}

}  // namespace rankloom::internal
