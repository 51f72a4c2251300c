#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "rankloom/collective_call.h"
#include "rankloom/group.h"
#include "rankloom/records.h"
#include "rankloom/work.h"
#include "sim/base/saturating.h"
#include "sim/schedule/step_record.h"

namespace rankloom::internal {

// The calls of a CallRecord, and how they get there. Calls that are alike share their description, a Kind.
struct CallRecordState {
  struct Kind {
    std::vector<int64_t> key;  // all that tells it from others: for_each_word() in the .cc
    int64_t payload = 0;
    int64_t buffer_bytes = 0;
    CostModel::WireCost ring;
    CostModel::WireCost tree;
    int64_t duration_ns = 0;  // by the cost model
    int64_t calls = 0;
    int64_t total_ns = 0;

    bool is_compute() const;
    // Of a call.
    OpType op() const;
    int group() const;
  };
  struct Entry {
    uint32_t kind;
    uint32_t batch;  // 1 + distance to the first part of its coalesced call; 0: no part of one
    int64_t seq;
    int64_t issued_ns;
    int64_t start_ns;
    int64_t duration_ns;
    uint32_t waited_before;  // kNever: not yet
  };
  class RecordedWork;
  struct Owner;

  static constexpr uint32_t kNever = ~uint32_t{0};
  static constexpr size_t kChunk = 4096;  // entries in a block of memory that never moves

  explicit CallRecordState(CostModel with);
  ~CallRecordState();
  CallRecordState(const CallRecordState&) = delete;
  CallRecordState& operator=(const CallRecordState&) = delete;
  static CallRecordState& of(CallRecord& record) { return record.state_->used(); }
  static const CallRecordState& of(const CallRecord& record) { return record.state_->used(); }

  // The calling task reads or changes the record. Searches are told of nothing but that several ranks do.
  CallRecordState& used();

  // ---- for groups

  int add_group(const std::shared_ptr<const Group>& group, int rank);
  // The group is that of another member. The record is empty.
  void set_rank(int group, int rank) { groups[static_cast<size_t>(group)].rank = rank; }
  // `rank` is the member's in the group. The work ends at once; wait() moves the virtual time.
  Work add(const CollectiveCall& call, int group);

  // ---- for the record itself

  Entry& entry(size_t index) { return chunks[index / kChunk][index % kChunk]; }
  const Entry& entry(size_t index) const { return chunks[index / kChunk][index % kChunk]; }
  CallRecord::Call call_at(size_t index) const;
  // The scope that the call was made in; empty: none, or a stretch of compute().
  std::string_view scope_at(size_t index) const;
  int64_t live_buffer_bytes() const;
  size_t memory_bytes() const;
  void compute(int64_t duration_ns, std::string_view name);
  void clear();
  uint32_t kind_of(const CollectiveCall& call, int group);
  Entry& append(uint32_t kind, int64_t seq);

  const CostModel model;
  std::vector<CallRecord::GroupInfo> groups;
  std::vector<int64_t> free_ns;  // [group] when it is through with its calls
  std::vector<int64_t> p2p_seq;  // [group] sends and recvs so far; those of a coalesced call count as one
  std::vector<Kind> kinds;
  std::vector<std::unique_ptr<Entry[]>> chunks;
  size_t size = 0;
  int64_t now_ns = 0;
  int64_t end_ns = 0;
  WideCount live_bytes = 0;
  int64_t peak_bytes = 0;
  bool lacks_first = false;  // of a flight recorder, which has lost the first calls
  // The module that calls from here on, "layers.3.attention.wo"; null: none. The text is never freed.
  const char* scope = nullptr;

 private:
  uint32_t kind_of_key(std::vector<int64_t> key);
  // Puts the call at the end of its group's line; the entry's index is size - 1. `alone`: the call is no part of
  // another one that has counted its sends and recvs already.
  Entry& issue(const CollectiveCall& call, int group, bool alone);
  void waited(RecordedWork& work);
  void release_buffers(RecordedWork& work);

  static constexpr std::array<uint32_t, 64> no_kinds() {
    std::array<uint32_t, 64> none{};
    none.fill(kNever);
    return none;
  }

  absl::flat_hash_map<absl::Span<const int64_t>, uint32_t> kinds_by_key_;  // into Kind::key
  std::array<uint32_t, 64> recent_ = no_kinds();                           // kinds by a rough hash: where to look first
  std::vector<std::string> compute_names_;
  std::shared_ptr<RecordedWork> last_work_;  // used again once nobody else has it
  std::shared_ptr<Owner> owner_;             // how works find this record, if it is still there
};

}  // namespace rankloom::internal
