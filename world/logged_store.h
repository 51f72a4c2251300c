#pragma once

#include <functional>
#include <memory>

#include "rankloom/store.h"
#include "world/operation_log.h"

namespace rankloom::internal {

// The store of a world that keeps what its ranks do with it, in the OperationLog of each.
class LoggedStore final : public Store {
 public:
  // `store` is not null. `log_here`: of the calling rank; null: the caller is none of the world's.
  LoggedStore(std::unique_ptr<Store> store, std::function<OperationLog*()> log_here);
  ~LoggedStore() override;

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return store_->kind(); }

 private:
  const std::unique_ptr<Store> store_;
  const std::function<OperationLog*()> log_here_;
};

}  // namespace rankloom::internal
