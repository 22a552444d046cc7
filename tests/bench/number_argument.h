// Numbers of a command line without flags.
#pragma once

#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>

namespace oscarkv::bench {

// The whole of `text` as a number from `least` to `most`, if it is one.
inline std::optional<int> NumberArgument(const char* text, int least, int most) {
  const char* const end = text + std::strlen(text);
  int number = 0;
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc() || rest != end || number < least || number > most) return std::nullopt;
  return number;
}

}  // namespace oscarkv::bench
