// Reductions of three ranks, one JSON object a line, for compare_with_torch.py: every operation and dtype that has a
// kernel, with values of each kind; what each rank gives, and what rankloom gives all (by the oracle, whose bits the
// kernels have).

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/campaign/oracle.h"

namespace {

using namespace rankloom;
using namespace rankloom::internal;

constexpr int kRanks = 3;
constexpr const char* kValues[] = {"small", "bits", "special"};

std::string hex(std::string_view bytes) {
  return absl::StrCat("\"", absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size())), "\"");
}

void write(const JobCall& call, int act) {
  std::vector<std::vector<Bytes>> inputs;
  std::vector<std::string> given;
  for (int rank = 0; rank < kRanks; ++rank) {
    inputs.push_back({input_bytes(call, act, 0, rank, 0, call.count, first_state(rank))});
    const Bytes& bytes = inputs.back()[0];
    given.push_back(hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
  }
  std::printf("{\"dtype\": \"%s\", \"op\": \"%s\", \"values\": \"%s\", \"inputs\": [%s], \"output\": %s}\n",
              std::string(dtype_name(call.element())).c_str(), reduce_of(call).name().c_str(), kValues[call.values],
              absl::StrJoin(given, ", ").c_str(), hex(result_of(call, act, inputs, 0)).c_str());
}

}  // namespace

int main() {
  int act = 0;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int reduce = 0; reduce <= static_cast<int>(ReduceOp::Kind::kPremulSum); ++reduce) {
      for (int values = 0; values < static_cast<int>(Values::kCount); ++values) {
        if (!has_kernel(static_cast<ReduceOp::Kind>(reduce), static_cast<DType>(dtype))) continue;
        write({.op = static_cast<int>(OpType::kAllReduce),
               .dtype = dtype,
               .reduce = reduce,
               .count = 200,
               .values = values},
              ++act);
      }
    }
  }
  return 0;
}
