#pragma once

#include <mpi.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/parker.h"

namespace rankloom::internal {

// Messages of bytes between the processes of a search, over a communicator of their own. Those between two processes
// arrive in order. An error of MPI ends the job, with its text.
// Thread-safety: thread-compatible.
class MpiChannel {
 public:
  enum class Kind : int {
    kOrder,   // of the leader, a CampaignOrder
    kNews,    // to the leader, CampaignNews
    kReport,  // of the leader, its last message: how the search ended
    kBye,     // to the leader, the last message
  };
  struct Message {
    int from = 0;
    Kind kind = Kind::kBye;
    std::string bytes = {};
  };

  // Collective over `processes`.
  explicit MpiChannel(MPI_Comm processes);
  // Collective. Waits for what was sent: all of it is received.
  ~MpiChannel();
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(names_.size()); }
  // "process 3", and on which machine, if there are several.
  const std::string& name(int rank) const { return names_[static_cast<size_t>(rank)]; }

  // Never blocks.
  void send(int to, Kind kind, std::string_view bytes);
  // The next message, if one is there.
  std::optional<Message> receive();

  [[noreturn]] void end_job(const std::string& why) const;

 private:
  void gather_names();
  void must(int code, const char* call) const;
  void forget_sent();

  struct Sent {
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<std::string> names_;
  std::list<Sent> sent_;
};

// How long a thread that looks for messages sleeps between two looks: from 20 us after a message up to 1 ms, a time in
// which a look costs little, also of a core that somebody else computes on.
class Naps {
 public:
  void message_came() { ns_ = kFirst; }
  // Until unpark(), or so long; not beyond `end_ns` on the monotonic clock.
  void nap(Parker* parker, int64_t end_ns);

 private:
  static constexpr int64_t kFirst = 20'000;
  static constexpr int64_t kLast = 1'000'000;
  int64_t ns_ = kFirst;
};

}  // namespace rankloom::internal
