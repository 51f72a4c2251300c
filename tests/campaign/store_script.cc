#include "tests/campaign/store_script.h"

#include <atomic>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "rankloom/random.h"
#include "rankloom/store.h"
#include "rankloom/world.h"
#include "tests/temp_dir.h"

namespace rankloom {

namespace {

using Kind = ModelOp::Kind;

// Others that share the store have other keys, and no operation on it may wait.
bool is_shared(ScriptStore store) { return store == ScriptStore::kWorld || store == ScriptStore::kNested; }

std::shared_ptr<Store> borrowed(Store* store) { return {std::shared_ptr<Store>(), store}; }

// Of this rank alone.
std::shared_ptr<Store> opened(const std::string& path, RankContext& rank) {
  std::shared_ptr<Store> store = FileStore::open(path, {.scheduler = &rank.world().scheduler(), .shared = false});
  store->set_timeout(absl::ZeroDuration());
  return store;
}

}  // namespace

StoreScript script_of(const Act& act) {
  StoreScript script;
  script.store = static_cast<ScriptStore>(act.a);
  Prng prng(static_cast<uint64_t>(act.seed));
  ModelStore model;
  const auto add = [&](const ModelOp& op) {
    const std::string saw = model.perform(op);
    if (is_shared(script.store) && saw == "absent") return;
    script.ops.push_back(op);
    absl::StrAppend(&script.saw, saw, ";");
  };
  const int ops = 1 + static_cast<int>(prng.below(10));
  for (int i = 0; i < ops; ++i) {
    const ModelOp op = random_op(prng.next());
    if (!is_shared(script.store) || op.kind != Kind::kNumKeys) add(op);
  }
  script.reopened = script.ops.size();
  if (script.store != ScriptStore::kFile) return script;
  for (const char* const key : {"x", "y", "z"}) {
    add({.kind = Kind::kGet, .key = key});
    for (const Kind kind : {Kind::kQueueLen, Kind::kPop, Kind::kPop}) add({.kind = kind, .key = key});
  }
  return script;
}

std::string run_script(RankContext& rank, const StoreScript& script, int act) {
  std::shared_ptr<Store> store;
  std::string path;
  switch (script.store) {
    case ScriptStore::kHash:
      store = std::make_shared<HashStore>(&rank.world().scheduler());
      break;
    case ScriptStore::kHashOfNoWorld:
      store = std::make_shared<HashStore>();
      break;
    case ScriptStore::kFile: {
      static const TempDir folder;
      static std::atomic<int> files;
      path = folder.file(absl::StrCat("store ", files++));
      store = opened(path, rank);
      break;
    }
    case ScriptStore::kNested:
      store = std::make_shared<PrefixStore>("script", borrowed(&rank.store()));
      store = std::make_shared<PrefixStore>(absl::StrCat("of ", act), store);
      break;
    default:
      store = std::make_shared<PrefixStore>(absl::StrCat("script ", act), borrowed(&rank.store()));
  }
  if (!is_shared(script.store)) store->set_timeout(absl::ZeroDuration());
  std::string saw;
  for (size_t i = 0; i < script.ops.size(); ++i) {
    if (!path.empty() && i == script.reopened) {
      store.reset();
      store = opened(path, rank);
    }
    absl::StrAppend(&saw, perform(*store, script.ops[i]), ";");
  }
  if (!path.empty()) std::remove(path.c_str());
  return saw;
}

}  // namespace rankloom
