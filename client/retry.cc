#include "client/retry.h"

#include <algorithm>
#include <cmath>

#include "absl/random/random.h"
#include "absl/time/clock.h"
#include "client/error_info.h"

namespace oscarkv {

bool IsTransient(const absl::Status& error) {
  if (error.ok()) return false;
  return absl::IsUnavailable(error) || RetryDelayOf(error).has_value();
}

std::optional<absl::Duration> PauseAfter(const RetryOptions& options, int attempt,
                                         const absl::Status& error, double random) {
  if (attempt >= options.max_attempts || !IsTransient(error)) return std::nullopt;
  const absl::Duration grown =
      options.initial_backoff * std::pow(options.multiplier, static_cast<double>(attempt - 1));
  const absl::Duration backoff = std::min(grown, options.max_backoff) * (0.5 + 0.5 * random);
  // Jitter on top of the server's wish as well: it gives all clients the same one.
  return RetryDelayOf(error).value_or(absl::ZeroDuration()) + backoff;
}

absl::Status CallWithRetries(const RetryOptions& options, absl::Time deadline, bool repeatable,
                             absl::FunctionRef<absl::Status()> call) {
  thread_local absl::BitGen random;
  for (int attempt = 1;; ++attempt) {
    absl::Status status = call();
    if (status.ok() || !repeatable) return status;
    const auto pause = PauseAfter(options, attempt, status, absl::Uniform(random, 0.0, 1.0));
    if (!pause.has_value() || absl::Now() + *pause >= deadline) return status;
    absl::SleepFor(*pause);
  }
}

}  // namespace oscarkv
