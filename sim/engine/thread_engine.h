#pragma once

#include "sim/engine/engine.h"

namespace rankloom::internal {

// The baton gear's switch: every task is a thread, and the one that was unparked last runs.
class ThreadEngine final : public Engine {
 public:
  explicit ThreadEngine(bool fresh_threads) : fresh_threads_(fresh_threads) {}

  void run_host(absl::FunctionRef<void()> main) override { main(); }
  void spawn(Task& task, void (*entry)(Task&)) override;
  void attach(Task& task) override;
  void park(Task& task) override;
  void unpark(Task& task) override { task.parker.unpark(); }

 private:
  const bool fresh_threads_;
};

// The name of the thread in a debugger.
std::string thread_name(const TaskInfo& info);

}  // namespace rankloom::internal
