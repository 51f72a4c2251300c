#pragma once

#include <memory>

#include "rankloom/store.h"
#include "sim/faults/fault_injector.h"

namespace rankloom::internal {

// Another store, whose operations go wrong as a plan says. Faults name them "store set", "store get", ...; a watch_key
// always goes well.
class FaultStore final : public Store {
 public:
  // `store` and `injector` are not null; `injector` outlives this.
  FaultStore(std::unique_ptr<Store> store, FaultInjector* injector);
  ~FaultStore() override;

  absl::StatusOr<StoreReply> execute(const StoreCall& call) override;
  std::string_view kind() const override { return store_->kind(); }

 private:
  const std::unique_ptr<Store> store_;
  FaultInjector* const injector_;
};

}  // namespace rankloom::internal
