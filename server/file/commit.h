// The payload of a commit record: what a session is beside its tokens, at one moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/dtype.h"
#include "server/file/record.h"

namespace oscarkv {

// What tells a repeat of a layer's last append from another one.
struct LastAppend {
  std::int64_t start = 0;
  std::int32_t count = 0;
  DType dtype = DType::kBF16;
  std::uint32_t crc = 0;  // CRC-32C of the bytes of keys, then of values

  friend bool operator==(const LastAppend&, const LastAppend&) = default;
};

// What tells a repeat of the session's last truncate from another one.
struct LastTruncate {
  std::string request_id = {};  // 1 to kMaxRequestIdBytes bytes
  std::uint64_t generation = 0;
  std::int64_t length = 0;

  friend bool operator==(const LastTruncate&, const LastTruncate&) = default;
};

struct LayerCommit {
  std::int64_t length = 0;
  std::optional<LastAppend> last_append = {};  // ends at length

  friend bool operator==(const LayerCommit&, const LayerCommit&) = default;
};

struct SessionCommit {
  std::uint64_t generation = 0;
  absl::Time time = {};                            // in whole nanoseconds
  std::optional<LastTruncate> last_truncate = {};  // where it can be repeated
  std::vector<LayerCommit> layers = {};            // in the order of the session's

  friend bool operator==(const SessionCommit&, const SessionCommit&) = default;
};

// Of the payload, with a request id of that many bytes.
constexpr std::uint64_t CommitBytes(std::size_t layers, std::uint64_t request_id_bytes) {
  return 32 + 32 * std::uint64_t{layers} + request_id_bytes;
}

// RecordHeader::count of a commit record: the bytes of the last truncate's request id.
std::int64_t RequestIdBytes(const SessionCommit& commit);

// INVALID_ARGUMENT, INVALID_FIELD where a field is out of its range.
absl::Status CheckCommit(const SessionCommit& commit);

// REQUIRES: CheckCommit(commit) is OK.
std::vector<std::byte> EncodeCommit(const SessionCommit& commit);
// DATA_LOSS where a field is wrong.
// REQUIRES: payload.size() == CommitBytes(layers, header.count).
absl::StatusOr<SessionCommit> DecodeCommit(const RecordHeader& header, std::size_t layers,
                                           std::span<const std::byte> payload);

}  // namespace oscarkv
