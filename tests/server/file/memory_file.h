// A session file in memory, whose writing can be made to fail.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "server/file/byte_stream.h"

namespace oscarkv {

struct MemoryFile : ByteSink, ByteSource {
  std::vector<std::byte> bytes;
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();  // writing beyond fails
  std::vector<std::size_t> syncs;                                  // sizes when it was synced

  absl::Status Write(std::span<const std::byte> more) override {
    const std::size_t taken = std::min<std::uint64_t>(more.size(), room - bytes.size());
    bytes.insert(bytes.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(taken));
    return taken == more.size() ? absl::OkStatus() : absl::ResourceExhaustedError("no room");
  }
  absl::Status Sync() override {
    syncs.push_back(bytes.size());
    return absl::OkStatus();
  }
  absl::StatusOr<std::uint64_t> Size() const override { return bytes.size(); }
  absl::Status ReadAt(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset + to.size() > bytes.size()) return absl::DataLossError("the end of the file");
    std::memcpy(to.data(), bytes.data() + offset, to.size());
    return absl::OkStatus();
  }
};

}  // namespace oscarkv
