// The payload of a commit record: what a session is beside its tokens, at one moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/file/record.h"
#include "server/session/repeat_records.h"
#include "server/session/retention.h"
#include "server/session/session_store.h"

namespace oscarkv {

struct LayerCommit {
  std::int64_t length = 0;
  std::optional<AppendRecord> last_append = {};  // ends at length

  friend bool operator==(const LayerCommit&, const LayerCommit&) = default;
};

struct SessionCommit {
  std::uint64_t generation = 0;
  absl::Time time = {};                              // in whole nanoseconds
  std::optional<TruncateRecord> last_truncate = {};  // where it can be repeated
  Retention retention = {};
  std::int64_t prefix_limit =
      kPositionLimit;                    // keys of longer prefixes are of tokens dropped since
  std::vector<LayerCommit> layers = {};  // in the order of the session's

  friend bool operator==(const SessionCommit&, const SessionCommit&) = default;
};

// Of the payload, with a request id of that many bytes.
constexpr std::uint64_t CommitBytes(std::size_t layers, std::uint64_t request_id_bytes) {
  return 56 + 32 * std::uint64_t{layers} + request_id_bytes;
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
