#include <array>
#include <charconv>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/campaign/job.h"

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

// The numbers of a line, behind its first word.
template <typename T, size_t N>
bool read(const std::vector<std::string>& words, const Field<T> (&fields)[N], T* object) {
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos) return false;
    bool known = false;
    for (const Field<T>& field : fields) {
      if (words[i].substr(0, equals) != field.name) continue;
      const std::string_view value = std::string_view(words[i]).substr(equals + 1);
      int* const number = &(object->*field.number);
      known = field.names != nullptr ? read_name(value, *field.names, number) : read_number(value, number);
    }
    if (!known) return false;
  }
  return true;
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
      if (!read(words, kJobFields, &job)) return wrong("a number has no name, or another one");
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
      if (!read(words, kCallFields, &call)) return wrong("a number has no name, or another one");
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
    if (!read(words, kActFields, &act)) return wrong("a number has no name, or another one");
    job.acts.push_back(act);
  }
  if (job.world_size < 1) return wrong("a world without ranks");
  return job;
}

}  // namespace rankloom
