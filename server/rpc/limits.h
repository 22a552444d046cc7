// Limits of requests that proto/oscarkv/v1/kv_cache.proto states.
#pragma once

#include <array>
#include <cstdint>

namespace oscarkv::limits {

inline constexpr int kIdCharacters = 128;
inline constexpr int kRequestIdBytes = 128;
inline constexpr int kModelBytes = 256;

inline constexpr int kLayers = 1024;
inline constexpr int kMaxLayerId = 65535;
inline constexpr int kKvHeads = 1024;
inline constexpr std::array kHeadDims = {64, 80, 96, 112, 128, 192, 256};
inline constexpr int kMaxHeadDim = kHeadDims.back();
inline constexpr int kMaxWindow = 4096;
inline constexpr int kMaxSinks = 128;

// Positions and lengths stay below this, so that no sum or product of a few of them overflows.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 48;

inline constexpr int kListDefault = 100;
inline constexpr int kListMax = 1000;

}  // namespace oscarkv::limits
