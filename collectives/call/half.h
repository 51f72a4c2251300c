#pragma once

#include <bit>
#include <complex>
#include <cstdint>

namespace rankloom {

using Complex64 = std::complex<float>;
using Complex128 = std::complex<double>;

// IEEE 754 binary16. Storage with conversions; arithmetic happens in float. Round to nearest, ties to even.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float value);
  explicit operator float() const;
  static Half from_bits(uint16_t bits) {
    Half h;
    h.bits = bits;
    return h;
  }
  friend bool operator==(Half a, Half b) { return float(a) == float(b); }
};

// The upper half of a binary32. Round to nearest, ties to even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BFloat16 from_bits(uint16_t bits) {
    BFloat16 b;
    b.bits = bits;
    return b;
  }
  friend bool operator==(BFloat16 a, BFloat16 b) { return float(a) == float(b); }
};

// OCP 8-bit floats; rankloom moves them and does no arithmetic on them.
struct Float8E4M3FN {
  uint8_t bits = 0;
  friend bool operator==(Float8E4M3FN, Float8E4M3FN) = default;
};
struct Float8E5M2 {
  uint8_t bits = 0;
  friend bool operator==(Float8E5M2, Float8E5M2) = default;
};

}  // namespace rankloom
