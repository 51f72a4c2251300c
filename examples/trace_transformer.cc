// Traces one training step of a 70B transformer on 16,384 ranks, on a laptop, without a GPU: fake groups check every
// call and record it, a cost model says how long it would take. Prints a table for one rank of each pipeline stage and
// writes the traces (traces/step.rlrun for `rankloom report`, step.json for ui.perfetto.dev, PyTorch's execution trace
// and Chakra's .et a rank).
//   trace_transformer [--pp 4 --dp 512 --tp 8] [--micro_batches 16] [--out FOLDER] [--layers ... --hidden ... --ffn
//     ...]

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "examples/transformer/step.h"
#include "rankloom/rankloom.h"
#ifdef RANKLOOM_CHAKRA
#include "rankloom/chakra.h"
#endif

ABSL_FLAG(int, pp, 4, "pipeline stages");
ABSL_FLAG(int, dp, 512, "data-parallel (FSDP) ranks");
ABSL_FLAG(int, tp, 8, "tensor-parallel ranks");
ABSL_FLAG(int, micro_batches, 16, "micro-batches of one sequence");
ABSL_FLAG(int64_t, sequence, 8192, "tokens of a sequence");
ABSL_FLAG(int64_t, layers, 80, "layers");
ABSL_FLAG(int64_t, hidden, 8192, "hidden size");
ABSL_FLAG(int64_t, ffn, 28672, "size of the MLP");
ABSL_FLAG(int64_t, heads, 64, "attention heads");
ABSL_FLAG(int64_t, kv_heads, 8, "key and value heads");
ABSL_FLAG(int64_t, vocabulary, 128256, "tokens of the vocabulary");
ABSL_FLAG(std::string, out, "traces", "folder for the traces; empty: none are written");

namespace {

using namespace rankloom;
using namespace rankloom::example;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run() {
  const TransformerSizes sizes = {.layers = absl::GetFlag(FLAGS_layers),
                                  .hidden = absl::GetFlag(FLAGS_hidden),
                                  .ffn = absl::GetFlag(FLAGS_ffn),
                                  .heads = absl::GetFlag(FLAGS_heads),
                                  .kv_heads = absl::GetFlag(FLAGS_kv_heads),
                                  .vocabulary = absl::GetFlag(FLAGS_vocabulary)};
  const Layout layout = {.pp = absl::GetFlag(FLAGS_pp),
                         .dp = absl::GetFlag(FLAGS_dp),
                         .tp = absl::GetFlag(FLAGS_tp),
                         .micro_batches = absl::GetFlag(FLAGS_micro_batches),
                         .sequence = absl::GetFlag(FLAGS_sequence)};
  // Ranks of one stage make the same calls: one of each stage stands for all.
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<CallRecord>> stages;
  for (int stage = 0; stage < layout.pp; ++stage)
    stages.push_back(trace_step(sizes, layout, stage * layout.dp * layout.tp, links_of_a_cluster()));
  const double spent = seconds_since(begin);
  int64_t calls = 0;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const CallRecord& record = *stages[static_cast<size_t>(stage)];
    calls += record.calls();
    std::printf("\nstage %d: rank %d and %d others\n%s", stage, record.global_rank(), layout.dp * layout.tp - 1,
                record.table().c_str());
    std::printf("step %.1f ms, buffers of calls at most %.1f MB\n", absl::ToDoubleMilliseconds(record.end()),
                static_cast<double>(record.peak_buffer_bytes()) / 1e6);
  }
  std::printf("\n%d ranks (pp %d, dp %d, tp %d): %lld calls of %d stages traced in %.1f ms\n", layout.world_size(),
              layout.pp, layout.dp, layout.tp, static_cast<long long>(calls), layout.pp, spent * 1e3);

  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return 0;
  std::filesystem::create_directories(out);
  traces::write_run(stages, out + "/step.rlrun");
  traces::write_perfetto(stages, out + "/step.json");
  for (const std::shared_ptr<CallRecord>& record : stages)
    traces::write_pytorch_trace(*record, out + "/step." + std::to_string(record->global_rank()) + ".pytorch.json");
#ifdef RANKLOOM_CHAKRA
  traces::write_chakra(stages, out + "/step");
#endif
  std::printf("traces are in %s\n", out.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("traces a training step of a transformer on thousands of fake ranks");
  absl::ParseCommandLine(argc, argv);
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace_transformer: %s\n", error.what());
    return 1;
  }
}
