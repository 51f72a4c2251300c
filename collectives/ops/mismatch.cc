#include "collectives/ops/mismatch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "collectives/ops/op_table.h"
#include "rankloom/error.h"
#include "sim/base/ranks_text.h"
#include "sim/base/site_text.h"
#include "sim/base/text.h"

namespace rankloom::internal {
namespace {

// A report is read by people: what goes on is counted instead.
constexpr size_t kMaxValues = 8;    // distinct values of a field, distinct calls
constexpr size_t kMaxSites = 3;     // call sites of a value
constexpr size_t kMaxPairs = 8;     // pairs of members
constexpr size_t kMaxReasons = 16;  // places of missing ranks
constexpr size_t kMaxLastCalls = 5;

// ---- a table of text ----

constexpr size_t kColumns = 4;
using Line = std::array<std::string, kColumns>;

// "  field | value      | ranks  | call site", columns aligned.
void append_table(const std::vector<Line>& lines, std::string* text) {
  std::array<size_t, kColumns> width = {};
  for (const Line& line : lines) {
    for (size_t c = 0; c < kColumns; ++c) width[c] = std::max(width[c], line[c].size());
  }
  for (const Line& line : lines) {
    absl::StrAppend(text, "\n ");
    for (size_t c = 0; c < kColumns; ++c) {
      absl::StrAppend(text, c == 0 ? " " : " | ", line[c]);
      if (c + 1 < kColumns) text->append(width[c] - line[c].size(), ' ');
    }
  }
}

// ---- members by value ----

std::string site_of(const CollectiveCall& call) {
  if (call.code.file == nullptr || *call.code.file == '\0') return "unknown";
  return absl::StrCat(sv(base_name(call.code.file)), ":", call.code.line);
}

// The label that init_device_mesh() agrees on, "mesh [2, 2] (dp, tp)", by a new_group of its own.
constexpr std::string_view kMesh = "mesh ";
bool is_mesh(const CollectiveCall& call) {
  return call.op == OpType::kNewGroup && std::string_view(call.label.get()).starts_with("mesh [");
}

// Members whose calls have one value. Indices are those of by_rank.
struct Class {
  const CollectiveCall* call = nullptr;  // of the first member
  std::vector<int> members;
};

// The arrived members, by equality; `rest` gets those beyond the first kMaxValues values.
std::vector<Class> classes(MemberCalls calls,
                           absl::FunctionRef<bool(const CollectiveCall&, const CollectiveCall&)> equal,
                           std::vector<int>* rest) {
  std::vector<Class> found;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i] == nullptr) continue;
    const auto at = std::find_if(found.begin(), found.end(), [&](const Class& c) { return equal(*c.call, *calls[i]); });
    if (at != found.end()) {
      at->members.push_back(static_cast<int>(i));
    } else if (found.size() < kMaxValues) {
      found.push_back({calls[i], {static_cast<int>(i)}});
    } else {
      rest->push_back(static_cast<int>(i));
    }
  }
  return found;
}

class Report {
 public:
  Report(const MismatchContext& context, MemberCalls calls) : context_(context), calls_(calls) {}

  std::string text() {
    std::vector<Line> table;
    add_fields(calls_, "", &table);
    const bool fields_differ = !table.empty();
    std::vector<std::string> pairs;
    if (!fields_differ) pairs = faulty_pairs();
    // Inputs may differ from rank to rank in all_gather; once they do not fit, they help to see why.
    if (!pairs.empty() && first_call()->op == OpType::kAllGather) {
      add_field(calls_, kCallFields[static_cast<size_t>(CallField::kShape)], "", &table);
    }

    std::string text = headline(fields_differ || !pairs.empty());
    for (const std::string& pair : pairs) absl::StrAppend(&text, "\n  ", pair);
    if (!table.empty()) {
      table.insert(table.begin(), Line{"field", "value", "ranks", "call site"});
      append_table(table, &text);
    }
    append_missing(&text);
    append_last_calls(&text);
    return text;
  }

 private:
  std::vector<int> global_ranks(const std::vector<int>& members) const {
    std::vector<int> ranks;
    ranks.reserve(members.size());
    for (const int member : members) ranks.push_back(context_.global_rank(member));
    return ranks;
  }
  std::string globals(const std::vector<int>& members) const { return short_ranks(global_ranks(members)); }

  const CollectiveCall* first_call() const {
    for (const CollectiveCall* call : calls_) {
      if (call != nullptr) return call;
    }
    return nullptr;
  }

