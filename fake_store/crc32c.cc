#include "fake_store/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace rankloom::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "the file format and this loop are little-endian");

// Eight bytes a step: M. Kounavis, F. Berry, "A Systematic Approach to Building High Performance Software-based CRC
// Generators", ISCC 2005. kTables[k][b] is the sum of byte b with k zero bytes behind it.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < 8; ++k) tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}

constexpr auto kTables = make_tables();

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t crc) {
  crc = ~crc;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(*at)) & 0xff];
  return ~crc;
}

}  // namespace rankloom::internal
