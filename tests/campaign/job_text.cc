#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/campaign/job.h"
#include "tests/campaign/store_script.h"

namespace rankloom {

namespace {

constexpr std::array<std::string_view, static_cast<size_t>(ActKind::kCount)> kActNames = {
    "collective",    "coalesced",     "message",
    "any_source",    "ring",          "crossed",
    "two_groups",    "wait",          "monitored_barrier",
    "new_group",     "split_group",   "mesh",
    "init_group",    "destroy_group", "options",
    "refused",       "store",         "store_meeting",
    "store_timeout", "shared_count",  "yield",
    "sleep",         "random",        "helper",
    "nested_world",  "throw",         "abort_world",
    "abort_group",   "drop_work",     "leave",
    "other_call",    "group_timeout",
};

// Names of a number's values: those of the library's enums are part of no format.
struct Names {
  int count;
  std::string (*of)(int number);
};
constexpr Names kOpNames = {internal::kOpTypeCount,
                            [](int number) { return std::string(op_name(static_cast<OpType>(number))); }};
constexpr Names kDTypeNames = {internal::kDTypeCount,
                               [](int number) { return std::string(dtype_name(static_cast<DType>(number))); }};
constexpr Names kReduceNames = {internal::kReduceOpCount, [](int number) {
                                  const auto kind = static_cast<ReduceOp::Kind>(number);
                                  return kind == ReduceOp::Kind::kPremulSum ? "premul_sum" : ReduceOp(kind).name();
                                }};
// JobCall::order and Job::rooted have none.
static_assert(static_cast<int>(ReduceOp::Order::Kind::kSeeded) == 4);
static_assert(static_cast<int>(GroupOptions::Rooted::kBySchedule) == 2);

template <typename T>
struct Field {
  std::string_view name;
  int T::*number;
  const Names* names = nullptr;
};
constexpr Field<Job> kJobFields[] = {
    {"world_size", &Job::world_size}, {"seed", &Job::seed},         {"eager_bytes", &Job::eager_bytes},
    {"rooted", &Job::rooted},         {"recorded", &Job::recorded}, {"two_worlds", &Job::two_worlds},
    {"order", &Job::order},           {"options", &Job::options},   {"fault_rate", &Job::fault_rate},
};
constexpr Field<Act> kActFields[] = {
    {"id", &Act::id}, {"group", &Act::group}, {"dim", &Act::dim}, {"rank", &Act::rank}, {"a", &Act::a},
    {"b", &Act::b},   {"c", &Act::c},         {"way", &Act::way}, {"seed", &Act::seed},
};
constexpr Field<JobCall> kCallFields[] = {
    {"op", &JobCall::op, &kOpNames},
    {"dtype", &JobCall::dtype, &kDTypeNames},
    {"reduce", &JobCall::reduce, &kReduceNames},
    {"count", &JobCall::count},
    {"uneven", &JobCall::uneven},
    {"root", &JobCall::root},
    {"values", &JobCall::values},
    {"order", &JobCall::order},
    {"in_place", &JobCall::in_place},
    {"rows", &JobCall::rows},
    {"factor", &JobCall::factor},
    {"timed", &JobCall::timed},
};

template <typename T, size_t N>
void write(const T& object, const Field<T> (&fields)[N], std::string* text) {
  const T usual = {};
  for (const Field<T>& field : fields) {
    const int number = object.*field.number;
    if (number == usual.*field.number) continue;
    absl::StrAppend(text, " ", std::string(field.name), "=");
    if (field.names != nullptr) {
      *text += field.names->of(number);
    } else {
      absl::StrAppend(text, number);
    }
  }
}

bool read_name(std::string_view word, const Names& names, int* number) {
  for (int value = 0; value < names.count; ++value) {
    if (names.of(value) != word) continue;
    *number = value;
    return true;
  }
  return false;
}

bool read_number(std::string_view word, int* number) {
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, *number);
  return error == std::errc() && stop == end;
}

// The numbers of a line, behind its first word. Returns what is wrong with it; empty: nothing.
template <typename T, size_t N>
std::string read(const std::vector<std::string>& words, const Field<T> (&fields)[N], T* object) {
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos) return absl::StrCat(words[i], ": want a name, = and a value");
    bool has_field = false, known = false;
    for (const Field<T>& field : fields) {
      if (words[i].substr(0, equals) != field.name) continue;
      has_field = true;
      const std::string_view value = std::string_view(words[i]).substr(equals + 1);
      int* const number = &(object->*field.number);
      known = field.names != nullptr ? read_name(value, *field.names, number) : read_number(value, number);
    }
    if (!has_field) return absl::StrCat(words[i], ": no field is called so");
    if (!known) return absl::StrCat(words[i], ": not a value that the field can have");
  }
  return "";
}

struct Range {
  std::string_view field;
  int have, first, last;
};
std::string out_of_range(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    if (range.have >= range.first && range.have <= range.last) continue;
    return absl::StrCat(std::string(range.field), "=", range.have, ": want ", range.first, " to ", range.last);
  }
  return "";
}

constexpr int kMany = 1 << 30, kOrders = 12;

std::string out_of_range(const Job& job) {
  return out_of_range({{"world_size", job.world_size, 1, 256},
                       {"seed", job.seed, 0, kMany},
                       {"eager_bytes", job.eager_bytes, 0, kMany},
                       {"rooted", job.rooted, 0, 2},
                       {"recorded", job.recorded, 0, kMany},
                       {"two_worlds", job.two_worlds, 0, 1},
                       {"order", job.order, 0, kOrders},
                       {"options", job.options, 0, kWorldOptions - 1},
                       {"fault_rate", job.fault_rate, 0, 1000}});
}

