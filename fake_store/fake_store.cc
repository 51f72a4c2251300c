#include "fake_store/store_state.h"
#include "rankloom/store.h"
#include "sim/base/dist_error.h"

namespace rankloom {

using namespace internal;

absl::StatusOr<StoreReply> FakeStore::execute(const StoreCall& call) {
  if (!is_well_formed(call)) return why_malformed(kind(), call);
  switch (call.op) {
    case StoreCall::Op::kAdd:
      return StoreReply{.number = call.amount};
    case StoreCall::Op::kCompareSet:
      return StoreReply{.value = std::string(call.value())};
    case StoreCall::Op::kCheck:
    case StoreCall::Op::kQueuePop:
      return StoreReply{.found = true};
    case StoreCall::Op::kMultiGet:
      return StoreReply{.values = std::vector<std::string>(call.keys.size())};
    case StoreCall::Op::kSet:
    case StoreCall::Op::kGet:
    case StoreCall::Op::kWait:
    case StoreCall::Op::kDeleteKey:
    case StoreCall::Op::kNumKeys:
    case StoreCall::Op::kAppend:
    case StoreCall::Op::kMultiSet:
    case StoreCall::Op::kQueuePush:
    case StoreCall::Op::kQueueLen:
    case StoreCall::Op::kListKeys:
    case StoreCall::Op::kWatchKey:
      return StoreReply();
  }
  return why_malformed(kind(), call);
}

}  // namespace rankloom
