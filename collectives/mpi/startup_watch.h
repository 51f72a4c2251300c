#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "rankloom/options.h"
#include "sim/base/parker.h"

namespace rankloom::internal {

// Tells, on a thread of its own, that this process waits for others to come: in MPI_Init_thread(), or where the
// processes greet each other. Those that do not come cannot tell, and MPI does not. After `stall` of the options, and
// again after twice that time and so on, a line goes to their on_stall; after their stall_is_fatal the job ends, but
// for a process under a debugger.
class StartupWatch {
 public:
  // `call`: as texts name it; a constant.
  StartupWatch(const char* call, CodeSite code, const WorldOptions& options);
  // All have come.
  ~StartupWatch();
  StartupWatch(const StartupWatch&) = delete;
  StartupWatch& operator=(const StartupWatch&) = delete;

  // This is process `process` of `size`. By the thread that made the watch.
  void mpi_initialized(int process, int size);

 private:
  void watch();
  void tell(const std::string& text) const;
  [[noreturn]] void end_job(const std::string& text, bool initialized) const;

  const char* const call_;
  const CodeSite code_;
  const int64_t stall_ns_;
  const int64_t fatal_ns_;
  const std::function<void(const std::string&)> on_stall_;
  int size_ = 1;                  // written before process_
  std::atomic<int> process_{-1};  // -1: MPI is not initialised
  std::atomic<bool> over_{false};
  Parker parker_;
  std::thread thread_;
};

}  // namespace rankloom::internal
