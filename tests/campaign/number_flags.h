#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"

namespace rankloom {

// A command line of flags that each have a number behind them: "--jobs 300". False: another word, or no number, which
// stderr says.
inline bool read_number_flags(int argc, char** argv,
                              std::initializer_list<std::pair<std::string_view, uint64_t*>> flags) {
  for (int i = 1; i < argc; i += 2) {
    uint64_t* number = nullptr;
    for (const auto& [name, of_flag] : flags) {
      if (name == argv[i]) number = of_flag;
    }
    if (number == nullptr || i + 1 == argc || !absl::SimpleAtoi(argv[i + 1], number)) {
      std::fprintf(stderr, "%s: %s\n", argv[i], number == nullptr ? "not known" : "want a number behind it");
      return false;
    }
  }
  return true;
}

}  // namespace rankloom
