#include "collectives/cuda/plan_tables.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "rankloom/error.h"
#include "sim/base/dist_error.h"

namespace rankloom::internal::cuda {
namespace {

constexpr size_t kTableAlignment = 16;

Signature signature_of(const ReduceJob& job) {
  return {.dtype = job.dtype,
          .kind = job.kind,
          .tree = job.tree,
          .round_each = job.round_each && rounds(job.dtype, job.kind)};
}

// Calls visit(Reduction<...>()); the reduction must exist.
template <class Visit>
void visit_reduction(const Signature& signature, Visit visit) {
  const ReduceOp::Kind kind = signature.kind;
  bool found = false;
  switch (signature.dtype) {
    case DType::kFloat32:
      found = visit_floats<float>(kind, visit);
      break;
    case DType::kFloat64:
      found = visit_floats<double>(kind, visit);
      break;
    case DType::kFloat16:
      found = visit_halves<Float16>(kind, signature.round_each, visit);
      break;
    case DType::kBFloat16:
      found = visit_halves<BFloat16Bits>(kind, signature.round_each, visit);
      break;
    case DType::kComplex64:
      found = visit_complex<float>(kind, visit);
      break;
    case DType::kComplex128:
      found = visit_complex<double>(kind, visit);
      break;
    case DType::kInt8:
      found = visit_integers<int8_t>(kind, visit);
      break;
    case DType::kUInt8:
      found = visit_integers<uint8_t>(kind, visit);
      break;
    case DType::kInt16:
      found = visit_integers<int16_t>(kind, visit);
      break;
    case DType::kInt32:
      found = visit_integers<int32_t>(kind, visit);
      break;
    case DType::kInt64:
      found = visit_integers<int64_t>(kind, visit);
      break;
    case DType::kBool:
      found = visit_bools(kind, visit);
      break;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      break;
  }
  if (!found) fatal("a reduction that reduction_supported() refuses was planned");
}

int64_t tile_of(const Signature& signature) {
  int64_t tile = 0;
  visit_reduction(signature, [&tile](auto reduction) {
    tile = kReduceTile<typename decltype(reduction)::Storage>;
    return true;
  });
  return tile;
}

// Appends to `bytes`.
template <class T>
void append(std::vector<unsigned char>& bytes, const T* values, size_t count) {
  const auto* const raw = reinterpret_cast<const unsigned char*>(values);
  bytes.insert(bytes.end(), raw, raw + count * sizeof(T));
}

void end_batch(Tables& tables, Batch batch) {
  batch.bytes = tables.bytes.size() - batch.offset;
  tables.bytes.resize((tables.bytes.size() + kTableAlignment - 1) / kTableAlignment * kTableAlignment);
  tables.batches.push_back(batch);
}

void add_reduces(const KernelPlan& plan, const std::vector<const KernelPlan::Reduce*>& reduces,
                 const Signature& signature, Tables& tables) {
  Batch batch = {.copies = false, .signature = signature, .offset = tables.bytes.size()};
  const int64_t tile = tile_of(signature);
  uint32_t pointers = 0;
  for (const KernelPlan::Reduce* const reduce : reduces) {
    const absl::Span<void* const> all = plan.pointers_of(*reduce);
    const bool vectors = std::all_of(all.begin(), all.end(), [](const void* pointer) {
      return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0;
    });
    const ReduceEntry entry = {.first_tile = batch.tiles,
                               .numel = reduce->numel,
                               .factor = reduce->job.factor,
                               .pointers = pointers,
                               .count = static_cast<uint32_t>(reduce->job.count),
                               .output_count = static_cast<uint32_t>(reduce->job.output_count),
                               .vectors = vectors ? 1U : 0U};
    append(tables.bytes, &entry, 1);
    pointers += static_cast<uint32_t>(all.size());
    batch.tiles += (reduce->numel + tile - 1) / tile;
    ++batch.entries;
  }
  for (const KernelPlan::Reduce* const reduce : reduces) {
    const absl::Span<void* const> all = plan.pointers_of(*reduce);
    append(tables.bytes, all.data(), all.size());
  }
  end_batch(tables, batch);
}

void add_copies(const std::vector<KernelPlan::Copy>& copies, Tables& tables) {
  Batch batch = {.copies = true, .signature = {}, .offset = tables.bytes.size()};
  for (const KernelPlan::Copy& copy : copies) {
    const CopyEntry entry = {.first_tile = batch.tiles, .to = copy.to, .from = copy.from, .bytes = copy.bytes};
    append(tables.bytes, &entry, 1);
    batch.tiles += (copy.bytes + kCopyTile - 1) / kCopyTile;
    ++batch.entries;
  }
  end_batch(tables, batch);
}

Table table_at(const unsigned char* at, const Batch& batch) {
  return {.at = at, .entries = batch.entries, .tiles = batch.tiles};
}

}  // namespace

Tables make_tables(KernelPlan& plan) {
  Tables tables;
  for (const KernelPlan::Stage& stage : plan.stages()) {
    // Few signatures, and most often one.
    std::vector<const KernelPlan::Reduce*> left;
    left.reserve(stage.reduces.size());
    for (const KernelPlan::Reduce& reduce : stage.reduces) left.push_back(&reduce);
    while (!left.empty()) {
      const Signature signature = signature_of(left.front()->job);
      std::vector<const KernelPlan::Reduce*> same;
      std::vector<const KernelPlan::Reduce*> others;
      for (const KernelPlan::Reduce* const reduce : left) {
        (signature_of(reduce->job) == signature ? same : others).push_back(reduce);
      }
      add_reduces(plan, same, signature, tables);
      left.swap(others);
    }
    if (!stage.copies.empty()) add_copies(stage.copies, tables);
  }
  return tables;
}

void run_tables(const Tables& tables) {
  for (const Batch& batch : tables.batches) {
    // As aligned as a device's table is.
    std::vector<double> aligned((batch.bytes + sizeof(double) - 1) / sizeof(double));
    std::memcpy(aligned.data(), tables.bytes.data() + batch.offset, batch.bytes);
    const Table table = table_at(reinterpret_cast<const unsigned char*>(aligned.data()), batch);
    // Every thread of a device finds its tile's entry by itself; here one search is enough for all of them.
    const auto each = [&batch, &table]<class Entry>(std::type_identity<Entry>, auto body) {
      for (int64_t tile = 0; tile < batch.tiles; ++tile) {
        const Entry& entry = table.find<Entry>(tile);
        for (int thread = 0; thread < kThreads; ++thread) body(entry, tile, thread);
      }
    };
    if (batch.copies) {
      each(std::type_identity<CopyEntry>(),
           [](const CopyEntry& entry, int64_t tile, int thread) { copy_tile(entry, tile, thread); });
      continue;
    }
    visit_reduction(batch.signature, [&](auto reduction) {
      using Storage = typename decltype(reduction)::Storage;
      using Op = typename decltype(reduction)::Op;
      const auto reduce = [&](auto tree) {
        each(std::type_identity<ReduceEntry>(), [&](const ReduceEntry& entry, int64_t tile, int thread) {
          reduce_tile<Storage, Op, decltype(tree)::value>(entry, table.pointers(), tile, thread);
        });
      };
      if (batch.signature.tree) {
        reduce(std::true_type());
      } else {
        reduce(std::false_type());
      }
      return true;
    });
  }
}

}  // namespace rankloom::internal::cuda
