#include "fake_store/fault_store.h"

#include <utility>

#include "fake_store/store_state.h"
#include "sim/scheduler/scheduler.h"

namespace rankloom::internal {

FaultStore::FaultStore(std::unique_ptr<Store> store, FaultInjector* injector)
    : Store(store.get()), store_(std::move(store)), injector_(injector) {}

FaultStore::~FaultStore() = default;

absl::StatusOr<StoreReply> FaultStore::execute(const StoreCall& call) {
  const Task* const task = Task::current();
  // A task of another world, by a store around this one that lets anybody in, has a rank that the plan does not know.
  if (task == nullptr || task->info.rank < 0 || call.op == StoreCall::Op::kWatchKey ||
      !StoreAccess::state(*this).world().has(task))
    return store_->execute(call);
  const FaultInjector::Call told{.rank = task->info.rank, .group = {}, .op = call.name()};
  const CodeSite code = call.waits() ? call.code : CodeSite();  // as of the operation: reports show lines of waits only
  const std::vector<Fault> faults = injector_->at(told);
  // A store's operation takes effect at one instant: there is no inside.
  for (const Fault& fault : faults) {
    if (fault.when == Fault::When::kAfter) continue;
    injector_->struck(fault);
    if (absl::Status acted = injector_->act(fault, told, code); !acted.ok()) return acted;
  }
  absl::StatusOr<StoreReply> reply = store_->execute(call);
  for (const Fault& fault : faults) {
    if (fault.when != Fault::When::kAfter) continue;
    injector_->struck(fault);
    if (absl::Status acted = injector_->act(fault, told, code); !acted.ok()) return acted;
  }
  return reply;
}

}  // namespace rankloom::internal
