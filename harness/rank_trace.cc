#include "absl/strings/str_cat.h"
#include "harness/rank_failures.h"
#include "rankloom/testing.h"

namespace rankloom {

using namespace internal;

RankTrace::RankTrace(RankContext& rank, const std::string& text, CodeSite code)
    : failures_(internal::RankFailures::of(rank.world())), rank_(rank.rank()) {
  if (failures_ != nullptr) failures_->add_trace(this, rank_, absl::StrCat(code.file, ":", code.line, ": ", text));
}

RankTrace::~RankTrace() {
  if (failures_ != nullptr) failures_->remove_trace(this, rank_);
}

}  // namespace rankloom
