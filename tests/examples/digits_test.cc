#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "examples/digits/dataset.h"
#include "examples/digits/mlp.h"

namespace digits {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::SizeIs;

// A line of 64 pixels, all of them `pixel`, and a label.
std::string line_of(const std::string& pixel, const std::string& label) {
  std::string line;
  for (int i = 0; i < kPixels; ++i) line += pixel + ",";
  return line + label + "\n";
}

absl::StatusOr<Dataset> parse(const std::string& text) {
  std::istringstream input(text);
  return parse_digits(input, "digits.csv");
}

std::string error_of(const std::string& text) { return std::string(parse(text).status().message()); }

TEST(LoadDigitsTest, ReadsTheShippedFile) {
  const absl::StatusOr<Dataset> data = load_digits(DIGITS_CSV);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->rows(), 1797);
  EXPECT_THAT(data->pixels, SizeIs(1797 * kPixels));
  std::vector<int> of_class(kClasses);
  for (const int32_t label : data->labels) ++of_class[label];
  EXPECT_THAT(of_class, ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
}

TEST(LoadDigitsTest, ScalesPixelsToOne) {
  std::string line = line_of("4", "7");
  line.replace(0, 1, "16");
  const absl::StatusOr<Dataset> data = parse(line_of("0", "3") + line);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->labels, ElementsAre(3, 7));
  EXPECT_EQ(data->row(0)[63], 0.0f);
  EXPECT_EQ(data->row(1)[0], 1.0f);
  EXPECT_EQ(data->row(1)[63], 0.25f);
}

TEST(LoadDigitsTest, TakesALastLineWithoutLineEnd) {
  const absl::StatusOr<Dataset> data = parse(line_of("0", "3") + line_of("1", "4").substr(0, 2 * kPixels + 1));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->labels, ElementsAre(3, 4));
}

TEST(LoadDigitsTest, NamesAFileThatIsNotThere) {
  const absl::Status status = load_digits("no_such_folder/digits.csv").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no_such_folder/digits.csv: cannot open it: No such file or directory");
}

TEST(LoadDigitsTest, NamesAFolder) {
  const absl::Status status = load_digits(testing::TempDir()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), EndsWith(": reading failed"));
}

TEST(LoadDigitsTest, NamesTheLineWithTooFewOrTooManyValues) {
  const std::string good = line_of("0", "3");
  EXPECT_EQ(error_of(good + "1,2,3\n"), "digits.csv, line 2: have 3 values, want 65 (64 pixels and a label)");
  EXPECT_EQ(error_of(good + good + "5," + good), "digits.csv, line 3: have 66 values, want 65 (64 pixels and a label)");
  EXPECT_EQ(error_of(good + "\n" + good), "digits.csv, line 2: have 0 values, want 65 (64 pixels and a label)");
  EXPECT_EQ(parse("1,2,3\n").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoadDigitsTest, NamesThePixelThatIsOutOfRange) {
  std::string line = line_of("0", "3");
  line.replace(2, 1, "17");
  EXPECT_EQ(error_of(line), "digits.csv, line 1: pixel 2: have \"17\", want an integer from 0 to 16");
  EXPECT_EQ(error_of(line_of("-1", "3")), "digits.csv, line 1: pixel 1: have \"-1\", want an integer from 0 to 16");
  EXPECT_EQ(error_of(line_of("0.5", "3")), "digits.csv, line 1: pixel 1: have \"0.5\", want an integer from 0 to 16");
  EXPECT_EQ(error_of(line_of("", "3")), "digits.csv, line 1: pixel 1: have \"\", want an integer from 0 to 16");
}

TEST(LoadDigitsTest, NamesALabelThatIsOutOfRange) {
  EXPECT_EQ(error_of(line_of("0", "10")), "digits.csv, line 1: label: have \"10\", want an integer from 0 to 9");
  EXPECT_EQ(error_of(line_of("0", "x\x01")), "digits.csv, line 1: label: have \"x\\x01\", want an integer from 0 to 9");
}

TEST(LoadDigitsTest, WantsARow) { EXPECT_EQ(error_of(""), "digits.csv: have 0 rows, want at least 1"); }

TEST(SplitRowsTest, PutsEveryRowInExactlyOnePart) {
  for (const int rows : {1, 2, 5, 6, 1797}) {
    const Split split = split_rows(rows, 7);
    EXPECT_EQ(split.test.size(), static_cast<size_t>((rows + 4) / 5)) << rows;
    std::vector<int> all = split.train;
    all.insert(all.end(), split.test.begin(), split.test.end());
    std::sort(all.begin(), all.end());
    std::vector<int> want(rows);
    std::iota(want.begin(), want.end(), 0);
    EXPECT_EQ(all, want);
  }
}

TEST(SplitRowsTest, DependsOnTheSeedOnly) {
  EXPECT_EQ(split_rows(1797, 7).test, split_rows(1797, 7).test);
  EXPECT_NE(split_rows(1797, 7).test, split_rows(1797, 8).test);
}

// A seed means the same run on every machine and with every standard library.
TEST(SplitRowsTest, IsFixedForASeed) { EXPECT_THAT(split_rows(10, 1).test, ElementsAre(7, 4)); }

TEST(EpochOrderTest, IsAnOrderOfTheTrainingRowsThatChangesWithEpochAndSeed) {
  const std::vector<int> train = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29};
  const std::vector<int> order = epoch_order(train, 7, 1);
  EXPECT_THAT(order, testing::UnorderedElementsAreArray(train));
  EXPECT_EQ(order, epoch_order(train, 7, 1));
  EXPECT_NE(order, epoch_order(train, 7, 2));
  EXPECT_NE(order, epoch_order(train, 8, 1));
}

