#include "tests/campaign/mpi_repeated.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/mpi_calls.h"

namespace rankloom {

namespace {

enum RowNumber : size_t {
  kMonitoredRow = static_cast<size_t>(OpType::kMonitoredBarrier),
  kMessageRow,
  kAnySourceRow,
  kRingRow,
  kCrossedRow,
};
static_assert(Repeated::kRows == kCrossedRow + 1);

std::string row_name(size_t row) {
  if (row == kMessageRow) return "message";
  if (row == kAnySourceRow) return "messages from anyone";
  if (row == kRingRow) return "messages in a ring";
  if (row == kCrossedRow) return "messages in another order";
  return std::string(op_name(static_cast<OpType>(row)));
}

// Communicators of a job's groups, each made when it is first wanted: by its members or by all processes.
class Communicators {
 public:
  Communicators(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  ~Communicators() {
    for (auto& [where, comm] : made_) {
      if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
    }
  }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // All processes ask for the same, one after another.
  MPI_Comm of(const Partition& where) {
    for (const auto& [known, comm] : made_) {
      if (known == &where) return comm;
    }
    const bool all = where.sets.size() == 1 && static_cast<int>(where.sets[0].size()) == world_size_ &&
                     std::is_sorted(where.sets[0].begin(), where.sets[0].end());
    if (all) return MPI_COMM_WORLD;
    MPI_Comm comm = MPI_COMM_NULL;
    if (made_.size() % 2 == 0) {
      const int color = where.has(rank_) ? where.set_of[static_cast<size_t>(rank_)] : MPI_UNDEFINED;
      MPI_Comm_split(MPI_COMM_WORLD, color, where.member(rank_), &comm);
    } else if (where.has(rank_)) {
      MPI_Group world, members;
      MPI_Comm_group(MPI_COMM_WORLD, &world);
      const std::vector<int>& ranks = where.of(rank_);
      MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members);
      MPI_Comm_create_group(MPI_COMM_WORLD, members, static_cast<int>(made_.size()), &comm);
      MPI_Group_free(&members);
      MPI_Group_free(&world);
    }
    made_.emplace_back(&where, comm);
    return comm;
  }

 private:
  const int rank_, world_size_;
  std::vector<std::pair<const Partition*, MPI_Comm>> made_;
};

constexpr size_t kMoreRoom = 16;  // for a message than it needs

std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// A message of the bytes of a tensor.
struct Message {
  MPI_Request request = MPI_REQUEST_NULL;
  Bytes bytes;

  void send(const Bytes& given, int to, int tag, MPI_Comm comm) {
    bytes = given;
    bytes.reserve(1);
    MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, comm, &request);
  }
  void receive(size_t size, int from, int tag, MPI_Comm comm) {
    bytes.assign(size + kMoreRoom, 0xC3);
    MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from, tag, comm, &request);
  }
  std::pair<int, std::string> received() {  // by its source
    MPI_Status status;
    MPI_Wait(&request, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    return {status.MPI_SOURCE, std::string(bytes.begin(), bytes.begin() + count)};
  }
  void wait() { MPI_Wait(&request, MPI_STATUS_IGNORE); }
};

class Repetition {
 public:
  Repetition(const Plan& plan, const Given& given, uint64_t seed, int rank, Repeated* repeated)
      : plan_(plan),
        given_(given),
        seed_(seed),
        rank_(rank),
        repeated_(*repeated),
        communicators_(rank, plan.job().world_size) {}

  void run() {
    for (size_t i = 0; i < plan_.job().acts.size(); ++i) {
      if (plan_.where(i) != nullptr) step(plan_.job().acts[i], *plan_.where(i));
    }
  }

 private:
  void step(const Act& act, const Partition& where) {
    switch (act.type()) {
      case ActKind::kCollective:
      case ActKind::kCoalesced:
      case ActKind::kMessage:
      case ActKind::kAnySource:
      case ActKind::kRing:
      case ActKind::kCrossed:
      case ActKind::kMonitored:
        break;
      default:
        return;
    }
    comm_ = communicators_.of(where);
    if (!where.has(rank_)) return;
    members_ = where.of(rank_);
    me_ = where.member(rank_);
    switch (act.type()) {
      case ActKind::kCollective:
        return collective(act, act.call, 0);
      case ActKind::kMessage:
        return message(act);
      case ActKind::kAnySource:
        return any_source(act);
      case ActKind::kRing:
        return ring(act, act.a % n());
      case ActKind::kCrossed:
        return crossed(act);
      case ActKind::kMonitored:
        repeated_.rows[kMonitoredRow].calls += me_ == 0;
        MPI_Barrier(comm_);
        return;
      default:
        for (size_t part = 0; part < act.parts.size(); ++part) collective(act, act.parts[part], part);
        if (act.a == 1) ring(act, 1 % n());
    }
  }

