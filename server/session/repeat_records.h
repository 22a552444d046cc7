// What tells a request that is repeated from another one.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/api/dtype.h"

namespace oscarkv {

// A layer's last append.
struct AppendRecord {
  std::int64_t start = 0;
  std::int32_t count = 0;
  DType dtype = DType::kBF16;
  std::uint32_t crc = 0;  // CRC-32C of the bytes of keys, then of values

  friend bool operator==(const AppendRecord&, const AppendRecord&) = default;
};

// A session's last truncate.
struct TruncateRecord {
  std::string request_id = {};   // "": not repeatable
  std::uint64_t generation = 0;  // that was asked for, not the one begun
  std::int64_t length = 0;

  friend bool operator==(const TruncateRecord&, const TruncateRecord&) = default;
};

}  // namespace oscarkv
