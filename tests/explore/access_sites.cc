#include "tests/explore/access_sites.h"

#include <cxxabi.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "collectives/work/work_state.h"

namespace rankloom {

using namespace internal;

namespace {

const char* what_name(StepRecord::What what) {
  constexpr std::array kNames = {"read",  "commute", "write", "signal", "await",    "raise",
                                 "lower", "miss",    "pass",  "born",   "all were", "settle"};
  return kNames[static_cast<size_t>(what)];
}

// Without arguments and namespaces. A lambda's acts are those of the function that it stands in.
std::string short_name(const char* symbol) {
  std::string name = symbol;
  if (name.starts_with("_Z")) {  // with an ABI tag, for one
    int status = 0;
    char* const demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    if (status == 0) name = demangled;
    std::free(demangled);
  }
  name = absl::StrReplaceAll(
      name, {{"rankloom::", ""}, {"(anonymous namespace)::", ""}, {"internal::", ""}, {"[abi:cxx11]", ""}});
  if (const size_t at = name.find('('); at != std::string::npos) name.resize(at);
  if (const size_t at = name.find('<'); at != std::string::npos) name.resize(at);
  if (const size_t at = name.rfind(' '); at != std::string::npos) name.erase(0, at + 1);  // a result's type
  return name == "Work::~Work" ? "Work::release" : name;  // the compiler may put the one into the other
}

// Functions that only hand on what they are told.
bool hands_on(std::string_view function) {
  constexpr std::string_view kClasses[] = {"StepRecord::", "Told::", "AccessSites::", "std::", "absl::", "Observed::"};
  constexpr std::string_view kFunctions[] = {
      "KeyTable::tell",         "KeyTable::tell_keys", "WorkState::record_touch",  "WorkState::touched",
      "WorkState::record_wait", "WorkState::waited",   "WorldState::record_group", "Rendezvous::touched_group",
      "Mailbox::touched_group", "ended_too_late",      "StoreState::tell_timeout"};
  return std::any_of(std::begin(kClasses), std::end(kClasses), [&](auto name) { return function.starts_with(name); }) ||
         std::find(std::begin(kFunctions), std::end(kFunctions), function) != std::end(kFunctions);
}

// Functions that tell several things in the name of their callers.
bool tells_for_others(std::string_view function) { return function.starts_with("KeyTable::tell_"); }

}  // namespace

AccessSites::AccessSites() { absl::InitializeSymbolizer("access_sites"); }

const std::string& AccessSites::function_at(void* pc) {
  const auto [it, added] = functions_.try_emplace(pc);
  if (!added) return it->second;
  char symbol[1024];
  // The call, not what comes after it.
  if (!absl::Symbolize(static_cast<char*>(pc) - 1, symbol, sizeof(symbol))) return it->second;
  return it->second = short_name(symbol);
}

int AccessSites::site(const StepRecord::Op& op) {
  void* pcs[24];
  const int n = backtrace(pcs, 24);
  std::string name = absl::StrCat(what_name(op.what), ":");
  const char* between = " ";
  int i = 1;
  // Until the record: what asks which site this is.
  while (i < n && !function_at(pcs[i]).starts_with("StepRecord::")) ++i;
  for (; i < n; ++i) {
    const std::string& function = function_at(pcs[i]);
    if (function.empty() || hands_on(function)) continue;
    absl::StrAppend(&name, between, function);
    if (!tells_for_others(function)) break;
    between = " < ";
  }
  const auto [it, added] = numbers_.try_emplace(name, static_cast<int>(names_.size()));
  if (added) {
    names_.push_back(name);
    whats_.push_back(op.what);
  }
  return it->second;
}

bool AccessSites::tells_of_orders(int site) const {
  using What = StepRecord::What;
  const What what = whats_[static_cast<size_t>(site)];
  return what == What::kSignal || what == What::kAwait || what == What::kRaise || what == What::kPass ||
         what == What::kTimePassed;
}

}  // namespace rankloom
