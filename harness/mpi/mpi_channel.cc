#include "harness/mpi/mpi_channel.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "collectives/mpi/abort_job.h"
#include "collectives/mpi/mpi_calls.h"
#include "sim/base/text.h"

namespace rankloom::internal {
MpiChannel::MpiChannel(MPI_Comm processes) {
  MPI_Comm_rank(processes, &rank_);
  must(MPI_Comm_dup(processes, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  gather_names();
}

void MpiChannel::gather_names() {
  int size = 1;
  MPI_Comm_size(comm_, &size);
  char machine[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  must(MPI_Get_processor_name(machine, &length), "MPI_Get_processor_name");
  std::vector<char> all(static_cast<size_t>(size) * sizeof(machine));
  must(MPI_Allgather(machine, sizeof(machine), MPI_CHAR, all.data(), sizeof(machine), MPI_CHAR, comm_),
       "MPI_Allgather");
  std::vector<std::string> machines;
  for (size_t begin = 0; begin < all.size(); begin += sizeof(machine)) machines.emplace_back(&all[begin]);
  const bool one = absl::c_all_of(machines, [&](const std::string& other) { return other == machines[0]; });
  for (int rank = 0; rank < size; ++rank)
    names_.push_back(absl::StrCat("process ", rank, one ? "" : " on " + machines[static_cast<size_t>(rank)]));
}

MpiChannel::~MpiChannel() {
  for (Sent& sent : sent_) must(MPI_Wait(&sent.request, MPI_STATUS_IGNORE), "MPI_Wait");
  must(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

void MpiChannel::end_job(const std::string& why) const {
  std::fprintf(stderr, "rankloom: process %d ends the job: %s\n", rank_, why.c_str());
  abort_job();
}

void MpiChannel::must(int code, const char* call) const {
  if (code != MPI_SUCCESS) end_job(absl::StrCat("explore: ", message_of(mpi_error(code, call))));
}

void MpiChannel::forget_sent() {
  while (!sent_.empty()) {
    int done = 0;
    must(MPI_Test(&sent_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return;
    sent_.pop_front();
  }
}

void MpiChannel::send(int to, Kind kind, std::string_view bytes) {
  forget_sent();
  if (bytes.size() > INT_MAX)
    end_job(absl::StrCat("explore: a message has ", bytes.size(), " bytes, want less than 2^31"));
  Sent& sent = sent_.emplace_back();
  sent.bytes = bytes;
  must(MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, to, static_cast<int>(kind), comm_,
                 &sent.request),
       "MPI_Isend");
}

std::optional<MpiChannel::Message> MpiChannel::receive() {
  forget_sent();
  int there = 0;
  MPI_Message header = MPI_MESSAGE_NULL;
  MPI_Status status;
  must(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, &header, &status), "MPI_Improbe");
  if (there == 0) return std::nullopt;
  int size = 0;
  must(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
  Message message{.from = status.MPI_SOURCE, .kind = static_cast<Kind>(status.MPI_TAG)};
  message.bytes.resize(static_cast<size_t>(size));
  must(MPI_Mrecv(message.bytes.data(), size, MPI_BYTE, &header, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return message;
}

void Naps::nap(Parker* parker, int64_t end_ns) {
  const int64_t until = std::min(end_ns, monotonic_ns() + ns_);
  ns_ = std::min(2 * ns_, kLast);
  if (parker->prepare()) parker->sleep(until);
}

}  // namespace rankloom::internal
