#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace digits {

inline constexpr int kPixels = 64;
inline constexpr int kMaxPixel = 16;
inline constexpr int kClasses = 10;

// Images and their labels. Row i of `pixels` starts at i * kPixels.
struct Dataset {
  std::vector<float> pixels;  // scaled to [0, 1]
  std::vector<int32_t> labels;

  int rows() const { return static_cast<int>(labels.size()); }
  const float* row(int i) const { return pixels.data() + static_cast<size_t>(i) * kPixels; }
};

// Reads lines of 64 pixels (0..16) and a label (0..9), separated by commas, without a header.
// Errors: NotFound if there is no file to open, else as parse_digits.
absl::StatusOr<Dataset> load_digits(const std::string& path);

// The same from an open stream; `name` stands for the file in errors.
// Errors: DataLoss if reading fails half-way, else InvalidArgument such as `digits.csv, line 17: have 64 values, want
// 65 (64 pixels and a label)`.
absl::StatusOr<Dataset> parse_digits(std::istream& input, const std::string& name);

// Every row is in exactly one part.
struct Split {
  std::vector<int> train;
  std::vector<int> test;
};

// Puts one row in five, rounded up, into `test`. Depends on `rows` and `seed` only, so every rank can make it for
// itself.
Split split_rows(int rows, uint64_t seed);

// The order in which an epoch goes through the training rows. Depends on the arguments only.
std::vector<int> epoch_order(std::span<const int> train, uint64_t seed, int epoch);

}  // namespace digits
