#pragma once

#include <complex>

namespace rankloom::internal {

using Complex64 = std::complex<float>;
using Complex128 = std::complex<double>;

}  // namespace rankloom::internal
