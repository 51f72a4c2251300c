#include "sim/base/exception_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal {
namespace {

// Empty: unknown.
std::string type_name(const std::type_info& type) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed),
                                                         &std::free);
  return failed != 0 ? "" : name.get();
}

bool own_type(std::string_view name) {
  return name.starts_with("rankloom::") || name.starts_with("testing::") || name.starts_with("pybind11::");
}

}  // namespace

std::exception_ptr handled_exception() {
  std::exception_ptr handled = std::current_exception();
  if (handled == nullptr) {
    fatal(
        "left by pthread_exit(), by the cancellation of its thread or by an exception of another language, want it to "
        "return or to throw");
  }
  return handled;
}

std::string exception_type_text(const std::exception& error) {
  const std::string name = type_name(typeid(error));
  return name.empty() || own_type(name) ? "" : absl::StrCat(" (", name, ")");
}

std::string odd_exception_text() {
  (void)handled_exception();  // no text is made of one that may not be stopped
  const std::type_info* const type = abi::__cxa_current_exception_type();
  const std::string name = type != nullptr ? type_name(*type) : "";
  return absl::StrCat("an exception that is no std::exception", name.empty() ? "" : absl::StrCat(" (", name, ")"));
}

bool is_test_assertion(const std::exception& error) { return type_name(typeid(error)).starts_with("testing::"); }

}  // namespace rankloom::internal
