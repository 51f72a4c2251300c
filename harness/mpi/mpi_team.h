#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/explore/search_team.h"
#include "harness/mpi/mpi_channel.h"
#include "sim/base/parker.h"

namespace rankloom::internal {

// How long a run may go on when the search is over: 30 s. Tests have less patience.
extern int64_t grace_of_runs_ns;

// Process 0 and all others of the job, as process 0 sees them. Process 0 leads on the thread that calls the methods
// here, the only one that uses MPI, and searches on a thread of its own.
// Thread-safety: thread-compatible.
class MpiTeam final : public SearchTeam, private WorkerLinks {
 public:
  // `channel` outlives this.
  explicit MpiTeam(MpiChannel* channel);
  ~MpiTeam() override;
  MpiTeam(const MpiTeam&) = delete;
  MpiTeam& operator=(const MpiTeam&) = delete;

  WorkerLinks* start(std::function<void(LeaderLink*)> work) override;
  void end(const std::string& found) override;
  // After end(). Tells the others how the search ended, and waits until they have ended their runs; where one does not,
  // the job ends, with `text` on stderr.
  void tell_report(std::string_view report, const std::string& text);

 private:
  class OwnThread;

  int count() const override { return channel_.size(); }
  std::string name(int worker) const override { return channel_.name(worker); }
  void send(int worker, std::string_view message) override;
  std::optional<Event> receive(int64_t ns) override;
  bool replace(int) override { return false; }

  MpiChannel& channel_;
  Parker parker_;
  Naps naps_;
  std::unique_ptr<OwnThread> own_;
  std::vector<bool> gone_;  // [process] its last message has come
};

// The leader, as another process of the job sees it.
class MpiLeader final : public LeaderLink {
 public:
  explicit MpiLeader(MpiChannel* channel) : channel_(*channel) {}

  bool send(std::string_view message) override;
  // nullopt: the search is over.
  std::optional<std::string> receive(bool wait) override;
  bool gone() const override { return report_.has_value(); }
  void left() override;
  // How the search ended. Waits for it.
  std::string report();

 private:
  MpiChannel& channel_;
  Parker parker_;
  Naps naps_;
  std::optional<std::string> report_;
};

}  // namespace rankloom::internal
