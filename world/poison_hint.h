#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rankloom::internal {

// The hint at the end of a failure, or of a result that differs, in a run with poisoned outputs: "ranks 0-1" and the
// calls that these had not waited for. A line of its own.
std::string open_outputs_hint(const std::vector<std::pair<std::string, std::string>>& who_had_what);
// The same of a poisoned run in which no call is open any more: empty, unless a value in `values` is one that outputs
// hold until their call completes.
std::string poison_hint(std::string_view values);
// Whether a text ends with one of these already.
bool has_poison_hint(std::string_view text);

}  // namespace rankloom::internal
