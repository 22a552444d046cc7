// How often clients were told of which error: the reasons of ErrorDetails, as a closed list.
//
// Thread-safety: all functions may be called at once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace oscarkv {

// As in proto/oscarkv/v1/kv_cache.proto. The last one stands for all that are not listed.
inline constexpr auto kErrorReasons = std::to_array<std::string_view>({"CANCELLED",
                                                                       "DEADLINE_EXCEEDED",
                                                                       "DEVICE_UNAVAILABLE",
                                                                       "DRAINING",
                                                                       "FILE_DAMAGED",
                                                                       "FILE_ERROR",
                                                                       "FILE_MISMATCH",
                                                                       "FILE_UNSUPPORTED",
                                                                       "FILE_WITHHELD",
                                                                       "GENERATION_MISMATCH",
                                                                       "INTERNAL",
                                                                       "INVALID_FIELD",
                                                                       "LAYER_NOT_FOUND",
                                                                       "LENGTH_MISMATCH",
                                                                       "NO_DATA_DIR",
                                                                       "OUT_OF_MEMORY",
                                                                       "QUOTA_EXCEEDED",
                                                                       "REPEAT_MISMATCH",
                                                                       "REPLY_TOO_LARGE",
                                                                       "SESSION_EVICTED",
                                                                       "SESSION_EXISTS",
                                                                       "SESSION_NOT_FOUND",
                                                                       "TOKENS_FREED",
                                                                       "TOO_MANY_REQUESTS",
                                                                       "OTHER"});

using ErrorCounts = std::array<std::int64_t, kErrorReasons.size()>;

class ErrorCounter {
 public:
  // Of all that this process tells.
  static ErrorCounter& OfProcess() {
    static ErrorCounter counter;
    return counter;
  }

  void Count(std::string_view reason) {
    const auto* const known = std::find(kErrorReasons.begin(), kErrorReasons.end() - 1, reason);
    counts_[static_cast<std::size_t>(known - kErrorReasons.begin())].fetch_add(
        1, std::memory_order_relaxed);
  }
  ErrorCounts Read() const {
    ErrorCounts read;
    for (std::size_t i = 0; i < read.size(); ++i) {
      read[i] = counts_[i].load(std::memory_order_relaxed);
    }
    return read;
  }

 private:
  std::array<std::atomic<std::int64_t>, kErrorReasons.size()> counts_{};
};

}  // namespace oscarkv
