// Random jobs for jobs_on_gloo.py, one JSON object a line: what each rank gives, and what the oracle says that it sees.
//   build/tests/campaign/write_jobs [--jobs N] [--seed S] [--ranks N] > jobs.jsonl

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/number_flags.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/todays_seed.h"

namespace {

using namespace rankloom;

std::string json_text(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

std::string hex(absl::string_view bytes) { return json_text(absl::BytesToHexString(bytes)); }

std::string hex(const Bytes& bytes) {
  return hex(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

template <typename List, typename Text>
std::string list(const List& items, const Text& text) {
  return absl::StrCat(
      "[", absl::StrJoin(items, ", ", [&](std::string* out, const auto& item) { absl::StrAppend(out, text(item)); }),
      "]");
}

std::string numbers(const std::vector<int64_t>& items) {
  return list(items, [](int64_t item) { return absl::StrCat(item); });
}

class Writer {
 public:
  explicit Writer(const Plan& plan) : plan_(plan), log_(oracle(plan, &given_)) {}

  std::string text() const {
    std::vector<std::string> acts;
    for (size_t i = 0; i < plan_.job().acts.size(); ++i) {
      const Partition* const where = plan_.where(i);
      if (where == nullptr || where->sets.empty()) continue;
      std::string act = act_text(plan_.job().acts[i], where->sets[0]);
      if (!act.empty()) acts.push_back(std::move(act));
    }
    return absl::StrCat("{\"seed\": ", plan_.job().seed, ", \"ranks\": ", plan_.job().world_size, ", \"acts\": [",
                        absl::StrJoin(acts, ", "), "]}");
  }

 private:
  // Empty: nothing that other ranks or libraries see.
  std::string act_text(const Act& act, const std::vector<int>& members) const {
    const int n = static_cast<int>(members.size());
    switch (act.type()) {
      case ActKind::kWait:
        return absl::StrCat("{\"kind\": \"wait\", \"rank\": ", act.rank, ", \"act\": ", act.a, "}");
      case ActKind::kNewGroup:
        return absl::StrCat("{\"kind\": \"new_group\", \"id\": ", act.id,
                            ", \"members\": ", ranks(plan_.made(act.id, 0)->sets[0]), "}");
      case ActKind::kMonitored:
        return absl::StrCat("{", head(act, "monitored_barrier", members), "}");
      case ActKind::kMessage:
        return absl::StrCat("{", head(act, "message", members), ", \"from\": ", act.a % n, ", \"to\": ", act.b % n,
                            tail(act, members), "}");
      case ActKind::kAnySource:
        return absl::StrCat("{", head(act, "any_source", members), ", \"to\": ", act.a % n, tail(act, members), "}");
      case ActKind::kRing:
        return absl::StrCat("{", head(act, "ring", members), ", \"by\": ", act.a % n, tail(act, members), "}");
      case ActKind::kCollective:
        return absl::StrCat("{", head(act, "collective", members), collective(act.call, n), tail(act, members), "}");
      default:
        return "";
    }
  }

  static std::string ranks(const std::vector<int>& members) {
    return list(members, [](int rank) { return absl::StrCat(rank); });
  }

  static std::string head(const Act& act, absl::string_view kind, const std::vector<int>& members) {
    return absl::StrCat("\"kind\": ", json_text(kind), ", \"id\": ", act.id, ", \"group\": ", act.group,
                        ", \"members\": ", ranks(members),
                        ", \"at_once\": ", act.way == static_cast<int>(Way::kAtOnce) ? "true" : "false");
  }

  static std::string collective(const JobCall& call, int n) {
    const bool reduces = has_kernel(static_cast<ReduceOp::Kind>(call.reduce), call.element());
    std::vector<int> all;
    for (int member = 0; member < n; ++member) all.push_back(member);
    return absl::StrCat(
        ", \"op\": ", json_text(op_text(call)), ", \"root\": ", call.root % n, ", \"uneven\": ", call.uneven,
        ", \"rows\": ", call.rows, ", \"reduce\": ", json_text(reduces ? reduce_of(call).name() : "sum"),
        ", \"outputs\": ", list(all, [&](int member) { return numbers(shape_of(call, n, member).outputs); }),
        ", \"splits\": ",
        list(all, [&](int i) { return list(all, [&](int j) { return absl::StrCat(between(call, i, j)); }); }));
  }

  static std::string op_text(const JobCall& call) { return std::string(op_name(call.type())); }

  // The element type, and by member the inputs and the sight.
  std::string tail(const Act& act, const std::vector<int>& members) const {
    const std::string_view dtype = dtype_name(act.call.element());
    return absl::StrCat(", \"dtype\": ", json_text({dtype.data(), dtype.size()}), ", \"inputs\": ",
                        list(members,
                             [&](int rank) {
                               const auto it = given_.find({rank, act.id});
                               if (it == given_.end()) return std::string("[]");
                               return list(it->second[0], [](const Bytes& bytes) { return hex(bytes); });
                             }),
                        ", \"saw\": ", list(members, [&](int rank) { return sight(rank, act.id); }));
  }

  std::string sight(int rank, int act) const {
    for (const Sight& seen : log_[static_cast<size_t>(rank)].seen) {
      if (seen.act == act) return hex(seen.saw);
    }
    return "null";
  }

  const Plan& plan_;
  Given given_;
  const JobLog log_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t jobs = 100, seed = todays_seed(), ranks = 0;  // 0: from 2 to 4
  if (!read_number_flags(argc, argv, {{"--jobs", &jobs}, {"--seed", &seed}, {"--ranks", &ranks}})) return 2;
  for (uint64_t i = 0; i < jobs; ++i) {
    const Job job = draw_job(seed + i, Palette::kTorch, static_cast<int>(ranks > 0 ? ranks : 2 + (seed + i) % 3));
    const Plan plan(job);
    std::printf("%s\n", Writer(plan).text().c_str());
  }
  return 0;
}