// Six rows with pixels and labels of no particular meaning.
Dataset made_up_rows() {
  Dataset data;
  for (int row = 0; row < 6; ++row) {
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      data.pixels.push_back(static_cast<float>((row * 31 + pixel * pixel * 7 + pixel) % (kMaxPixel + 1)) / kMaxPixel);
    }
    data.labels.push_back(row * 7 % kClasses);
  }
  return data;
}

void ignore_bucket(std::span<float> /*bucket*/) {}

// The classifier once more, in float64 and in the plainest form: the sum of the losses of `rows`.
double reference_loss(const Dataset& data, std::span<const int> rows, const std::vector<double>& weights) {
  const double* hidden_matrix = weights.data();
  const double* hidden_bias = hidden_matrix + kPixels * Mlp::kHidden;
  const double* output_matrix = hidden_bias + Mlp::kHidden;
  const double* output_bias = output_matrix + Mlp::kHidden * kClasses;
  double loss = 0;
  for (const int row : rows) {
    std::vector<double> hidden(hidden_bias, hidden_bias + Mlp::kHidden);
    for (int h = 0; h < Mlp::kHidden; ++h) {
      for (int p = 0; p < kPixels; ++p) hidden[h] += data.row(row)[p] * hidden_matrix[p * Mlp::kHidden + h];
      hidden[h] = std::max(hidden[h], 0.0);
    }
    std::vector<double> logits(output_bias, output_bias + kClasses);
    double sum = 0;
    for (int c = 0; c < kClasses; ++c) {
      for (int h = 0; h < Mlp::kHidden; ++h) logits[c] += hidden[h] * output_matrix[h * kClasses + c];
      sum += std::exp(logits[c]);
    }
    loss += std::log(sum) - logits[data.labels[row]];
  }
  return loss;
}

TEST(MlpTest, GradientsAreTheSlopesOfTheLoss) {
  const Dataset data = made_up_rows();
  const std::vector<int> rows = {4, 1, 5};
  Mlp model;
  model.init(3);
  for (float& weight : model.weights()) weight += 0.01f;  // so that no bias is 0
  const double loss = model.compute_gradients(data, rows, /*scale=*/0.5f, &ignore_bucket);

  std::vector<double> weights(model.weights().begin(), model.weights().end());
  EXPECT_NEAR(loss, reference_loss(data, rows, weights), 1e-5);
  double largest_slope = 0;
  for (int i = 0; i < Mlp::kSize; ++i) {
    const double weight = weights[i];
    constexpr double kStep = 1e-6;
    weights[i] = weight + kStep;
    const double above = reference_loss(data, rows, weights);
    weights[i] = weight - kStep;
    const double below = reference_loss(data, rows, weights);
    weights[i] = weight;
    const double slope = (above - below) / (2 * kStep);
    largest_slope = std::max(largest_slope, std::abs(slope));
    ASSERT_NEAR(model.gradients()[i], 0.5 * slope, 1e-5) << "parameter " << i;
  }
  EXPECT_GT(largest_slope, 0.1);
}

