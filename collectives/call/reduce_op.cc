#include <array>
#include <charconv>

#include "rankloom/collective_call.h"

namespace rankloom {

namespace {

// The shortest text that reads back as the same double, so that a mismatch of factors shows.
std::string shortest(double value) {
  std::array<char, 32> text;
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

}  // namespace

std::string ReduceOp::name() const {
  switch (kind_) {
    case Kind::kSum:
      return "sum";
    case Kind::kAvg:
      return "avg";
    case Kind::kProduct:
      return "product";
    case Kind::kMin:
      return "min";
    case Kind::kMax:
      return "max";
    case Kind::kBand:
      return "band";
    case Kind::kBor:
      return "bor";
    case Kind::kBxor:
      return "bxor";
    case Kind::kPremulSum:
      return "premul_sum(" + shortest(factor_) + ")";
  }
  return "?";
}

}  // namespace rankloom
