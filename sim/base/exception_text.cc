#include "sim/base/exception_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <typeinfo>

#include "absl/strings/str_cat.h"

namespace rankloom::internal {
namespace {

bool own_type(std::string_view name) {
  return name.starts_with("rankloom::") || name.starts_with("testing::") || name.starts_with("pybind11::");
}

}  // namespace

std::string exception_type_text(const std::exception& error) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &failed), &std::free);
  return failed != 0 || own_type(name.get()) ? "" : absl::StrCat(" (", name.get(), ")");
}

}  // namespace rankloom::internal