TEST(MlpTest, HandsOverEachLayersGradientsWhenTheyAreDone) {
  const Dataset data = made_up_rows();
  const std::vector<int> rows = {0, 1, 2, 3};
  Mlp model;
  model.init(3);
  std::vector<std::span<float>> buckets;
  std::vector<float> as_handed_over;
  model.compute_gradients(data, rows, 1.0f, [&](std::span<float> bucket) {
    buckets.push_back(bucket);
    as_handed_over.insert(as_handed_over.begin(), bucket.begin(), bucket.end());
  });
  ASSERT_THAT(buckets, SizeIs(2));
  EXPECT_EQ(buckets[0].data(), model.gradients().data() + Mlp::kHiddenLayerSize);
  EXPECT_EQ(buckets[0].size(), static_cast<size_t>(Mlp::kOutputLayerSize));
  EXPECT_EQ(buckets[1].data(), model.gradients().data());
  EXPECT_EQ(buckets[1].size(), static_cast<size_t>(Mlp::kHiddenLayerSize));
  EXPECT_EQ(as_handed_over, std::vector<float>(model.gradients().begin(), model.gradients().end()));
}

// The case of a rank that got no row of a small batch.
TEST(MlpTest, NoRowsGiveNoLossAndNoGradients) {
  const Dataset data = made_up_rows();
  Mlp model;
  model.init(3);
  const std::vector<int> some = {0, 1};
  model.compute_gradients(data, some, 1.0f, &ignore_bucket);
  int buckets = 0;
  EXPECT_EQ(model.compute_gradients(data, {}, 1.0f, [&](std::span<float> /*bucket*/) { ++buckets; }), 0.0);
  EXPECT_EQ(buckets, 2);
  EXPECT_THAT(model.gradients(), testing::Each(0.0f));
}

// Shards of unequal size, scaled as train_digits does it, average to the mean gradient of the whole batch.
TEST(MlpTest, ScaledShardsAverageToTheBatch) {
  const Dataset data = made_up_rows();
  const std::vector<int> batch = {0, 1, 2, 3, 4};
  Mlp model;
  model.init(3);
  model.compute_gradients(data, batch, 1.0f / 5, &ignore_bucket);
  const std::vector<float> whole(model.gradients().begin(), model.gradients().end());
  std::vector<float> average(Mlp::kSize);
  for (const std::span<const int> shard :
       {std::span(batch).first(1), std::span(batch).subspan(1, 0), std::span(batch).subspan(1)}) {
    model.compute_gradients(data, shard, 3.0f / 5, &ignore_bucket);
    for (int i = 0; i < Mlp::kSize; ++i) average[i] += model.gradients()[i] / 3;
  }
  EXPECT_THAT(average, testing::Pointwise(testing::FloatNear(1e-6f), whole));
}

TEST(MlpTest, StepsAlongTheGradientsWithMomentum) {
  const Dataset data = made_up_rows();
  const std::vector<int> rows = {0, 1};
  Mlp model;
  model.init(3);
  const std::vector<float> before(model.weights().begin(), model.weights().end());
  model.compute_gradients(data, rows, 1.0f, &ignore_bucket);
  const int i = Mlp::kSize - 1;  // an output's bias: its gradient is never 0
  const float gradient = model.gradients()[i];
  model.step({.learning_rate = 0.5f, .momentum = 0.25f});
  EXPECT_FLOAT_EQ(model.weights()[i], before[i] - 0.5f * gradient);
  model.step({.learning_rate = 0.5f, .momentum = 0.25f});
  EXPECT_FLOAT_EQ(model.weights()[i], before[i] - 0.5f * gradient - 0.5f * 1.25f * gradient);
}

TEST(MlpTest, LearnsAFewRows) {
  const Dataset data = made_up_rows();
  const std::vector<int> rows = {0, 1, 2, 3, 4, 5};
  Mlp model;
  model.init(3);
  double loss = 0;
  for (int i = 0; i < 200; ++i) {
    loss = model.compute_gradients(data, rows, 1.0f / 6, &ignore_bucket);
    model.step({});
  }
  EXPECT_LT(loss, 0.1);
  for (const int row : rows) EXPECT_EQ(model.predict(data.row(row)), data.labels[row]) << "row " << row;
}

TEST(MlpTest, WeightsAndHashDependOnTheSeedOnly) {
  Mlp a;
  Mlp b;
  a.init(3);
  b.init(3);
  EXPECT_EQ(a.weights_hash(), b.weights_hash());
  b.init(4);
  EXPECT_NE(a.weights_hash(), b.weights_hash());
}

TEST(MlpTest, HashSeesOneBit) {
  Mlp model;
  model.init(3);
  const uint64_t before = model.weights_hash();
  float& last = model.weights().back();
  last = std::nextafter(last, 1.0f);
  EXPECT_NE(model.weights_hash(), before);
}

}  // namespace
}  // namespace digits
