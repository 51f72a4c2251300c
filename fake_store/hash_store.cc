#include "fake_store/store_state.h"
#include "fake_store/table_store.h"
#include "rankloom/store.h"

namespace rankloom {

using namespace internal;

HashStore::HashStore(Scheduler* scheduler)
    : Store(scheduler), table_(new internal::TableStore("HashStore", scheduler, internal::StoreAccess::state(*this))) {}

HashStore::~HashStore() = default;

bool internal::StoreAccess::release_watches(HashStore& store) { return store.table_->release_watches(); }

absl::StatusOr<StoreReply> HashStore::execute(const StoreCall& call) { return table_->execute(call, *this); }

}  // namespace rankloom