  std::string headline(bool differ) const {
    std::string text = absl::StrCat("group ", sv(context_.group));
    if (const CollectiveCall* first = first_call();
        first != nullptr && !op_row(first->op).is_collective() && calls_.size() == 2) {
      return absl::StrCat(text, ", send from rank ", context_.global_rank(0), " to rank ", context_.global_rank(1),
                          ", tag ", first->tag, ", seq ", context_.seq, ": sender and receiver issued different calls");
    }
    absl::StrAppend(&text, ", seq ", context_.seq, ": ");
    const bool meshes =
        std::all_of(calls_.begin(), calls_.end(), [](const auto* call) { return call == nullptr || is_mesh(*call); });
    if (differ) return text + "members issued different calls" + (meshes ? " of init_device_mesh" : "");
    const auto missing = std::count(calls_.begin(), calls_.end(), nullptr);
    return absl::StrCat(text, missing, " of ", calls_.size(), " members did not arrive");
  }

  // "1", or "1 (rank 3 of the world)" where the two differ: a call names its root by the rank in the group.
  std::string value_text(const CallFieldRow& field, const CollectiveCall& call) const {
    const std::string text = field.text(call);
    const bool names_member = field.field == CallField::kRoot && call.root >= 0 && call.root < std::ssize(calls_);
    const int global = names_member ? context_.global_rank(call.root) : call.root;
    return global == call.root ? text : absl::StrCat(text, " (rank ", global, " of the world)");
  }

  // The distinct call sites of a class, and how many more there are.
  std::string sites_text(MemberCalls calls, const std::vector<int>& members) const {
    std::vector<std::string> sites;
    bool more = false;
    const CollectiveCall* last = nullptr;
    for (const int member : members) {
      const CollectiveCall* call = calls[static_cast<size_t>(member)];
      if (last != nullptr && call->code.file == last->code.file && call->code.line == last->code.line) continue;
      last = call;
      std::string site = site_of(*call);
      if (std::find(sites.begin(), sites.end(), site) != sites.end()) continue;
      if (sites.size() == kMaxSites) {
        more = true;
        break;
      }
      sites.push_back(std::move(site));
    }
    std::string text;
    for (const std::string& site : sites) absl::StrAppend(&text, text.empty() ? "" : ", ", site);
    return more ? text + ", ..." : text;
  }

  // Lines for every field on which the arrived calls differ. Fields that only some of the operations have are left out:
  // the operation itself differs then.
  void add_fields(MemberCalls calls, const std::string& prefix, std::vector<Line>* table) const {
    auto shared = static_cast<CallFields>(~0U);
    for (const CollectiveCall* call : calls) {
      if (call != nullptr) shared &= op_row(call->op).fields;
    }
    for (const CallFieldRow& field : kCallFields) {
      if ((shared & field_bit(field.field)) == 0) continue;
      if (field.field == CallField::kParts && add_parts(calls, prefix, table)) continue;
      add_field(calls, field, prefix, table);
    }
  }

  // Lines for one field, if the arrived calls differ on it.
  void add_field(MemberCalls calls, const CallFieldRow& field, const std::string& prefix,
                 std::vector<Line>* table) const {
    std::vector<int> rest;
    const std::vector<Class> values = classes(calls, field.equal, &rest);
    if (values.size() < 2) return;
    const bool meshes =
        field.field == CallField::kLabel &&
        std::all_of(calls.begin(), calls.end(), [](const auto* call) { return call == nullptr || is_mesh(*call); });
    std::string name = prefix + (meshes ? "mesh" : field.name);
    for (const Class& value : values) {
      table->push_back(
          {std::exchange(name, ""),
           meshes ? std::string(value.call->label.get()).substr(kMesh.size()) : value_text(field, *value.call),
           globals(value.members), sites_text(calls, value.members)});
    }
    if (!rest.empty()) table->push_back({"", "other values", globals(rest), sites_text(calls, rest)});
  }

