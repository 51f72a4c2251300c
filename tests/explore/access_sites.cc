#include "tests/explore/access_sites.h"

#include <cxxabi.h>
#include <execinfo.h>

#include <array>
#include <cstdint>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace rankloom {
namespace {

const char* what_name(StepRecord::What what) {
  constexpr std::array kNames = {"read",  "commute", "write", "signal", "await",   "raise",
                                 "lower", "miss",    "pass",  "born",   "all were"};
  return kNames[static_cast<size_t>(what)];
}

// Without arguments and namespaces.
std::string short_name(std::string name) {
  name = absl::StrReplaceAll(name, {{"rankloom::", ""}, {"(anonymous namespace)::", ""}, {"internal::", ""}});
  if (const size_t at = name.find('('); at != std::string::npos) name.resize(at);
  return name;
}

}  // namespace

const std::string& AccessSites::function_at(void* pc) {
  const auto [it, added] = functions_.try_emplace(pc);
  if (!added) return it->second;
  char name[512];
  // The call, not what comes after it.
  if (!absl::Symbolize(static_cast<char*>(pc) - 1, name, sizeof(name))) return it->second;
  // How the record was told, and who asked for the test.
  for (const char* const inner : {"StepRecord::", "ObjectName", "std::", "AccessSites", "leave_out", "Observed"}) {
    if (absl::StrContains(name, inner)) return it->second;
  }
  return it->second = short_name(name);
}

int AccessSites::site(const StepRecord::Op& op) {
  void* pcs[16];
  const int n = backtrace(pcs, 16);
  std::string name = absl::StrCat(what_name(op.what), ":");
  int found = 0;
  for (int i = 1; i < n && found < 3; ++i) {
    const std::string& function = function_at(pcs[i]);
    if (function.empty()) continue;
    if (absl::StrContains(function, "RankRun::")) break;  // the program
    absl::StrAppend(&name, found == 0 ? " " : " < ", function);
    ++found;
  }
  const auto [it, added] = numbers_.try_emplace(name, static_cast<int>(names_.size()));
  if (added) names_.push_back(name);
  return it->second;
}

}  // namespace rankloom
