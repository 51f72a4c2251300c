#pragma once

namespace rankloom {

// A line of the caller's code, for reports. Public methods take one as their last argument, defaulted to here(), so that it
// names the line of the call. Cheap to copy; the file name has static lifetime unless the caller keeps it alive.
struct CodeSite {
  const char* file = "";
  int line = 0;

  // clang 14 has no std::source_location; the builtins give the same in both compilers.
  static constexpr CodeSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace rankloom
