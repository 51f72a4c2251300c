#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rankloom/error.h"

namespace rankloom::internal {

// The bytes in quotes, escaped where they are no text, cut where they are long: "done", "a\x00b", "aaa..." (100000
// bytes).
std::string quote(std::string_view bytes);
// `"a", "b" and 12 more`.
std::string quote_list(absl::Span<const std::string_view> items);

// As reports name the keys of a call, of which there are several: "a, b, c, d and 12 more".
std::string keys_text(absl::Span<const std::string_view> keys);

// A store_barrier() whose arrival or wait a call is.
struct StoreBarrier {
  std::string_view name;
  int rank;
  int size;
};
// The key under which the ranks of a round of a barrier have left their numbers, "0 3 1 ", by the one for which they
// wait; empty: a store between has made another key of that.
std::string barrier_arrivals_key(std::string_view go_key);
// Whether `rank` is in `arrived`, "0 3 1 ".
bool has_arrived(std::string_view arrived, int rank);
// The ranks of 0..size-1 that are in `arrived`, and those that are not, ascending.
std::vector<int> arrived_ranks(std::string_view arrived, int size);
std::vector<int> missing_ranks(std::string_view arrived, int size);
// The same as text, short whatever the size: "ranks 1-3, 7", "2147483646 ranks, all but rank 0".
std::string missing_ranks_text(std::string_view arrived, int size);

// "get" of an operation's name, "store get".
std::string_view short_name(const char* name);

// A StoreError: `<who>: <what>`.
absl::Status store_error(std::string_view who, std::string_view what);

// "FileStore queue_pop key "q": the queue is empty: have 0 values, want 1".
absl::Status empty_queue_error(std::string_view kind, std::string_view key);
absl::Status negative_timeout(std::string_view who, absl::Duration have);
// `status`, whose headline ends with the line of the call.
absl::Status at_line(const absl::Status& status, CodeSite code);

}  // namespace rankloom::internal