  static size_t at(int member) { return static_cast<size_t>(member); }
  int n() const { return static_cast<int>(members_.size()); }
  const std::vector<std::vector<Bytes>>& given_by(int member, const Act& act) const {
    return given_.at({members_[at(member)], act.id});
  }
  // Of a message, or of the ring within coalesced calls.
  const Bytes& sent_by(int member, const Act& act) const { return given_by(member, act).back()[0]; }

  void message(const Act& act) {
    const int from = act.a % n(), to = act.b % n();
    if (me_ != from && me_ != to) return;
    const Bytes& sent = sent_by(from, act);
    Message out, in;
    const auto receive = [&] {
      if (me_ == to) in.receive(sent.size(), from, act.id, comm_);
    };
    if (act.c == 1) receive();
    if (me_ == from) {
      ++repeated_.rows[kMessageRow].calls;
      out.send(sent, to, act.id, comm_);
    }
    if (act.c != 1) receive();
    if (me_ == to) {
      const auto [source, got] = in.received();
      compare(act, kMessageRow, absl::StrCat(source, ":", got), absl::StrCat(from, ":", text(sent)));
    }
    out.wait();
  }

  void any_source(const Act& act) {
    const int to = act.a % n();
    if (me_ != to) {
      ++repeated_.rows[kAnySourceRow].calls;
      Message out;
      out.send(sent_by(me_, act), to, act.id, comm_);
      return out.wait();
    }
    std::vector<Message> in(static_cast<size_t>(n() - 1));
    std::map<int, std::string> got, want;
    for (int from = 0; from < n(); ++from) {
      if (from != to) want[from] = text(sent_by(from, act));
    }
    for (Message& one : in) one.receive(want.begin()->second.size(), MPI_ANY_SOURCE, act.id, comm_);
    for (Message& one : in) got.insert(one.received());
    compare(act, kAnySourceRow, absl::StrJoin(got, ",", absl::PairFormatter(":")),
            absl::StrJoin(want, ",", absl::PairFormatter(":")));
  }

  // Each member sends to the `step`-th behind it.
  void ring(const Act& act, int step) {
    const int to = (me_ + step) % n(), from = (me_ + n() - step) % n();
    Bytes sent = sent_by(me_, act);
    const Bytes& want = sent_by(from, act);
    Bytes got(want.size() + kMoreRoom);
    sent.reserve(1);
    MPI_Status status;
    MPI_Sendrecv(sent.data(), static_cast<int>(sent.size()), MPI_BYTE, to, act.id, got.data(),
                 static_cast<int>(got.size()), MPI_BYTE, from, act.id, comm_, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    got.resize(static_cast<size_t>(count));
    ++repeated_.rows[kRingRow].calls;
    compare(act, kRingRow, text(got), text(want));
  }

  // Several messages of two tags, which the receiver takes in an order of its own.
  void crossed(const Act& act) {
    const int from = act.a % n(), to = act.b % n();
    if (me_ != from && me_ != to) return;
    const Crossing crossing = crossing_of(act);
    const std::vector<Bytes>& sent = given_by(from, act)[0];
    const auto tag = [&](size_t i) { return 2 * act.id + crossing.tags[i]; };
    std::vector<Message> out(sent.size()), in(sent.size());
    for (size_t i = 0; me_ == from && i < sent.size(); ++i) out[i].send(sent[i], to, tag(i), comm_);
    std::string got, want;
    for (size_t i = 0; me_ == to && i < sent.size(); ++i) {
      const auto taken = static_cast<size_t>(crossing.taken[i]);
      ++repeated_.rows[kCrossedRow].calls;
      in[i].receive(sent[taken].size(), from, tag(taken), comm_);
      want += text(sent[taken]);
    }
    for (size_t i = 0; me_ == to && i < sent.size(); ++i) got += in[i].received().second;
    if (me_ == to) compare(act, kCrossedRow, got, want);
    for (size_t i = 0; me_ == from && i < sent.size(); ++i) out[i].wait();
  }

  void collective(const Act& act, const JobCall& call, size_t part) {
    const auto number = static_cast<size_t>(call.op);
    Repeated::Row& row = repeated_.rows[number];
    if (!mpi_has(call)) {
      row.left_out += me_ == 0;
      return;
    }
    row.calls += me_ == 0;
    std::vector<std::vector<Bytes>> inputs;
    if (call.type() != OpType::kBarrier) {
      for (int member = 0; member < n(); ++member) inputs.push_back(given_by(member, act)[part]);
    }
    const std::string got = made_by_mpi(call, inputs.empty() ? std::vector<Bytes>() : inputs[at(me_)], comm_);
    if (call.type() == OpType::kBarrier) return;
    if (call.type() == OpType::kReduce && me_ != call.root % n()) return;  // leaves its input
    const std::string want = result_of(call, act.id, inputs, me_);
    std::array<bool, kDifferences> differs = {};
    const bool written = got != want && got.size() == want.size() && is_reduction(call.type()) &&
                         all_written(call, inputs, got, want, &differs);
    compare(act, number, written ? want : got, want);
    row.exact += !want.empty() && (!is_reduction(call.type()) || is_exact(call));
    row.written += written;
    for (size_t i = 0; written && i < kDifferences; ++i) {
      if (differs[i]) ++repeated_.kinds[i][call.reduce][call.dtype];
    }
  }

  // Whether each element that differs does so in a written way.
  bool all_written(const JobCall& call, const std::vector<std::vector<Bytes>>& inputs, const std::string& got,
                   const std::string& want, std::array<bool, kDifferences>* differs) const {
    const size_t width = dtype_size(call.element());
    std::vector<Bytes> reduced;
    for (const std::vector<Bytes>& own : inputs) reduced.push_back(prepared(call, reduced_part(call, own)));
    const auto element = [width](const auto& bytes, size_t at) {
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(width));
    };
    for (size_t at = 0; at < want.size(); at += width) {
      if (got.compare(at, width, want, at, width) == 0) continue;
      std::vector<Bytes> values;
      for (const Bytes& own : reduced) values.push_back(element(own, at));
      const auto difference = difference_of(call, values, element(got, at), element(want, at));
      if (!difference) return false;
      (*differs)[static_cast<size_t>(*difference)] = true;
    }
    return true;
  }

