// How long things took, counted by ranges, for metrics.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace oscarkv {

// Upper bounds of the ranges, in seconds, each with its bound; behind the last one lies the rest.
// They suit reading and writing files: 100 us to 10 s.
inline constexpr std::array kDurationBounds = {1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
                                               1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 5e-1,
                                               1.0,  2.5,    5.0,  10.0};

struct DurationCounts {
  std::array<std::int64_t, kDurationBounds.size() + 1> counts{};  // of each range by itself
  double seconds = 0;                                             // the sum
};

// Thread-safety: all functions may be called at once. What is read meanwhile may lack of one
// duration either its count or its seconds.
class DurationHistogram {
 public:
  void Add(std::chrono::nanoseconds duration) {
    const double seconds = std::chrono::duration<double>(duration).count();
    const auto* const bound =
        std::lower_bound(kDurationBounds.begin(), kDurationBounds.end(), seconds);
    const auto range = static_cast<std::size_t>(bound - kDurationBounds.begin());
    counts_[range].fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(duration.count(), std::memory_order_relaxed);
  }

  DurationCounts Read() const {
    DurationCounts read;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      read.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    read.seconds = 1e-9 * static_cast<double>(nanoseconds_.load(std::memory_order_relaxed));
    return read;
  }

 private:
  std::array<std::atomic<std::int64_t>, kDurationBounds.size() + 1> counts_{};
  std::atomic<std::int64_t> nanoseconds_{0};
};

}  // namespace oscarkv
