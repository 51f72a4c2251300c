#pragma once

#include <string>
#include <vector>

#include "tests/campaign/job.h"
#include "tests/fake_store/history.h"

namespace rankloom {

// The stores that an act of kind kStoreScript or kHelper may use.
enum class ScriptStore : uint8_t { kWorld, kHash, kFile, kHashOfNoWorld, kNested, kCount };

// Operations of one rank on keys that nobody else uses.
struct StoreScript {
  ScriptStore store = ScriptStore::kWorld;
  std::vector<ModelOp> ops;
  size_t reopened = 0;  // of kFile: the number of operations after which the file is opened once more
  std::string saw;      // what they must give, one after another
};
StoreScript script_of(const Act& act);

// Carries a script out by the calling rank, or a helper of it, and tells what came of it.
std::string run_script(RankContext& rank, const StoreScript& script, int act);

}  // namespace rankloom
