#include "server/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace oscarkv {

std::uint32_t Crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  constexpr std::size_t kStep = std::size_t{1} << 30;  // the library counts in int
  // The library only reads, though its pointer is not to const; it leaves both inversions to us.
  auto* next = static_cast<unsigned char*>(const_cast<void*>(data));
  std::uint32_t state = ~crc;
  while (bytes > 0) {
    const std::size_t step = std::min(bytes, kStep);
    state = crc32_iscsi(next, static_cast<int>(step), state);
    next += step;
    bytes -= step;
  }
  return ~state;
}

}  // namespace oscarkv
