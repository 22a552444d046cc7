// Limits of requests that proto/oscarkv/v1/kv_cache.proto states, but for kHeadDims and
// kMaxQueryHeadsPerKvHead (kernels/api/layer_spec.h) and kPositionLimit (server/session).
#pragma once

namespace oscarkv::limits {

inline constexpr int kIdCharacters = 128;
inline constexpr int kRequestIdBytes = 128;
inline constexpr int kModelBytes = 256;

inline constexpr int kLayers = 1024;
inline constexpr int kMaxLayerId = 65535;
inline constexpr int kKvHeads = 1024;
inline constexpr int kMaxWindow = 4096;
inline constexpr int kMaxSinks = 128;
inline constexpr float kMaxScale = 65536;

inline constexpr int kItems = 4096;
inline constexpr int kPrefixKeys = 4096;
inline constexpr int kMinPrefixKeyBytes = 8;
inline constexpr int kMaxPrefixKeyBytes = 64;

inline constexpr int kListDefault = 100;
inline constexpr int kListMax = 1000;

}  // namespace oscarkv::limits
