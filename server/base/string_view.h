// Debian's and Ubuntu's Abseil keep a string_view of their own, which takes no std::string_view.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace oscarkv {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

}  // namespace oscarkv
