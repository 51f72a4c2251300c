#include "tests/fake_store/history.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rankloom/error.h"
#include "rankloom/random.h"

namespace rankloom {

using namespace internal;

namespace {

using Kind = ModelOp::Kind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSet:
      return "set";
    case Kind::kGet:
      return "get";
    case Kind::kAdd:
      return "add";
    case Kind::kCompareSet:
      return "compare_set";
    case Kind::kAppend:
      return "append";
    case Kind::kDelete:
      return "delete";
    case Kind::kCheck:
      return "check";
    case Kind::kNumKeys:
      return "num_keys";
    case Kind::kListKeys:
      return "list_keys";
    case Kind::kMultiSet:
      return "multi_set";
    case Kind::kMultiGet:
      return "multi_get";
    case Kind::kPush:
      return "push";
    case Kind::kPop:
      return "pop";
    case Kind::kQueueLen:
      return "queue_len";
  }
  std::abort();
}

std::string value_text(std::string_view value) { return absl::StrCat("value:", std::string(value)); }

bool is_number(const std::string& text, int64_t* number) {
  *number = 0;
  if (text.empty()) return true;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && stop == text.data() + text.size();
}

}  // namespace

std::string text_of(const ModelOp& op) {
  return absl::StrCat(name_of(op.kind), "(", op.key, " ", op.other, " '", op.a, "' '", op.b, "' ", op.n, ")");
}

ModelOp random_op(uint64_t random) {
  Prng prng(random);
  const auto pick = [&](std::initializer_list<const char*> items) {
    return std::string(items.begin()[prng.below(items.size())]);
  };
  ModelOp op;
  op.kind = static_cast<Kind>(prng.below(ModelOp::kKinds));
  op.key = pick({"x", "y"});
  op.other = pick({"x", "y", "z"});
  op.a = pick({"", "1", "2", "s"});
  op.b = pick({"", "1", "2", "t"});
  op.n = static_cast<int64_t>(prng.below(5)) - 2;
  return op;
}

std::string perform(Store& store, const ModelOp& op) {
  try {
    switch (op.kind) {
      case Kind::kSet:
        store.set(op.key, op.a);
        return "ok";
      case Kind::kGet:
        return value_text(store.get(op.key));
      case Kind::kAdd:
        return absl::StrCat(store.add(op.key, op.n));
      case Kind::kCompareSet:
        return value_text(store.compare_set(op.key, op.a, op.b));
      case Kind::kAppend:
        store.append(op.key, op.a);
        return "ok";
      case Kind::kDelete:
        return store.delete_key(op.key) ? "true" : "false";
      case Kind::kCheck:
        return store.check({op.key}) ? "true" : "false";
      case Kind::kNumKeys:
        return absl::StrCat(store.num_keys());
      case Kind::kListKeys:
        return absl::StrJoin(store.list_keys(), ",");
      case Kind::kMultiSet:
        store.multi_set({op.key, op.other}, {op.a, op.a});
        return "ok";
      case Kind::kMultiGet:
        return value_text(absl::StrJoin(store.multi_get({op.key, op.other}), ","));
      case Kind::kPush:
        store.queue_push(op.key, op.a);
        return "ok";
      case Kind::kPop:
        return value_text(store.queue_pop(op.key));
      case Kind::kQueueLen:
        return absl::StrCat(store.queue_len(op.key));
    }
  } catch (const DistError& error) {
    if (error.kind() == ErrorKind::kTimeout) return "absent";
    if (error.kind() == ErrorKind::kStoreError) return "error";
    throw;
  }
  std::abort();
}

std::string ModelStore::perform(const ModelOp& op) {
  const auto it = values_.find(op.key);
  const bool has = it != values_.end();
  switch (op.kind) {
    case Kind::kSet:
      values_[op.key] = op.a;
      return "ok";
    case Kind::kGet:
      return has ? value_text(it->second) : "absent";
    case Kind::kAdd: {
      int64_t number = 0;
      if (has && !is_number(it->second, &number)) return "error";
      return values_[op.key] = absl::StrCat(number + op.n);
    }
    case Kind::kCompareSet:
      if (has ? it->second == op.a : op.a.empty()) return value_text(values_[op.key] = op.b);
      return value_text(has ? it->second : op.a);
    case Kind::kAppend:
      values_[op.key] += op.a;
      return "ok";
    case Kind::kDelete:
      return values_.erase(op.key) > 0 ? "true" : "false";
    case Kind::kCheck:
      return has || queues_.count(op.key) > 0 ? "true" : "false";
    case Kind::kNumKeys:
      return absl::StrCat(values_.size());
    case Kind::kListKeys:
      return absl::StrJoin(values_, ",", [](std::string* out, const auto& item) { *out += item.first; });
    case Kind::kMultiSet:
      values_[op.key] = op.a;
      values_[op.other] = op.a;
      return "ok";
    case Kind::kMultiGet:
      if (!has || values_.count(op.other) == 0) return "absent";
      return value_text(absl::StrCat(it->second, ",", values_[op.other]));
    case Kind::kPush:
      queues_[op.key].push_back(op.a);
      return "ok";
    case Kind::kPop: {
      const auto queue = queues_.find(op.key);
      if (queue == queues_.end()) return "absent";
      const std::string value = queue->second.front();
      queue->second.pop_front();
      if (queue->second.empty()) queues_.erase(queue);
      return value_text(value);
    }
    case Kind::kQueueLen: {
      const auto queue = queues_.find(op.key);
      return absl::StrCat(queue == queues_.end() ? 0 : queue->second.size());
    }
  }
  std::abort();
}

std::string ModelStore::state() const {
  std::string text;
  for (const auto& [key, value] : values_) absl::StrAppend(&text, key, "=", value, ";");
  for (const auto& [key, queue] : queues_) absl::StrAppend(&text, key, "<", absl::StrJoin(queue, ","), ";");
  return text;
}

namespace {

class Search {
 public:
  explicit Search(const std::vector<Event>& events) : events_(events) {}

  // Whether the events that are not in `done` can follow on `state`.
  bool possible(uint64_t done, const ModelStore& state) {
    if (done == all()) return true;
    if (!seen_.emplace(done, state.state()).second) return false;
    // An event can be next if no other that is left returned before it was called.
    uint64_t first_return = UINT64_MAX;
    for (size_t i = 0; i < events_.size(); ++i) {
      if ((done >> i & 1) == 0) first_return = std::min(first_return, events_[i].returned);
    }
    for (size_t i = 0; i < events_.size(); ++i) {
      if ((done >> i & 1) != 0 || events_[i].called > first_return) continue;
      ModelStore next = state;
      if (next.perform(events_[i].op) == events_[i].result && possible(done | uint64_t{1} << i, next)) return true;
    }
    return false;
  }

 private:
  uint64_t all() const { return events_.size() == 64 ? UINT64_MAX : (uint64_t{1} << events_.size()) - 1; }

  const std::vector<Event>& events_;
  std::set<std::pair<uint64_t, std::string>> seen_;
};

}  // namespace

std::optional<std::string> not_linearizable(const std::vector<Event>& events) {
  if (events.size() > 64) std::abort();
  if (Search(events).possible(0, ModelStore())) return std::nullopt;
  std::string text = "no order explains these results:\n";
  for (const Event& event : events) {
    absl::StrAppend(&text, "  rank ", event.rank, " [", event.called, ", ", event.returned, "] ", text_of(event.op),
                    " -> ", event.result, "\n");
  }
  return text;
}

}  // namespace rankloom
