#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "examples/digits/dataset.h"

namespace digits {

struct SgdOptions {
  float learning_rate = 0.1f;
  float momentum = 0.9f;
};

// A classifier: 64 pixels, 64 hidden units with ReLU, softmax over 10 classes; float32.
//
// Parameters lie in one flat buffer, layer after layer, and gradients in another of the same layout. A layer is a
// matrix [inputs][outputs] and then a bias [outputs]: with outputs innermost, every inner loop runs over independent
// sums, so the compiler can vectorise it without reordering an addition.
//
// The gradients of one layer are a bucket, a contiguous span that can be reduced over the ranks while the gradients of
// the layer before it are still being computed.
//
// All memory is on the heap: a rank on a fiber has a small stack.
class Mlp {
 public:
  static constexpr int kHidden = 64;
  static constexpr int kHiddenLayerSize = kPixels * kHidden + kHidden;
  static constexpr int kOutputLayerSize = kHidden * kClasses + kClasses;
  static constexpr int kSize = kHiddenLayerSize + kOutputLayerSize;

  Mlp();

  // Draws the weights (He initialisation; biases are 0). Depends on the seed only.
  void init(uint64_t seed);

  std::span<float> weights() { return weights_; }
  std::span<const float> gradients() const { return gradients_; }

  // Sets the gradients to `scale` times the sum, over `rows`, of the gradients of a row's cross-entropy loss; returns
  // the sum of the losses, not scaled. `rows` may be empty.
  // `bucket_ready` is called once for each bucket, in the order in which they are done: output layer, hidden layer. The
  // bucket handed over is not touched again before the next call, nor are the weights.
  double compute_gradients(const Dataset& data, std::span<const int> rows, float scale,
                           absl::FunctionRef<void(std::span<float> bucket)> bucket_ready);

  // One step of SGD with momentum along the gradients.
  void step(const SgdOptions& options);

  // The most probable class of an image of kPixels pixels.
  int32_t predict(const float* pixels) const;

  // 64-bit FNV-1a hash of the bits of all weights.
  uint64_t weights_hash() const;

 private:
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::vector<float> velocity_;
  // Of the rows of one compute_gradients(), row after row: the hidden units, and the derivatives by the logits.
  std::vector<float> hidden_;
  std::vector<float> logit_gradients_;
};

}  // namespace digits
