// Runs a fuzz target without a fuzzer, so that the target stays alive under every compiler, and what a fuzzer found can
// be run in a debugger:
//     NAME                  over inputs that are made up, the same every time
//     NAME --inputs N CORPUS  over the files of that folder, and N inputs that are made from them
//     NAME FILE...          over these files only

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "rankloom/random.h"
#include "tests/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kKept = 1000;

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// The files of a folder by name: a folder has no order of its own.
std::vector<std::string> corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const std::filesystem::path& path : paths) {
    // A target that ends here has said why; this says where.
    std::fprintf(stderr, "%s\n", path.filename().c_str());
    inputs.push_back(rankloom::read_file(path.string()));
    run(inputs.back());
  }
  return inputs;
}

void make_inputs(int count, std::vector<std::string> kept) {
  rankloom::Prng prng(1);
  kept.insert(kept.end(), {"", std::string(1, '\0')});
  for (int i = 0; i < count; ++i) {
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
    if (kept.size() < kKept) {
      kept.push_back(input);
    } else {
      kept[prng.below(kept.size())] = input;
    }
  }
  std::printf("%d inputs\n", count);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--inputs") {
    make_inputs(std::atoi(argv[2]), corpus(argv[3]));
  } else if (argc > 1) {
    for (int i = 1; i < argc; ++i) {
      if (!std::filesystem::is_regular_file(argv[i])) {
        std::fprintf(stderr, "%s: no file\n", argv[i]);
        return 2;
      }
    }
    for (int i = 1; i < argc; ++i) run(rankloom::read_file(argv[i]));
  } else {
    make_inputs(5000, {});
  }
}
