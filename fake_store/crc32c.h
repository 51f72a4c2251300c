#pragma once

#include <cstdint>
#include <string_view>

namespace rankloom::internal {

// CRC-32C (Castagnoli) of `bytes`, as iSCSI (RFC 3720) and ext4 use it. `crc` is the sum of the bytes before, 0 at the
// start.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

}  // namespace rankloom::internal
