#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/campaign/oracle.h"
#include "tests/campaign/rank_words.h"

namespace rankloom {

// Parts of a program in C++.
std::string hex_text(std::string_view bytes);
std::string literal_text(std::string_view text);  // in quotes
std::string list_text(const std::vector<std::string>& items);
std::string list_text(const std::vector<int>& items);
std::string order_text(const ReduceOp::Order& order);

// One rank of a job as C++: the calls that RankRun makes for it, with the values that it gives and must see. The
// differences that RankRun makes between acts, members and ways stand here a second time.
class RankPrinter {
 public:
  // `expected`: of this rank.
  RankPrinter(const Plan& plan, const RankLog& expected, const Given& given, int rank);

  // The function's body.
  std::string print();

 private:
  // A call's tensors, by the names of their views.
  struct Views {
    std::vector<std::string> in, out;
    std::vector<std::string> fills;  // statements
  };
  // Calls that the rank has made and not waited for.
  struct Open {
    std::string outputs;        // what the rank sees then
    std::string snapshot = {};  // or what a kernel saw; empty: none did
    bool streamed = false;
    bool has_result = false;
    int event_way = -1;  // -1: has no event
  };

  template <typename... Parts>
  void line(const Parts&... parts) {
    text_.append(indent_, ' ');
    absl::StrAppend(&text_, parts..., "\n");
  }
  void begin(const std::string& what = "") {
    line(what, what.empty() ? "{" : " {");
    indent_ += 2;
  }
  void end(const std::string& what = "") {
    indent_ -= 2;
    line("}", what);
  }
  std::string head() const;

  static std::string name(std::string_view kind, int act) { return absl::StrCat(std::string(kind), act); }
  static std::string group_name(int act, int dim) { return absl::StrCat("g", act, dim == 0 ? "" : "_1"); }
  static std::string group(const Act& act) { return group_name(act.group, act.dim); }
  std::string sight(int act) const;
  void see(int act, const std::string& have);  // a text
  std::string given(int act, size_t part, size_t tensor) const;
  std::string stream(int i);  // which the rank has from then on

  // Views and calls.
  void tensors(const Act& act) { line("const auto ", name("t", act.id), " = memory.tensors();"); }
  std::string view(const std::string& view, int act, const JobCall& call, int64_t numel);
  std::string own_view(const std::string& view, const std::vector<std::string>& whole, int64_t part, int64_t numel,
                       int member);
  Views views(const Act& act, const JobCall& call, int part, const Partition& where, const std::string& prefix);
  static std::string splits_text(const JobCall& call, int size, int member);
  std::string call_text(const std::string& group, const JobCall& call, int act, const Partition& where,
                        const Views& views, Way way);
  void fill(const Act& act, const std::vector<std::string>& fills, bool streamed);

  // The acts that are calls.
  void call(const Act& act, const Partition& where);
  void collective(const Act& act, const Partition& where);
  void two_groups(const Act& act, const Partition& where);
  void coalesced(const Act& act, const Partition& where);
  void message(const Act& act, int size, int member);
  void any_source(const Act& act, int size, int member);
  void ring(const Act& act, int size, int member);
  void crossed(const Act& act, int size, int member);
  void push(int act, const std::string& work) { line(name("w", act), ".push_back(", work, ");"); }
  void keep(const Act& act, const Open& open);
  void finish(int act, WaitWay way);
  std::vector<std::string> finish_streams(int act, const Open& open);
  void wait(int act, WaitWay way);
  void wait_for_one(int act, WaitWay way);
  void come(const Act& act, const JobCall& call, int part, const std::vector<int>& members);
  void drop(int act);

  // The others.
  bool step(const Act& act, const Partition& where);  // false: the rank does nothing more
  void step_of_rank(const Act& act, const Partition& where);
  void monitored(const Act& act, const std::vector<int>& members);
  void options(const Act& act);
  void refused(const Act& act, int size, int member);
  void meet(const Act& act);
  void meet_with_all(const Act& act);
  void meet_last(const Act& act);
  void shared_count(const Act& act);
  void helper(const Act& act);
  void other_call(const Act& act, int member);
  void stands_alone(const Act& act, int size, int member);
  void make_groups(const Act& act, const Partition& where);
  void mesh(const Act& act, int size);

  const Plan& plan_;
  const Job& job_;
  const RankLog& expected_;
  const Given& given_;
  const int me_;
  std::map<int, Open> open_;
  std::map<int, std::vector<std::string>> groups_;  // by act: the names that are declared
  std::map<int, bool> works_;                       // by act: whether there is an event as well
  bool has_stream_[2] = {};
  bool draws_ = false;
  size_t indent_ = 2;
  std::string text_;
};

}  // namespace rankloom
