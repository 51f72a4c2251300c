#include "examples/digits/dataset.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "examples/digits/random.h"

namespace digits {
namespace {

// Streams of Random: one seed, independent uses. Epoch e shuffles with kEpochStream + e.
constexpr uint64_t kSplitStream = uint64_t{1} << 32;
constexpr uint64_t kEpochStream = uint64_t{2} << 32;

// The text of a value as an error shows it: one line, however strange the file.
std::string in_quotes(absl::string_view value) {
  return absl::StrFormat("\"%s\"", absl::CHexEscape(value.substr(0, 20)));
}

absl::Status append_row(absl::string_view line, Dataset& data) {
  const std::vector<absl::string_view> values = absl::StrSplit(line, ',', absl::AllowEmpty());
  const size_t have = line.empty() ? 0 : values.size();
  if (have != kPixels + 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("have %d values, want %d (%d pixels and a label)", have, kPixels + 1, kPixels));
  }
  for (int i = 0; i < kPixels; ++i) {
    int pixel = 0;
    if (!absl::SimpleAtoi(values[i], &pixel) || pixel < 0 || pixel > kMaxPixel) {
      return absl::InvalidArgumentError(
          absl::StrFormat("pixel %d: have %s, want an integer from 0 to %d", i + 1, in_quotes(values[i]), kMaxPixel));
    }
    data.pixels.push_back(static_cast<float>(pixel) / kMaxPixel);
  }
  int label = 0;
  if (!absl::SimpleAtoi(values[kPixels], &label) || label < 0 || label >= kClasses) {
    return absl::InvalidArgumentError(
        absl::StrFormat("label: have %s, want an integer from 0 to %d", in_quotes(values[kPixels]), kClasses - 1));
  }
  data.labels.push_back(label);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dataset> parse_digits(std::istream& input, const std::string& name) {
  Dataset data;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    if (absl::Status row = append_row(line, data); !row.ok()) {
      return absl::Status(row.code(), absl::StrFormat("%s, line %d: %s", name, number, row.message()));
    }
  }
  if (input.bad()) return absl::DataLossError(absl::StrFormat("%s: reading failed", name));
  if (data.rows() == 0) return absl::InvalidArgumentError(absl::StrFormat("%s: have 0 rows, want at least 1", name));
  return data;
}

absl::StatusOr<Dataset> load_digits(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrFormat("%s: cannot open it: %s", path, std::strerror(errno)));
  return parse_digits(file, path);
}

Split split_rows(int rows, uint64_t seed) {
  std::vector<int> order(rows);
  std::iota(order.begin(), order.end(), 0);
  Random(seed, kSplitStream).shuffle(order);
  const auto first_train = order.begin() + (rows + 4) / 5;
  return {.train = std::vector<int>(first_train, order.end()), .test = std::vector<int>(order.begin(), first_train)};
}

std::vector<int> epoch_order(std::span<const int> train, uint64_t seed, int epoch) {
  std::vector<int> order(train.begin(), train.end());
  Random(seed, kEpochStream + static_cast<uint64_t>(epoch)).shuffle(order);
  return order;
}

}  // namespace digits
