// When a failed call is tried again, and after what pause.
#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace oscarkv {

struct RetryOptions {
  int max_attempts = 5;  // the first try included; 1: never try again
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  double multiplier = 2.0;
};

// Whether another try of a call that may be repeated can help: the server cannot be reached or
// drains, or it said when to come back (google.rpc.RetryInfo).
bool IsTransient(const absl::Status& error);

// The pause after the failed try number `attempt`, counted from 1: a random part (`random` is in
// [0, 1)) of the upper half of an exponentially growing time, so that clients that failed together
// do not return together, but no less than what the server asked for. nullopt: no more tries.
std::optional<absl::Duration> PauseAfter(const RetryOptions& options, int attempt,
                                         const absl::Status& error, double random);

// Calls until it succeeds, fails for good, tries run out, or the pause would end after `deadline`.
// A call that is not `repeatable` is made once. Returns the last error.
absl::Status CallWithRetries(const RetryOptions& options, absl::Time deadline, bool repeatable,
                             absl::FunctionRef<absl::Status()> call);

}  // namespace oscarkv
