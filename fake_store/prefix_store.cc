#include <utility>

#include "absl/strings/str_cat.h"
#include "fake_store/store_text.h"
#include "rankloom/store.h"
#include "sim/base/text.h"

namespace rankloom {

using namespace internal;

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store, CodeSite code)
    : Store(store.get(), code), prefix_(std::move(prefix) + "/"), store_(std::move(store)) {}

absl::StatusOr<StoreReply> PrefixStore::execute(const StoreCall& asked) {
  StoreCall call = asked;
  if (call.way.at_point == this) call.way.at_point = store_.get();  // nothing is done in between that others see
  const bool lists = call.op == StoreCall::Op::kListKeys;
  if (lists || call.op == StoreCall::Op::kNumKeys) call.keys = {};  // of no use
  if (call.keys.size() == 1) {
    const std::string joined = absl::StrCat(prefix_, sv(call.key()));
    const std::string_view key = joined;
    call.keys = {&key, 1};
    absl::StatusOr<StoreReply> reply = store_->execute(call);
    // Errors name keys with the prefix, without which the front that asks knows the key.
    if (call.op == StoreCall::Op::kQueuePop && reply.ok() && !reply->found) return empty_queue_error(kind(), key);
    return reply;
  }
  if (!call.keys.empty()) {
    std::vector<std::string> joined;
    joined.reserve(call.keys.size());
    for (const std::string_view key : call.keys) joined.push_back(absl::StrCat(prefix_, sv(key)));
    const StringList keys(joined);
    call.keys = keys;
    return store_->execute(call);
  }
  absl::StatusOr<StoreReply> reply = store_->execute(call);
  if (!lists || !reply.ok()) return reply;
  std::vector<std::string> own;
  for (const std::string& key : reply->values) {
    if (key.starts_with(prefix_)) own.push_back(key.substr(prefix_.size()));
  }
  reply->values = std::move(own);  // still sorted: all had the same start
  return reply;
}

}  // namespace rankloom
