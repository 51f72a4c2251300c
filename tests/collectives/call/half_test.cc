#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "rankloom/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rankloom {
namespace {

// The value, rounded to a multiple of `unit` (a power of two): nearest, ties to even. Independent of the code
// under test: exact arithmetic in double.
double round_to_multiple(double value, double unit) { return std::nearbyint(value / unit) * unit; }

// The nearest number with `mantissa_bits` after the leading one and the smallest normal exponent `lowest`.
double nearest(double value, int mantissa_bits, int lowest) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), lowest);
  return round_to_multiple(value, std::ldexp(1.0, exponent - mantissa_bits));
}

float expected_half(float value) {
  const double rounded = nearest(value, 10, -14);
  return std::abs(rounded) >= 65536 ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                    : static_cast<float>(rounded);
}

// Every exponent and sign with mantissas around all places where rounding decides, and a walk over all others.
template <class Check>
void for_many_floats(Check check) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      check(std::bit_cast<float>(high << 16 | low));
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 9973)
    check(std::bit_cast<float>(static_cast<uint32_t>(bits)));
}

TEST(HalfTest, EveryHalfBecomesItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const int mantissa = static_cast<int>(bits & 0x3ff);
    const auto value = static_cast<float>(Half::from_bits(static_cast<uint16_t>(bits)));
    EXPECT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0) << bits;
      EXPECT_EQ(std::isinf(value), mantissa == 0) << bits;
    } else if (exponent == 0) {
      EXPECT_EQ(std::abs(value), std::ldexp(static_cast<float>(mantissa), -24)) << bits;
    } else {
      EXPECT_EQ(std::abs(value), std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25)) << bits;
    }
  }
}

TEST(HalfTest, EveryHalfComesBackFromFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half = Half::from_bits(static_cast<uint16_t>(bits));
    const uint32_t quiet = std::isnan(static_cast<float>(half)) ? 0x0200 : 0;
    EXPECT_EQ(Half(static_cast<float>(half)).bits, bits | quiet);
  }
}

TEST(HalfTest, FloatsRoundToTheNearestTiesToEven) {
  int64_t wrong = 0;
  for_many_floats([&wrong](float value) {
    if (!std::isfinite(value)) return;
    const auto rounded = static_cast<float>(Half(value));
    const float expected = expected_half(value);
    if (std::bit_cast<uint32_t>(rounded) != std::bit_cast<uint32_t>(expected)) {
      if (++wrong < 10) ADD_FAILURE() << value << " became " << rounded << ", want " << expected;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(HalfTest, OverflowGoesToInfinityFromTheMiddleOn) {
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(Half(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(HalfTest, TheSmallestSubnormalRoundsFromItsHalf) {
  EXPECT_EQ(Half(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(Half(0x1p-25f).bits, 0x0000);  // a tie: to even
  EXPECT_EQ(Half(std::nextafter(0x1p-25f, 1.0f)).bits, 0x0001);
  EXPECT_EQ(Half(-0x1p-25f).bits, 0x8000);
  EXPECT_EQ(Half(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(Half(0x1.ff8p-15f).bits, 0x03ff);  // the largest subnormal
  EXPECT_EQ(Half(0x1.ffcp-15f).bits, 0x0400);  // a tie: up to the smallest normal, which is even
}

TEST(HalfTest, NanStaysNanWithItsSign) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc12345u}) {
    const Half half(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(half)));
    EXPECT_EQ(half.bits >> 15, bits >> 31);
    EXPECT_NE(half.bits & 0x0200, 0) << "signalling NaN became no quiet one";
  }
  EXPECT_FALSE(Half(std::bit_cast<float>(0x7fc00000)) == Half(std::bit_cast<float>(0x7fc00000)));
}

#if defined(__x86_64__)
[[gnu::target("f16c")]] uint16_t hardware_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
[[gnu::target("f16c")]] float hardware_float(uint16_t bits) { return _cvtsh_ss(bits); }

TEST(HalfTest, BitsAreThoseOfTheHardware) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2, and so perhaps no F16C";
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(Half::from_bits(half))),
              std::bit_cast<uint32_t>(hardware_float(half)));
  }
  int64_t wrong = 0;
  for_many_floats([&wrong](float value) { wrong += Half(value).bits != hardware_half(value) ? 1 : 0; });
  EXPECT_EQ(wrong, 0);
}

// All 2^32 floats, in a minute or so: --gtest_also_run_disabled_tests.
TEST(HalfTest, DISABLED_BitsOfEveryFloatAreThoseOfTheHardware) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2, and so perhaps no F16C";
  int64_t wrong = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; ++bits) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    wrong += Half(value).bits != hardware_half(value) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
}
#endif

TEST(BFloat16Test, EveryBFloat16ComesBackFromFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value = BFloat16::from_bits(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(value)), bits << 16);
    const uint32_t quiet = std::isnan(static_cast<float>(value)) ? 0x0040 : 0;
    EXPECT_EQ(BFloat16(static_cast<float>(value)).bits, bits | quiet);
  }
}

TEST(BFloat16Test, FloatsRoundToTheNearestTiesToEven) {
  int64_t wrong = 0;
  for_many_floats([&wrong](float value) {
    if (!std::isfinite(value)) return;
    // Beyond the largest finite number the next one would be 2^128.
    const double rounded = nearest(value, 7, -126);
    const float expected = std::abs(rounded) >= 0x1p128 ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                                        : static_cast<float>(rounded);
    if (std::bit_cast<uint32_t>(static_cast<float>(BFloat16(value))) != std::bit_cast<uint32_t>(expected)) {
      if (++wrong < 10)
        ADD_FAILURE() << value << " became " << static_cast<float>(BFloat16(value)) << ", want " << expected;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(BFloat16Test, NanDoesNotRoundToInfinityOrZero) {
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x7f800001)).bits, 0x7fc0);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x7fffffff)).bits, 0x7fff);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0xffffffff)).bits, 0xffff);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

}  // namespace
}  // namespace rankloom
