#include "rankloom/tensor.h"

namespace rankloom {

namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint32_t kFloatQuietBit = 0x00400000;

}  // namespace

// Both conversions give the bits of x86's VCVTPS2PH and VCVTPH2PS, NaN included: the payload's upper bits stay, and a
// signalling NaN becomes quiet.
Half::Half(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (all >> 16) & 0x8000;
  const uint32_t magnitude = all & 0x7fffffff;
  uint32_t result;
  if (magnitude > kFloatInfinity) {
    result = 0x7e00 | ((magnitude >> 13) & 0x03ff);
  } else if (magnitude >= 0x47800000) {  // 65536 and above; 65520 ... 65535 round up to infinity below
    result = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14: normal in both
    // Re-bias the exponent and round to nearest even; a carry out of the mantissa is right to go into the exponent.
    result = (magnitude - (112u << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  } else if (magnitude >= 0x33000000) {  // 2^-25: subnormal, or rounds to the smallest one
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x007fffff) | 0x00800000;
    const uint32_t shift = 126 - exponent;  // 14 ... 24: brings the unit to 2^-24
    const uint32_t kept = mantissa >> shift;
    const uint32_t dropped = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    result = kept + ((dropped > middle || (dropped == middle && (kept & 1) != 0)) ? 1 : 0);
  } else {
    result = 0;
  }
  bits = static_cast<uint16_t>(sign | result);
}

Half::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  uint32_t mantissa = bits & 0x03ff;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? kFloatQuietBit : 0;
    return std::bit_cast<float>(sign | kFloatInfinity | quiet | (mantissa << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: mantissa * 2^-24, normal as a float.
  const uint32_t leading = static_cast<uint32_t>(std::countl_zero(mantissa)) - 21;  // zeros above the top bit, of 11
  mantissa = (mantissa << leading) & 0x03ff;
  return std::bit_cast<float>(sign | ((113 - leading) << 23) | (mantissa << 13));
}

BFloat16::BFloat16(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  if ((all & 0x7fffffff) > kFloatInfinity) {
    bits = static_cast<uint16_t>((all | kFloatQuietBit) >> 16);  // rounding could carry a NaN into infinity or zero
  } else {
    bits = static_cast<uint16_t>((all + 0x7fff + ((all >> 16) & 1)) >> 16);
  }
}

}  // namespace rankloom
