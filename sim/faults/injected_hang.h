#pragma once

namespace rankloom::internal {

// The words of a wait that a hang by plan is (Site::what).
inline constexpr char kInjectedHang[] = "a hang (injected)";

}  // namespace rankloom::internal
