#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "rankloom/error.h"

namespace rankloom {

// The text of the DistError that `call` throws; "no error" if it throws none.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const DistError& error) {
    return error.what();
  }
  return "no error";
}

// The same, and its kind is checked.
template <typename Call>
std::string error_of(Call call, ErrorKind kind) {
  return error_of([&] {
    try {
      call();
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      throw;
    }
  });
}

// " [world_test.cc:12]": how the text of an error ends whose call stands here. Within one macro all calls do.
inline std::string here(CodeSite code = CodeSite::here()) {
  const std::string_view path = code.file;
  return " [" + std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(code.line) + "]";
}

}  // namespace rankloom
