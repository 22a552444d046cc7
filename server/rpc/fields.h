// Checks of single fields of a request. Every error is INVALID_ARGUMENT and names the field, its
// value and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace oscarkv {

// `items[2]` and `items[2].key`: the path of a repeated field's element, and of a field in it.
std::string Indexed(std::string_view field, std::int64_t index);
std::string Joined(std::string_view parent, std::string_view field);

// Text of a client made fit for messages and logs: printable ASCII, at most `limit` characters.
std::string SafeText(std::string_view text, std::size_t limit = 160);

// 1 to 128 characters of [A-Za-z0-9._~-]; none at all only if not `required`.
absl::Status CheckId(std::string_view field, std::string_view value, bool required);

// At most `limit` bytes.
absl::Status CheckBytes(std::string_view field, std::string_view value, std::size_t limit);

// low <= value <= high.
absl::Status CheckRange(std::string_view field, std::int64_t value, std::int64_t low,
                        std::int64_t high);

// A finite number, not negative.
absl::Status CheckNotNegative(std::string_view field, float value);

}  // namespace oscarkv
