// Errors with details: an absl::Status that names its reason, the field, the value and what was
// expected. server/rpc/grpc_status.cc turns them into google.rpc.ErrorInfo and RetryInfo; nothing
// else in the server knows of either.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace oscarkv {

struct ErrorDetails {
  std::string reason = {};  // UPPER_SNAKE_CASE, listed in proto/oscarkv/v1/kv_cache.proto
  std::vector<std::pair<std::string, std::string>> metadata = {};
  absl::Duration retry_after = absl::ZeroDuration();  // > 0: worth another try after this time
};

// REQUIRES: code is not OK.
absl::Status MakeError(absl::StatusCode code, std::string_view message,
                       const ErrorDetails& details);

// INVALID_ARGUMENT, INVALID_FIELD: "`field` is `value`; expected `expected`".
absl::Status InvalidField(std::string_view field, std::string_view value,
                          std::string_view expected);

// The details of a status made by MakeError; nullopt otherwise.
absl::optional<ErrorDetails> DetailsOf(const absl::Status& status);

// The same error, its field's path put under `prefix`: "key" with "items[2]." is "items[2].key".
absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix);

}  // namespace oscarkv
