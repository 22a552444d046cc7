#include "client/retry.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "client/error_info.h"

namespace oscarkv {
namespace {

const absl::Status kLost = absl::UnavailableError("lost");

TEST(PauseAfterTest, GrowsUpToItsMaximum) {
  RetryOptions options;
  options.max_attempts = 100;
  absl::Duration expected = options.initial_backoff;
  for (int attempt = 1; attempt < 100; ++attempt) {
    for (const double random : {0.0, 0.5, 0.999}) {
      const auto pause = PauseAfter(options, attempt, kLost, random);
      ASSERT_TRUE(pause.has_value());
      EXPECT_GE(*pause, expected / 2);
      EXPECT_LE(*pause, expected);
    }
    expected = std::min(expected * options.multiplier, options.max_backoff);
  }
}

TEST(PauseAfterTest, EndsWithTheLastAttempt) {
  RetryOptions options;
  options.max_attempts = 3;
  EXPECT_TRUE(PauseAfter(options, 2, kLost, 0).has_value());
  EXPECT_FALSE(PauseAfter(options, 3, kLost, 0).has_value());
  options.max_attempts = 1;
  EXPECT_FALSE(PauseAfter(options, 1, kLost, 0).has_value());
}

TEST(PauseAfterTest, OnlyTransientErrors) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "");
    EXPECT_EQ(PauseAfter({}, 1, status, 0).has_value(),
              status.code() == absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(IsTransient(absl::OkStatus()));
}

TEST(PauseAfterTest, IsNoShorterThanTheServerAsks) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(3);
  info.mutable_retry_delay()->set_nanos(500'000'000);
  google::rpc::Status status;
  status.set_code(8);
  status.add_details()->PackFrom(info);
  const absl::Status error = StatusFromProto(status);
  EXPECT_EQ(RetryDelayOf(error), absl::Milliseconds(3500));
  for (const double random : {0.0, 0.999}) {
    EXPECT_GE(PauseAfter({}, 1, error, random).value(), absl::Milliseconds(3500));
  }
}

TEST(CallWithRetriesTest, NeverRepeatsWhatIsNotRepeatable) {
  int calls = 0;
  const auto call = [&] {
    ++calls;
    return kLost;
  };
  EXPECT_EQ(CallWithRetries({}, absl::InfiniteFuture(), false, call), kLost);
  EXPECT_EQ(calls, 1);
}

TEST(CallWithRetriesTest, StopsAtTheDeadline) {
  RetryOptions options;
  options.max_attempts = 1'000'000;
  int calls = 0;
  const absl::Time deadline = absl::Now() + absl::Milliseconds(100);
  const auto call = [&] {
    ++calls;
    return kLost;
  };
  EXPECT_EQ(CallWithRetries(options, deadline, true, call), kLost);
  EXPECT_GE(calls, 2);
  EXPECT_LE(calls, 5);
}

}  // namespace
}  // namespace oscarkv
