#include "server/base/kernel_status.h"

#include <gtest/gtest.h>

#include "server/base/error.h"

namespace oscarkv {
namespace {

TEST(KernelStatusTest, EveryCodeHasItsReason) {
  EXPECT_TRUE(FromKernelStatus(KernelStatus::Ok()).ok());

  const absl::Status memory = FromKernelStatus(KernelStatus::ResourceExhausted("full"));
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(memory)->reason, "OUT_OF_MEMORY");
  EXPECT_GT(DetailsOf(memory)->retry_after, absl::ZeroDuration());

  const absl::Status lost = FromKernelStatus(KernelStatus::Unavailable("lost"));
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailsOf(lost)->reason, "DEVICE_UNAVAILABLE");

  for (const KernelStatus& status :
       {KernelStatus::Internal("broken"), KernelStatus::InvalidArgument("refused")}) {
    EXPECT_EQ(FromKernelStatus(status).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(DetailsOf(FromKernelStatus(status))->reason, "INTERNAL");
  }
}

}  // namespace
}  // namespace oscarkv
