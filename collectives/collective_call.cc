#include "collectives/collective_call.h"

namespace rankloom {

TensorList::TensorList(std::vector<TensorView> views) : size_(static_cast<int>(views.size())) {
  if (size_ == 1) {
    one_ = std::move(views[0]);
  } else {
    many_ = std::move(views);
  }
}

}  // namespace rankloom
