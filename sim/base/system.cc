#include "sim/base/system.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef RANKLOOM_LINUX
#include <errno.h>  // program_invocation_short_name
#include <linux/membarrier.h>
#include <sys/syscall.h>
#else
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#endif
#ifdef __APPLE__
#include <crt_externs.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankloom::internal {

const char* program_name() {
#ifdef RANKLOOM_LINUX
  return program_invocation_short_name;
#else
  static const std::string* const name = [] {
    const std::vector<std::string> words = program_arguments();
    const std::string path = words.empty() ? "" : words[0];
    return new std::string(path.substr(path.rfind('/') + 1));
  }();
  return name->c_str();
#endif
}

std::vector<std::string> program_arguments() {
#ifdef __APPLE__
  char** const words = *_NSGetArgv();
  return {words, words + *_NSGetArgc()};
#else
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> words;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\0', begin), bytes.size());
    words.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
#endif
}

std::string program_file() {
#ifdef __APPLE__
  uint32_t size = 0;
  _NSGetExecutablePath(nullptr, &size);
  std::string path(size, '\0');
  if (_NSGetExecutablePath(path.data(), &size) != 0) return "";
  return path.c_str();  // without what stands behind its end
#else
  return "/proc/self/exe";
#endif
}

char** environment() {
#ifdef __APPLE__
  return *_NSGetEnviron();  // a shared library has no other way
#else
  return environ;
#endif
}

bool traced() {
#ifdef __APPLE__
  std::array<int, 4> which = {CTL_KERN, KERN_PROC, KERN_PROC_PID, getpid()};
  kinfo_proc process = {};
  size_t size = sizeof process;
  return sysctl(which.data(), which.size(), &process, &size, nullptr, 0) == 0 &&
         (process.kp_proc.p_flag & P_TRACED) != 0;
#else
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != std::string::npos;
  }
  return false;
#endif
}

namespace {

// Long after a processor's stores are seen by all others.
void wait_for_stores() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (void)poll(nullptr, 0, /*timeout ms=*/1);
}

}  // namespace

#ifdef RANKLOOM_LINUX

namespace {

thread_local int own_thread = 0;  // 0: not asked yet

}  // namespace

int this_thread() {
  // In a process that is forked, the one thread has another number.
  static const int watched = pthread_atfork(nullptr, nullptr, [] { own_thread = 0; });
  (void)watched;
  if (own_thread == 0) own_thread = static_cast<int>(syscall(SYS_gettid));
  return own_thread;
}

bool thread_runs(int thread) {
  std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/stat"));
  std::string line;
  std::getline(file, line);
  // "12 (name) S ...": the name may hold anything, brackets too.
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'R' || line[name_end + 2] == 'D');
}

void fence_all_threads() {
  static const bool can = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  if (!can || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) wait_for_stores();
}

int signal_thread(int thread, int signal) { return syscall(SYS_tgkill, getpid(), thread, signal) == 0 ? 0 : errno; }

#else

namespace {

// The threads that have asked for their number, as long as they live. A thread that is in the list can be signalled: it
// takes itself off at its end.
class Threads {
 public:
  static Threads& shared() {
    static Threads* const threads = [] {
      pthread_atfork(nullptr, nullptr, &Threads::forget_after_fork);
      return new Threads;
    }();
    return *threads;
  }

  int add() {
    const std::lock_guard lock(mu_);
    threads_[++last_] = {.handle = pthread_self()};
    return last_;
  }
  void remove(int number) {
    const std::lock_guard lock(mu_);
    threads_.erase(number);
  }
  int signal(int number, int signal) {
    const std::lock_guard lock(mu_);
    const auto at = threads_.find(number);
    return at == threads_.end() ? ESRCH : pthread_kill(at->second.handle, signal);
  }
  bool runs(int number) {
    const std::lock_guard lock(mu_);
    const auto at = threads_.find(number);
    return at != threads_.end() && runs(&at->second);
  }

 private:
  struct Thread {
    pthread_t handle = {};
    int64_t used_ns = -1;  // of a core, when somebody asked last
  };

  static bool runs(Thread* thread) {
#ifdef __APPLE__
    thread_basic_info_data_t facts = {};
    mach_msg_type_number_t count = THREAD_BASIC_INFO_COUNT;
    return thread_info(pthread_mach_thread_np(thread->handle), THREAD_BASIC_INFO,
                       reinterpret_cast<thread_info_t>(&facts), &count) == KERN_SUCCESS &&
           (facts.run_state == TH_STATE_RUNNING || facts.run_state == TH_STATE_UNINTERRUPTIBLE);
#else
    clockid_t clock = {};
    timespec used = {};
    if (pthread_getcpuclockid(thread->handle, &clock) != 0 || clock_gettime(clock, &used) != 0) return true;
    const int64_t used_ns = int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
    return std::exchange(thread->used_ns, used_ns) != used_ns;
#endif
  }

  // The child has the thread that called fork(), under another number.
  static void forget_after_fork();

  std::mutex mu_;
  std::map<int, Thread> threads_;
  int last_ = 0;
};

thread_local int own_thread = 0;  // 0: not asked yet

struct EndsWithThread {
  int number = 0;
  ~EndsWithThread() {
    if (number != 0) Threads::shared().remove(number);
  }
};
thread_local EndsWithThread own_end;

void Threads::forget_after_fork() {
  new (&shared()) Threads;
  own_thread = 0;
}

// Where threads sleep, many addresses in each.
struct Bedroom {
  std::mutex mu;
  std::condition_variable woken;
};
using House = std::array<Bedroom, 64>;

House& house() {
  static House* const all = [] {
    // A lock that another thread held at the fork cannot be taken in the child.
    pthread_atfork(nullptr, nullptr, [] { new (&house()) House; });
    return new House;
  }();
  return *all;
}

// Made before any thread is there: a process that is forked while another thread makes it could never take it.
[[maybe_unused]] const House& made_at_start = house();

Bedroom& bedroom_of(const void* address) { return house()[reinterpret_cast<uintptr_t>(address) / 64 % 64]; }

}  // namespace

int this_thread() {
  if (own_thread == 0) own_thread = own_end.number = Threads::shared().add();
  return own_thread;
}

void fence_all_threads() { wait_for_stores(); }

bool thread_runs(int thread) { return Threads::shared().runs(thread); }

int signal_thread(int thread, int signal) { return Threads::shared().signal(thread, signal); }

void sleep_at(const void* address, absl::FunctionRef<bool()> sleeps, int64_t most_ns) {
  Bedroom& room = bedroom_of(address);
  std::unique_lock lock(room.mu);
  // Later times may be more than a clock can say.
  if (sleeps()) room.woken.wait_for(lock, std::chrono::nanoseconds(std::min(most_ns, int64_t{3'600'000'000'000})));
}

void wake_at(const void* address) {
  Bedroom& room = bedroom_of(address);
  {
    const std::lock_guard lock(room.mu);  // a thread that has asked, and found that it sleeps, does so now
  }
  room.woken.notify_all();
}

#endif

void name_this_thread(const std::string& name) {
#ifdef __APPLE__
  pthread_setname_np(name.c_str());
#else
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
#endif
}

#ifdef MSG_NOSIGNAL
const int kNoSignal = MSG_NOSIGNAL;
#else
const int kNoSignal = 0;
#endif

bool make_socket_pair(int ends[2]) {
#ifdef RANKLOOM_LINUX
  return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
#else
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  for (const int* end = ends; end != ends + 2; ++end) {
    fcntl(*end, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    const int yes = 1;
    setsockopt(*end, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes);
#endif
  }
  return true;
#endif
}

}  // namespace rankloom::internal
