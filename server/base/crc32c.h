// CRC-32C (Castagnoli, as in iSCSI, RFC 3720 appendix B.4).
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscarkv {

// The checksum of `bytes` bytes at `data`, following bytes whose checksum is `crc`:
// Crc32c(a + b) == Crc32c(b, Crc32c(a)). That of nothing is 0.
std::uint32_t Crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);

}  // namespace oscarkv
