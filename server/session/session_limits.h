// What a session may be at most, as proto/oscarkv/v1/kv_cache.proto states: for requests and for
// session files alike. kHeadDims and kMaxQueryHeadsPerKvHead are in kernels/api/layer_spec.h,
// kPositionLimit in server/session/session_store.h.
#pragma once

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"

namespace oscarkv::limits {

inline constexpr int kIdCharacters = 128;
inline constexpr int kRequestIdBytes = 128;
inline constexpr int kModelBytes = 256;

inline constexpr int kPrefixKeys = 4096;
inline constexpr int kMinPrefixKeyBytes = 8;
inline constexpr int kMaxPrefixKeyBytes = 64;

inline constexpr int kLayers = 1024;
inline constexpr int kMaxLayerId = 65535;
inline constexpr int kKvHeads = 1024;
inline constexpr int kMaxWindow = 4096;
inline constexpr int kMaxSinks = 128;
inline constexpr float kMaxScale = 65536;

// Whether it may be an id of a session, a tenant or a group: 1 to kIdCharacters of [A-Za-z0-9._~-].
inline bool IsId(std::string_view text) {
  return !text.empty() && text.size() <= kIdCharacters &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '~' || c == '-';
         });
}

}  // namespace oscarkv::limits
