#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "collectives/work/completion.h"

namespace rankloom {

// Calls `body` just before the work that is given this is done, on the thread that completes the work.
inline std::unique_ptr<internal::Dependant> told(std::function<void(const absl::Status&)> body) {
  struct Told final : internal::Dependant {
    explicit Told(std::function<void(const absl::Status&)> body) : body(std::move(body)) {}
    void ended(const absl::Status& status) override { body(status); }
    const std::function<void(const absl::Status&)> body;
  };
  return std::make_unique<Told>(std::move(body));
}

}  // namespace rankloom