  // The bytes that a member gives to this process's result, as long as that.
  Bytes reduced_part(const JobCall& call, const std::vector<Bytes>& tensors) const {
    if (call.type() == OpType::kReduceScatter) return tensors[at(me_)];
    const bool scattered =
        call.type() == OpType::kReduceScatterTensor || call.type() == OpType::kReduceScatterTensorCoalesced;
    Bytes all;
    for (const Bytes& bytes : tensors) {
      const auto size = static_cast<std::ptrdiff_t>(bytes.size()) / (scattered ? n() : 1);
      const auto begin = bytes.begin() + (scattered ? me_ * size : 0);
      all.insert(all.end(), begin, begin + size);
    }
    return all;
  }

  void compare(const Act& act, size_t row, const std::string& got, const std::string& want) {
    repeated_.rows[row].results += !want.empty();
    if (got == want) return;
    ++repeated_.rows[row].wrong;
    const auto differs = std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first;
    const size_t from = static_cast<size_t>(differs - got.begin()) / 16 * 16;
    const auto bytes = [from](const std::string& all) { return absl::BytesToHexString(all.substr(from, 64)); };
    std::printf(
        "seed %lu, act %d, %s, rank %d of %s: MPI has %zu bytes, the oracle %zu; from byte %zu on\n  %s\n  %s\n%s",
        seed_, act.id, row_name(row).c_str(), me_, absl::StrJoin(members_, ",").c_str(), got.size(), want.size(), from,
        bytes(got).c_str(), bytes(want).c_str(), to_text(plan_.job()).c_str());
  }

  const Plan& plan_;
  const Given& given_;
  const uint64_t seed_;
  const int rank_;
  Repeated& repeated_;
  Communicators communicators_;
  // Of the act:
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<int> members_;  // global ranks
  int me_ = 0;
};

}  // namespace

Repeated::Row Repeated::sum() const {
  Row all;
  for (const Row& row : rows) {
    all.calls += row.calls;
    all.left_out += row.left_out;
    all.results += row.results;
    all.exact += row.exact;
    all.written += row.written;
    all.wrong += row.wrong;
  }
  return all;
}

std::string Repeated::text() const {
  std::string text;
  const auto add_row = [&text](const std::string& name, const Row& row) {
    absl::StrAppendFormat(&text, "%-34s%9d%9d%9d%9d%9d%9d\n", name, row.calls, row.results, row.exact, row.written,
                          row.wrong, row.left_out);
  };
  absl::StrAppendFormat(&text, "%-34s%9s%9s%9s%9s%9s%9s\n", "by MPI itself", "calls", "results", "exact", "written",
                        "wrong", "left out");
  for (size_t row = 0; row < kRows; ++row) {
    if (rows[row].calls + rows[row].left_out > 0) add_row(row_name(row), rows[row]);
  }
  add_row("all", sum());
  for (size_t i = 0; i < kDifferences; ++i) {
    int64_t results = 0;
    std::string where;
    for (int reduce = 0; reduce < kReductions; ++reduce) {
      for (int dtype = 0; dtype < internal::kDTypeCount; ++dtype) {
        const int64_t times = kinds[i][reduce][dtype];
        if (times == 0) continue;
        results += times;
        absl::StrAppend(&where, where.empty() ? "" : ", ", ReduceOp(static_cast<ReduceOp::Kind>(reduce)).name(), " ",
                        std::string(dtype_name(static_cast<DType>(dtype))), " ", times);
      }
    }
    if (results == 0) continue;
    absl::StrAppendFormat(&text, "%s: %d results (%s)\n  %s\n", kWrittenDifferences[i].name, results, where,
                          kWrittenDifferences[i].reason);
  }
  return text;
}

void repeat_by_mpi(const Plan& plan, const Given& given, uint64_t seed, Repeated* repeated) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Repetition(plan, given, seed, rank, repeated).run();
}

}  // namespace rankloom