std::string out_of_range(const JobCall& call) {
  if (std::find(kCollectives.begin(), kCollectives.end(), call.type()) == kCollectives.end())
    return absl::StrCat("op=", std::string(op_name(call.type())), ": no collective");
  return out_of_range({{"count", call.count, 0, 1 << 24},
                       {"uneven", call.uneven, 0, 1 << 10},
                       {"root", call.root, 0, kMany},
                       {"values", call.values, 0, static_cast<int>(Values::kCount) - 1},
                       {"order", call.order, 0, kOrders},
                       {"in_place", call.in_place, 0, 1},
                       {"rows", call.rows, 1, 1 << 10},
                       {"factor", call.factor, 0, kMany},
                       {"timed", call.timed, 0, 1}});
}

// The last value that the `a` of an act may have, and its `b` and `c`.
std::array<int, 3> last_choices(const Act& act) {
  constexpr int kStores = static_cast<int>(ScriptStore::kCount);
  switch (act.type()) {
    case ActKind::kWait:
      return {kMany, static_cast<int>(WaitWay::kCount) - 1, kMany};
    case ActKind::kRefused:
      return {kRefusals - 1, kMany, kMany};
    case ActKind::kStoreMeeting:
      return {kMeetings - 1, 1, 1};
    case ActKind::kGroupTimeout:
      return {kTimeouts - 1, kMany, 1};
    case ActKind::kStoreScript:
    case ActKind::kHelper:
      return {kStores - 1, kMany, kMany};
    case ActKind::kNestedWorld:
      return {3, kMany, kMany};
    default:
      return {kMany, kMany, kMany};
  }
}

std::string out_of_range(const Act& act) {
  const auto [a, b, c] = last_choices(act);
  return out_of_range({{"a", act.a, 0, a},
                       {"b", act.b, 0, b},
                       {"c", act.c, 0, c},
                       {"id", act.id, 1, kMany},
                       {"group", act.group, 0, kMany},
                       {"dim", act.dim, 0, 1},
                       {"rank", act.rank, 0, kMany},
                       {"way", act.way, 0, static_cast<int>(Way::kCount) - 1},
                       {"seed", act.seed, 0, kMany}});
}

bool has_call(const Act& act) { return act.type() >= ActKind::kCollective && act.type() <= ActKind::kTwoGroups; }

}  // namespace

std::string_view act_name(ActKind kind) { return kActNames[static_cast<size_t>(kind)]; }

std::string to_text(const Job& job) {
  std::string text = "job";
  write(job, kJobFields, &text);
  text += "\n";
  for (const Fault& fault : job.faults) absl::StrAppend(&text, "fault ", fault.text(), "\n");
  for (const Act& act : job.acts) {
    text += act_name(act.type());
    write(act, kActFields, &text);
    text += "\n";
    if (has_call(act)) {
      text += "  call";
      write(act.call, kCallFields, &text);
      text += "\n";
    }
    for (const JobCall& part : act.parts) {
      text += "  part";
      write(part, kCallFields, &text);
      text += "\n";
    }
  }
  return text;
}

absl::StatusOr<Job> parse_job(std::string_view text) {
  Job job;
  bool has_job = false;
  int number = 0;
  const auto wrong = [&](const std::string& what) {
    return make_error(ErrorKind::kInvalidArgument, absl::StrCat("line ", number, " of a job: ", what));
  };
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(absl::string_view(text.data(), text.size()), '\n'))) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    if (words[0] == "job") {
      has_job = true;
      if (const std::string why = read(words, kJobFields, &job); !why.empty()) return wrong(why);
      continue;
    }
    if (words[0] == "fault") {
      const absl::StatusOr<FaultPlan> plan = FaultPlan::parse(line.substr(line.find("fault ") + 6));
      if (!plan.ok()) return wrong(std::string(plan.status().message()));
      for (const Fault& fault : plan->faults()) job.faults.push_back(fault);
      continue;
    }
    if (words[0] == "call" || words[0] == "part") {
      if (job.acts.empty()) return wrong("a call before the first act");
      JobCall call;
      if (const std::string why = read(words, kCallFields, &call); !why.empty()) return wrong(why);
      if (const std::string why = out_of_range(call); !why.empty()) return wrong(why);
      if (words[0] == "call") {
        job.acts.back().call = call;
      } else {
        job.acts.back().parts.push_back(call);
      }
      continue;
    }
    Act act;
    while (act.kind < static_cast<int>(ActKind::kCount) && act_name(act.type()) != words[0]) ++act.kind;
    if (act.kind == static_cast<int>(ActKind::kCount)) return wrong(absl::StrCat("no act is called ", words[0]));
    if (const std::string why = read(words, kActFields, &act); !why.empty()) return wrong(why);
    if (const std::string why = out_of_range(act); !why.empty()) return wrong(why);
    for (const Act& other : job.acts) {
      if (other.id == act.id) return wrong(absl::StrCat("two acts have the id ", act.id));
    }
    job.acts.push_back(act);
  }
  if (job.world_size < 1) return wrong("a world without ranks");
  if (const std::string why = out_of_range(job); !why.empty()) return wrong(why);
  for (const Act& act : job.acts) {
    if (act.type() == ActKind::kTwoGroups && act.parts.size() != 1)
      return wrong(absl::StrCat("act ", act.id, ": want one part"));
  }
  if (!has_job) return make_error(ErrorKind::kInvalidArgument, "a file without a job");
  return job;
}

}  // namespace rankloom
