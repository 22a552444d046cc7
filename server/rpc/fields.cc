#include "server/rpc/fields.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/string_view.h"
#include "server/rpc/limits.h"

namespace oscarkv {
std::string Indexed(std::string_view field, std::int64_t index) {
  return absl::StrCat(ToAbsl(field), "[", index, "]");
}

std::string Joined(std::string_view parent, std::string_view field) {
  return absl::StrCat(ToAbsl(parent), ".", ToAbsl(field));
}

std::string SafeText(std::string_view text, std::size_t limit) {
  std::string safe(text.substr(0, limit));
  for (char& c : safe) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  if (text.size() > limit) absl::StrAppend(&safe, "... (", text.size(), " bytes)");
  return safe;
}

absl::Status CheckId(std::string_view field, std::string_view value, bool required) {
  if (value.empty() && !required) return absl::OkStatus();
  if (limits::IsId(value)) return absl::OkStatus();
  return InvalidField(field, SafeText(value),
                      absl::StrCat(required ? "1" : "0", " to ", limits::kIdCharacters,
                                   " characters of [A-Za-z0-9._~-]"));
}

absl::Status CheckBytes(std::string_view field, std::string_view value, std::size_t limit) {
  if (value.size() <= limit) return absl::OkStatus();
  return InvalidField(field, SafeText(value), absl::StrCat("at most ", limit, " bytes"));
}

absl::Status CheckRange(std::string_view field, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value), absl::StrCat(low, " to ", high));
}

absl::Status CheckNotNegative(std::string_view field, float value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value), "a finite number, not negative");
}

}  // namespace oscarkv
