#include "examples/digits/mlp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "examples/digits/random.h"

namespace digits {
namespace {

constexpr uint64_t kInitStream = uint64_t{3} << 32;

using Hidden = std::array<float, Mlp::kHidden>;
using Logits = std::array<float, kClasses>;

// y = x * matrix + bias, with both in `layer`.
template <size_t kInputs, size_t kOutputs>
std::array<float, kOutputs> affine(const float* x, const float* layer) {
  std::array<float, kOutputs> y;
  std::copy_n(layer + kInputs * kOutputs, kOutputs, y.begin());
  for (size_t i = 0; i < kInputs; ++i) {
    for (size_t o = 0; o < kOutputs; ++o) y[o] += x[i] * layer[i * kOutputs + o];
  }
  return y;
}

// Adds one row's gradients, given the layer's input x and dy, the derivative of the loss by its output.
template <size_t kInputs, size_t kOutputs>
void add_gradients(const float* x, const std::array<float, kOutputs> dy, float* layer) {
  for (size_t i = 0; i < kInputs; ++i) {
    for (size_t o = 0; o < kOutputs; ++o) layer[i * kOutputs + o] += x[i] * dy[o];
  }
  for (size_t o = 0; o < kOutputs; ++o) layer[kInputs * kOutputs + o] += dy[o];
}

Hidden hidden_units(const float* pixels, const float* layer) {
  Hidden hidden = affine<kPixels, Mlp::kHidden>(pixels, layer);
  for (float& unit : hidden) unit = std::max(unit, 0.0f);
  return hidden;
}

// Turns logits into probabilities; returns the cross-entropy loss of `label`.
float softmax(Logits& logits, int32_t label) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  const float of_label = logits[label] - largest;
  float sum = 0;
  for (float& logit : logits) sum += logit = std::exp(logit - largest);
  for (float& logit : logits) logit /= sum;
  return std::log(sum) - of_label;
}

// Matrix and bias of one layer.
void draw_layer(Random& random, std::span<float> layer, int inputs, int outputs) {
  const float limit = std::sqrt(6.0f / static_cast<float>(inputs));
  std::fill(layer.begin(), layer.end(), 0.0f);
  for (float& weight : layer.first(layer.size() - outputs)) weight = random.symmetric(limit);
}

}  // namespace

Mlp::Mlp() : weights_(kSize), gradients_(kSize), velocity_(kSize) {}

void Mlp::init(uint64_t seed) {
  Random random(seed, kInitStream);
  draw_layer(random, weights().first(kHiddenLayerSize), kPixels, kHidden);
  draw_layer(random, weights().last(kOutputLayerSize), kHidden, kClasses);
}

double Mlp::compute_gradients(const Dataset& data, std::span<const int> rows, float scale,
                              absl::FunctionRef<void(std::span<float> bucket)> bucket_ready) {
  const float* hidden_layer = weights_.data();
  const float* output_layer = hidden_layer + kHiddenLayerSize;
  float* hidden_layer_gradients = gradients_.data();
  float* output_layer_gradients = hidden_layer_gradients + kHiddenLayerSize;
  hidden_.resize(rows.size() * kHidden);
  logit_gradients_.resize(rows.size() * kClasses);
  std::fill(gradients_.begin(), gradients_.end(), 0.0f);

  // Layer by layer over all rows, not row by row: so the output layer's bucket is done, and on its way, before the
  // hidden layer's is begun.
  double loss = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const Hidden hidden = hidden_units(data.row(rows[r]), hidden_layer);
    Logits logits = affine<kHidden, kClasses>(hidden.data(), output_layer);
    const int32_t label = data.labels[rows[r]];
    loss += softmax(logits, label);
    logits[label] -= 1.0f;  // now the derivative of the loss by the logits
    for (float& logit : logits) logit *= scale;
    add_gradients<kHidden>(hidden.data(), logits, output_layer_gradients);
    std::copy(hidden.begin(), hidden.end(), &hidden_[r * kHidden]);
    std::copy(logits.begin(), logits.end(), &logit_gradients_[r * kClasses]);
  }
  bucket_ready({output_layer_gradients, kOutputLayerSize});

  for (size_t r = 0; r < rows.size(); ++r) {
    Hidden hidden_gradients = {};
    for (int h = 0; h < kHidden; ++h) {
      if (hidden_[r * kHidden + h] <= 0.0f) continue;
      for (int c = 0; c < kClasses; ++c) {
        hidden_gradients[h] += output_layer[h * kClasses + c] * logit_gradients_[r * kClasses + c];
      }
    }
    add_gradients<kPixels>(data.row(rows[r]), hidden_gradients, hidden_layer_gradients);
  }
  bucket_ready({hidden_layer_gradients, kHiddenLayerSize});
  return loss;
}

void Mlp::step(const SgdOptions& options) {
  for (int i = 0; i < kSize; ++i) {
    velocity_[i] = options.momentum * velocity_[i] + gradients_[i];
    weights_[i] -= options.learning_rate * velocity_[i];
  }
}

int32_t Mlp::predict(const float* pixels) const {
  const Hidden hidden = hidden_units(pixels, weights_.data());
  const Logits logits = affine<kHidden, kClasses>(hidden.data(), weights_.data() + kHiddenLayerSize);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

uint64_t Mlp::weights_hash() const {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : std::as_bytes(std::span(weights_))) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace digits
