#pragma once

#include <string>
#include <string_view>

#include "sim/base/task.h"

namespace rankloom::internal {

// "all_gather seq 1", "store get key \"done\"".
std::string site_text(const Site& site);
// " [group 0, train.cc:12]", or less where less is known.
std::string site_place(const Site& site);
// "its last point: all_gather seq 1 [train.cc:12]", of several ranks "their last point: ..."; "it has come to no point
// yet".
std::string last_point_text(const Site& last, bool several = false);
// Whether a task has come to no point yet, of which this is the last.
bool at_start(const Site& last);
// `text` with the line that it is about, " [train.cc:12]", unless it ends with one.
std::string located(std::string_view text, CodeSite code);
// Whether a line of the text names a place: "[group 0, train.cc:12]".
bool names_place(std::string_view text);
// "rank", "helper", "stream", "completion".
const char* task_kind_name(TaskKind kind);
// Whose task of a rank it is: " (its stream)"; empty for the rank's own.
std::string whose_text(TaskKind kind);
// The last part of a path.
std::string_view base_name(std::string_view path);

}  // namespace rankloom::internal
