#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rankloom/rankloom.h"

namespace rankloom::example {

// Sizes of a decoder with grouped-query attention and a gated MLP. The defaults are Llama 3 70B's (A. Dubey et al.: The
// Llama 3 herd of models, 2024, table 3).
struct TransformerSizes {
  int64_t layers = 80;
  int64_t hidden = 8192;
  int64_t ffn = 28672;
  int64_t heads = 64;
  int64_t kv_heads = 8;
  int64_t vocabulary = 128256;

  int64_t layer_parameters() const;  // matrices alone; a layer has 2 * hidden of norms beside them
};

// How it is spread: the world is pp * dp * tp ranks, tp next to each other.
struct Layout {
  int pp = 4;    // pipeline stages, 1F1B
  int dp = 512;  // FSDP: parameters are gathered once a step and kept, as Llama 3 did; gradients are reduced in float32
  int tp = 8;    // with sequence parallelism: activations between blocks are split along the sequence
  int micro_batches = 16;  // of one sequence each
  int64_t sequence = 8192;

  int world_size() const { return pp * dp * tp; }
};

// Matrix products at this speed, in floating-point operations a second: about what Llama 3's training reached on an
// H100.
inline constexpr double kFlops = 400e12;

// Tensor parallelism within a node, the others across.
CostModel links_of_a_cluster();

// The calls of rank `rank` of the layout in one training step. Errors: std::invalid_argument for sizes that do not
// divide.
std::shared_ptr<CallRecord> trace_step(const TransformerSizes& sizes, const Layout& layout, int rank,
                                       const CostModel& model);

}  // namespace rankloom::example
