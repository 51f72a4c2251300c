#include "world/logged_store.h"

#include <utility>

namespace rankloom::internal {

LoggedStore::LoggedStore(std::unique_ptr<Store> store, std::function<OperationLog*()> log_here)
    : Store(store.get()), store_(std::move(store)), log_here_(std::move(log_here)) {}

LoggedStore::~LoggedStore() = default;

absl::StatusOr<StoreReply> LoggedStore::execute(const StoreCall& call) {
  StoreCall passed = call;
  if (passed.way.at_point == this) passed.way.at_point = store_.get();  // nothing is done in between that others see
  OperationLog* const log = log_here_();
  if (log == nullptr) return store_->execute(passed);
  const int64_t number = log->begin(call);
  absl::StatusOr<StoreReply> reply = store_->execute(passed);
  log->end(number, call, reply);
  return reply;
}

}  // namespace rankloom::internal
