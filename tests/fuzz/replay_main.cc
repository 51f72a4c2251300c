// Runs a fuzz target without a fuzzer: over the files it is given, or over inputs it makes up, the same every time. So
// a target stays alive under every compiler, and what a fuzzer found can be run in a debugger.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "rankloom/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kInputs = 5000;

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    run(std::string(std::istreambuf_iterator<char>(in), {}));
  }
  if (argc > 1) return 0;
  rankloom::Prng prng(1);
  std::vector<std::string> kept = {"", std::string(1, '\0')};
  for (int i = 0; i < kInputs; ++i) {
    std::string input = kept[prng.below(kept.size())];
    for (uint64_t changes = prng.below(8) + 1; changes > 0; --changes) {
      const auto byte = static_cast<char>(prng.below(2) == 0 ? prng.below(8) : prng.next());
      const size_t at = prng.below(input.size() + 1);
      switch (prng.below(4)) {
        case 0:
          input.insert(at, prng.below(16), byte);
          break;
        case 1:
          input = input.substr(0, at);
          break;
        case 2:
          input += kept[prng.below(kept.size())];
          break;
        default:
          if (at < input.size()) input[at] = byte;
          break;
      }
    }
    if (input.size() > 4096) continue;
    run(input);
    if (kept.size() < 1000) {
      kept.push_back(input);
    } else {
      kept[prng.below(kept.size())] = input;
    }
  }
  std::printf("%d inputs\n", kInputs);
}
