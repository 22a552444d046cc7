// Where the bytes of a session file go to and come from: a file, a stream of messages, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace oscarkv {

// Takes bytes in their order. After an error it may have taken a part of them.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual absl::Status Write(std::span<const std::byte> bytes) = 0;
  // Returns when what was written survives a loss of power, where that can be had.
  virtual absl::Status Sync() = 0;
};

// Bytes at any place.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual absl::StatusOr<std::uint64_t> Size() const = 0;
  // Fills `bytes` from `offset` on. DATA_LOSS where they end before.
  virtual absl::Status ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const = 0;
};

}  // namespace oscarkv
