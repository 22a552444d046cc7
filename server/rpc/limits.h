// Limits of requests that proto/oscarkv/v1/kv_cache.proto states.
#pragma once

#include "server/session/session_limits.h"  // IWYU pragma: export

namespace oscarkv::limits {

inline constexpr int kItems = 4096;

inline constexpr int kListDefault = 100;
inline constexpr int kListMax = 1000;

}  // namespace oscarkv::limits
