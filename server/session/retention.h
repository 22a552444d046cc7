// How long a session is kept, and what goes before it where memory is short.
#pragma once

#include "absl/time/time.h"

namespace oscarkv {

struct Retention {
  int priority = 0;     // sessions of a lower one are evicted first
  bool pinned = false;  // never evicted to make room, and never expires
  // It is dropped when no one has used it for so long: at least a nanosecond, below 292 years;
  // infinite: never.
  absl::Duration ttl = absl::InfiniteDuration();

  friend bool operator==(const Retention&, const Retention&) = default;
};

}  // namespace oscarkv
