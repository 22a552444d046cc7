#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "client/client.h"

namespace oscarkv {

// RFC 9562, version 4: 122 random bits.
std::string NewRequestId() {
  thread_local absl::BitGen random;
  const auto high = absl::Uniform<std::uint64_t>(random);
  const auto low = absl::Uniform<std::uint64_t>(random);
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xfff, 0x8000 | (low >> 48 & 0x3fff), low & 0xffffffffffff);
}

}  // namespace oscarkv
