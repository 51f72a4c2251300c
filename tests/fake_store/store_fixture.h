#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "rankloom/error.h"
#include "rankloom/store.h"
#include "rankloom/world.h"
#include "tests/temp_dir.h"

namespace rankloom {

using namespace internal;

// The DistError that `body` throws.
template <typename Body>
DistError error_of(Body&& body) {
  try {
    body();
  } catch (const DistError& error) {
    return error;
  }
  ADD_FAILURE() << "no DistError was thrown";
  return DistError(absl::OkStatus(), {});
}

enum class StoreKind { kHash, kFile, kFileEach, kPrefixHash, kPrefixFile };
// The ranks are threads of no world, or tasks of one.
enum class Gear { kThreads, kWorldFree, kWorldBaton, kWorldFibers };

inline std::string name_of(StoreKind kind) {
  switch (kind) {
    case StoreKind::kHash:
      return "Hash";
    case StoreKind::kFile:
      return "File";
    case StoreKind::kFileEach:
      return "FileEach";
    case StoreKind::kPrefixHash:
      return "PrefixHash";
    case StoreKind::kPrefixFile:
      return "PrefixFile";
  }
  std::abort();
}

inline std::string name_of(Gear gear) {
  switch (gear) {
    case Gear::kThreads:
      return "Threads";
    case Gear::kWorldFree:
      return "WorldFree";
    case Gear::kWorldBaton:
      return "WorldBaton";
    case Gear::kWorldFibers:
      return "WorldFibers";
  }
  std::abort();
}

// The stores of one job. kFileEach: every rank opens the file for itself, as processes do.
class StoreSet {
 public:
  StoreSet(StoreKind kind, int ranks, std::string path, Scheduler* scheduler) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 0 || kind == StoreKind::kFileEach) made_ = make(kind, path, scheduler);
      stores_.push_back(made_);
    }
  }
  Store& of(int rank) { return *stores_[static_cast<size_t>(rank)]; }

 private:
  static std::shared_ptr<Store> make(StoreKind kind, const std::string& path, Scheduler* scheduler) {
    std::shared_ptr<Store> base;
    if (kind == StoreKind::kHash || kind == StoreKind::kPrefixHash) {
      base = std::make_shared<HashStore>(scheduler);
    } else {
      base = FileStore::open(path, {.scheduler = scheduler});
    }
    if (kind == StoreKind::kPrefixHash || kind == StoreKind::kPrefixFile) {
      return std::make_shared<PrefixStore>("inner", std::make_shared<PrefixStore>("outer", base));
    }
    return base;
  }

  std::shared_ptr<Store> made_;
  std::vector<std::shared_ptr<Store>> stores_;
};

using RankProgram = absl::FunctionRef<void(int rank, Store& store)>;

// Runs `program` as `ranks` ranks over a new store of this kind. `seed` is for the deterministic gears.
inline void run_on(StoreKind kind, Gear gear, int ranks, const std::string& path, uint64_t seed, RankProgram program) {
  if (gear == Gear::kThreads) {
    StoreSet stores(kind, ranks, path, nullptr);
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          program(rank, stores.of(rank));
        } catch (...) {
          failures[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure != nullptr) std::rethrow_exception(failure);
    }
    return;
  }
  WorldOptions options{.world_size = ranks};
  options.engine = gear == Gear::kWorldFibers ? EngineKind::kFibers : EngineKind::kThreads;
  options.schedule = gear == Gear::kWorldFree ? Schedule::free() : Schedule::seeded(seed);
  World world(options);
  StoreSet stores(kind, ranks, path, &world.scheduler());
  world.run([&](RankContext& rank) { program(rank.rank(), stores.of(rank.rank())); }).throw_if_failed();
}

class StoreTest : public testing::TestWithParam<std::tuple<StoreKind, Gear>> {
 protected:
  StoreKind kind() const { return std::get<0>(GetParam()); }
  Gear gear() const { return std::get<1>(GetParam()); }
  bool file() const { return kind() != StoreKind::kHash && kind() != StoreKind::kPrefixHash; }
  bool prefixed() const { return kind() == StoreKind::kPrefixHash || kind() == StoreKind::kPrefixFile; }
  // As texts name a key.
  std::string key_text(std::string_view key) const {
    return prefixed() ? "outer/inner/" + std::string(key) : std::string(key);
  }
  // As texts name the store.
  std::string kind_text() const { return file() ? "FileStore" : "HashStore"; }

  void run_ranks(int ranks, RankProgram program) {
    run_on(kind(), gear(), ranks, dir_.file("store" + std::to_string(runs_)),
           /*seed=*/17 + static_cast<uint64_t>(runs_), program);
    ++runs_;
  }

 private:
  TempDir dir_;
  int runs_ = 0;
};

inline std::string store_test_name(const testing::TestParamInfo<std::tuple<StoreKind, Gear>>& info) {
  return name_of(std::get<0>(info.param)) + name_of(std::get<1>(info.param));
}

inline auto every_store_and_gear() {
  return testing::Combine(testing::Values(StoreKind::kHash, StoreKind::kFile, StoreKind::kFileEach,
                                          StoreKind::kPrefixHash, StoreKind::kPrefixFile),
                          testing::Values(Gear::kThreads, Gear::kWorldFree, Gear::kWorldBaton, Gear::kWorldFibers));
}

}  // namespace rankloom