  // Coalesced calls with equally many collectives: the fields of each, "call 1 dtype". False: their numbers differ.
  bool add_parts(MemberCalls calls, const std::string& prefix, std::vector<Line>* table) const {
    std::vector<PartCalls> parts(calls.size());
    size_t count = 0;
    bool first = true;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] == nullptr) continue;
      parts[i] = collective_parts(*calls[i]);
      if (!first && parts[i].size() != count) return false;
      count = parts[i].size();
      first = false;
    }
    std::vector<const CollectiveCall*> kth(calls.size(), nullptr);
    for (size_t k = 0; k < count; ++k) {
      for (size_t i = 0; i < calls.size(); ++i) kth[i] = calls[i] == nullptr ? nullptr : parts[i][k];
      add_fields(kth, absl::StrCat(prefix, "call ", k, " "), table);
    }
    return true;
  }

  static std::string amount(const PairFault& fault, int64_t count, int64_t row) {
    std::string text = absl::StrCat(count, fault.in_rows ? " row" : " element", count == 1 ? "" : "s");
    if (fault.in_rows && fault.sent_row != fault.expected_row && count != 0) absl::StrAppend(&text, " of ", row);
    return text;
  }

  // Where every field agrees: pairs of members that expect different sizes of each other, as lines.
  std::vector<std::string> faulty_pairs() {
    std::vector<std::string> lines;
    const CollectiveCall* first = first_call();
    if (first == nullptr || op_row(first->op).cross == nullptr) return lines;
    size_t more = 0;
    op_row(first->op).cross(calls_, [&](const PairFault& fault) {
      if (lines.size() == kMaxPairs) {
        ++more;
        return true;
      }
      if (lines.empty()) first_pair_ = {fault.sender, fault.receiver};
      lines.push_back(absl::StrCat(
          "rank ", context_.global_rank(fault.sender), " sends ", amount(fault, fault.sent, fault.sent_row),
          " to rank ", context_.global_rank(fault.receiver), ", which expects ",
          amount(fault, fault.expected, fault.expected_row), " (", site_of(*calls_[static_cast<size_t>(fault.sender)]),
          ", ", site_of(*calls_[static_cast<size_t>(fault.receiver)]), ")"));
      return true;
    });
    if (more > 0) lines.push_back(absl::StrCat("and ", more, " more pair", more == 1 ? "" : "s"));
    return lines;
  }

  void append_missing(std::string* text) const {
    struct Reason {
      std::string where;
      std::vector<int> members;
    };
    std::vector<Reason> reasons;
    std::vector<int> rest;
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i] != nullptr) continue;
      std::string where = context_.whereabouts(static_cast<int>(i));
      const auto at =
          std::find_if(reasons.begin(), reasons.end(), [&where](const Reason& r) { return r.where == where; });
      if (at != reasons.end()) {
        at->members.push_back(static_cast<int>(i));
      } else if (reasons.size() < kMaxReasons) {
        reasons.push_back({std::move(where), {static_cast<int>(i)}});
      } else {
        rest.push_back(static_cast<int>(i));
      }
    }
    if (reasons.empty()) return;
    absl::StrAppend(text, "\nmissing:");
    for (const Reason& reason : reasons) append_ranks_line(reason.members, reason.where, text);
    if (!rest.empty()) append_ranks_line(rest, "elsewhere", text);
  }

  void append_ranks_line(const std::vector<int>& members, const std::string& what, std::string* text) const {
    absl::StrAppend(text, "\n  ", short_ranks_text(global_ranks(members)), ": ", what);
  }

  // One member of each distinct call; where calls agree but for pairs, the first pair.
  void append_last_calls(std::string* text) const {
    std::vector<int> chosen = first_pair_;
    if (chosen.empty()) {
      std::vector<int> rest;
      const auto same = [](const CollectiveCall& a, const CollectiveCall& b) { return op_row(a.op).same(a, b); };
      for (const Class& c : classes(calls_, same, &rest)) chosen.push_back(c.members[0]);
    }
    if (chosen.size() == 2 && chosen[0] == chosen[1]) chosen.pop_back();
    for (const int member : chosen) {
      const std::vector<std::string> lines = context_.last_calls(member);
      if (lines.empty()) continue;
      absl::StrAppend(text, "\nlast calls of rank ", context_.global_rank(member), ":");
      const size_t first = lines.size() > kMaxLastCalls ? lines.size() - kMaxLastCalls : 0;
      for (size_t i = first; i < lines.size(); ++i) {
        // The call of this report is a member's last one.
        const CollectiveCall* const call = calls_[static_cast<size_t>(member)];
        const bool mesh = i + 1 == lines.size() && call != nullptr && is_mesh(*call);
        absl::StrAppend(text, "\n  ",
                        mesh ? absl::StrReplaceAll(lines[i], {{"new_group ", "init_device_mesh "}}) : lines[i]);
      }
    }
  }

  const MismatchContext& context_;
  const MemberCalls calls_;
  std::vector<int> first_pair_;  // of a fault between members
};

}  // namespace

absl::Status describe_mismatch(const MismatchContext& context, MemberCalls by_rank) {
  return make_error(ErrorKind::kMismatch, Report(context, by_rank).text());
}

}  // namespace rankloom::internal
