#include "collectives/streams/waited_works.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rankloom::internal {

void WaitedWorks::learn(const List& works) {
  for (const std::shared_ptr<WorkState>& work : works) work->learned_at_no_point();
}

WaitedWorks::List WaitedWorks::add(std::shared_ptr<WorkState> work) {
  if (std::shared_ptr<WorkState> whole = work->whole(); whole != nullptr) work = std::move(whole);
  if (!work->is_over() || !work->has_open_outputs()) return {};
  List learned;
  if (works_.size() >= sweep_at_) {
    learned = drop_learned();
    sweep_at_ = std::max<size_t>(16, 2 * works_.size());
  }
  works_.push_back(std::move(work));
  return learned;
}

WaitedWorks::List WaitedWorks::drop_learned() {
  const auto learned = std::stable_partition(
      works_.begin(), works_.end(), [](const std::shared_ptr<WorkState>& work) { return work->has_open_outputs(); });
  List gone(std::make_move_iterator(learned), std::make_move_iterator(works_.end()));
  works_.erase(learned, works_.end());
  return gone;
}

}  // namespace rankloom::internal
