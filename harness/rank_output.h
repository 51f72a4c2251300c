#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "world/world.h"

namespace rankloom {

// While it lives, what the ranks of `world` write to std::cout, std::cerr and std::clog is kept per rank, in the order in
// which the rank wrote it. What others write goes where it went before. printf and file descriptors are not seen: they
// have no rank. Make and destroy it while no thread writes to these streams.
class RankOutput {
 public:
  explicit RankOutput(World* world);
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // By rank. After the run.
  std::vector<std::string> texts() const;

 private:
  class Router;
  class Stream;

  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

// Every line under its rank, "rank 0 | ..."; ranks that wrote the same share theirs. Empty outputs are left out.
void print_by_rank(const std::vector<std::string>& texts, std::ostream& out);

}  // namespace rankloom
