#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankloom/rankloom.h"
#include "tests/campaign/run_job.h"
#include "tests/campaign/store_script.h"

// The words of programs that to_cpp() prints.
namespace rankloom::printed {

// Memory of one tensor, from hexadecimal digits or of so many bytes.
class Memory {
 public:
  explicit Memory(std::string_view hex) {
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes_.push_back(static_cast<uint8_t>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
    }
  }
  explicit Memory(size_t bytes) : bytes_(bytes, 0xC3) {}
  TensorView as(DType dtype, Dims dims) { return {bytes_.data(), dtype, std::move(dims)}; }
  void write(const Memory& from) { bytes_ = from.bytes_; }
  std::string hex() const {
    std::string text;
    for (const uint8_t byte : bytes_) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }

 private:
  std::vector<uint8_t> bytes_;
};

// Ends the rank if it sees something else than the oracle.
inline void expect(int act, const std::string& have, const std::string& want) {
  if (have == want) return;
  throw std::logic_error("act " + std::to_string(act) + ": have " + have + ", want " + want);
}

// Those of `ranks` that the group has; the first if it has none.
inline std::vector<int> chosen(const ProcessGroup& group, const std::vector<int>& ranks) {
  std::vector<int> there;
  for (const int rank : ranks) {
    if (rank < group.size()) there.push_back(rank);
  }
  return there.empty() ? std::vector<int>{0} : there;
}

inline std::string run_script(RankContext& rank, int id, int store, int seed) {
  Act act;
  act.a = store;
  act.seed = seed;
  return rankloom::run_script(rank, script_of(act), id);
}

// Whether the job ended as planned: `fails` if it does so on purpose.
inline int end(const RunReport& report, bool fails) {
  bool wrong = !report.ok() && !fails;
  for (const RunReport::Outcome& outcome : report.outcomes)
    wrong = wrong || outcome.text.find(": have ") != std::string::npos;
  if (wrong) std::puts(report.text().c_str());
  return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace rankloom::printed
