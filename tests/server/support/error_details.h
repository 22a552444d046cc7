// What an error of the server says of itself, for tests.
#pragma once

#include <string>

#include "server/base/error.h"

namespace oscarkv::testing {

// "" for a status without details.
inline std::string ReasonOf(const absl::Status& status) {
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  return details ? details->reason : "";
}

// "" for a status without details, or without this key.
inline std::string DetailOf(const absl::Status& status, const std::string& key) {
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  if (!details) return "";
  for (const auto& [name, value] : details->metadata) {
    if (name == key) return value;
  }
  return "";
}

}  // namespace oscarkv::testing
