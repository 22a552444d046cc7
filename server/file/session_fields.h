// The first record's payload: what is fixed of a session at create, and its checks. Whatever passes
// is a session that CreateSession could have made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/session/session_limits.h"
#include "server/session/session_store.h"

namespace oscarkv {

inline constexpr std::uint64_t kMaxSessionBytes = std::uint64_t{1} << 28;  // of the payload

struct SessionFields {
  SessionConfig config;
  absl::Time create_time;  // in whole nanoseconds
};

// CRC-32C of all given residual directions, layer by layer; 0 without any. Tells calibrations
// apart.
std::uint32_t DirectionsCrc(const SessionConfig& config);

// INVALID_ARGUMENT, INVALID_FIELD for what CreateSession does not accept.
absl::Status CheckSession(const SessionConfig& config);

// REQUIRES: CheckSession(config) is OK.
std::vector<std::byte> EncodeSession(const SessionFields& fields);

// DATA_LOSS where bytes are missing or left over, or a checksum or a field is wrong;
// FAILED_PRECONDITION where pages of these layers have another size here.
absl::StatusOr<SessionFields> DecodeSession(std::span<const std::byte> payload);

}  // namespace oscarkv
