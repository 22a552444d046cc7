// What a WorkQueue has done since it began, to be exported as counters and histograms.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "server/queue/work.h"

namespace oscarkv {

// Counts values by powers of two: buckets[i] has those < 2^i that are in no bucket before, and the
// last one the rest as well.
struct Histogram {
  std::array<std::int64_t, 32> buckets{};
  std::int64_t count = 0;
  std::int64_t sum = 0;
  std::int64_t max = 0;

  void Add(std::int64_t value) {
    const auto bits = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(value)));
    ++buckets[bits < buckets.size() ? bits : buckets.size() - 1];
    ++count;
    sum += value;
    max = value > max ? value : max;
  }
};

struct KindStats {
  Histogram queue_microseconds;  // of a work, from Submit or Resume until it is taken
  Histogram batch_works;         // taken together
  Histogram batch_items;         // of all of them
  Histogram run_microseconds;    // of a batch, with its waiting for sessions; without its replies
};

struct QueueStats {
  std::array<KindStats, kWorkKinds> kinds;  // by WorkKind
  std::int64_t waiting = 0;                 // works, now
  std::int64_t tenants = 0;                 // that are remembered, now

  const KindStats& of(WorkKind kind) const { return kinds[static_cast<std::size_t>(kind)]; }
};

}  // namespace oscarkv
