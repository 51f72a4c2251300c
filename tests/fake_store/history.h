#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rankloom/store.h"

namespace rankloom {

// One operation of a random program. Which fields count depends on `kind`.
struct ModelOp {
  enum class Kind {
    kSet,         // key, a
    kGet,         // key; looks once
    kAdd,         // key, n
    kCompareSet,  // key, a: expected, b: desired
    kAppend,      // key, a
    kDelete,      // key
    kCheck,       // key
    kNumKeys,
    kListKeys,
    kMultiSet,  // key and other both get a
    kMultiGet,  // key, other; looks once
    kPush,      // key, a
    kPop,       // key; looks once
    kQueueLen,  // key
  };
  static constexpr int kKinds = 14;

  Kind kind = Kind::kSet;
  std::string key = {};
  std::string other = {};
  std::string a = {};
  std::string b = {};
  int64_t n = 0;
};

std::string text_of(const ModelOp& op);

// An operation drawn from `random`, on keys of a small set, with values that collide.
ModelOp random_op(uint64_t random);

// Does `op` through the public methods and tells what came back, as text: "value:x", "absent", "error", ... The store's
// timeout must be zero, so that nothing waits.
std::string perform(Store& store, const ModelOp& op);

// The model of a store: the same operations, one after another, written as plainly as can be.
class ModelStore {
 public:
  std::string perform(const ModelOp& op);
  // Equal states have equal texts.
  std::string state() const;

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
};

// An operation as it happened: `called` and `returned` are ticks of one clock for all ranks.
struct Event {
  int rank = 0;
  ModelOp op = {};
  std::string result = {};
  uint64_t called = 0;
  uint64_t returned = 0;
};

// Whether some order of all events, which keeps those that did not overlap in their order, makes ModelStore give the
// same results. nullopt: yes; otherwise the history as text.
// J. Wing, C. Gong, "Testing and Verifying Concurrent Objects", JPDC 1993; states seen before are not searched again,
// as in G. Lowe, "Testing for linearizability", 2017. At most 64 events.
std::optional<std::string> not_linearizable(const std::vector<Event>& events);

}  // namespace rankloom
