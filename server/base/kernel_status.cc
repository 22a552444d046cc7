#include "server/base/kernel_status.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/error.h"

namespace oscarkv {

absl::Status OutOfMemory(std::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, message,
                   {.reason = "OUT_OF_MEMORY", .retry_after = absl::Seconds(1)});
}

absl::Status FromKernelStatus(const KernelStatus& status) {
  switch (status.code) {
    case KernelErrorCode::kOk:
      return absl::OkStatus();
    case KernelErrorCode::kResourceExhausted:
      return OutOfMemory(status.message);
    case KernelErrorCode::kUnavailable:
      return MakeError(absl::StatusCode::kUnavailable, status.message,
                       {.reason = "DEVICE_UNAVAILABLE"});
    case KernelErrorCode::kInvalidArgument:
    case KernelErrorCode::kInternal:
      break;
  }
  return MakeError(absl::StatusCode::kInternal, absl::StrCat("backend: ", status.message),
                   {.reason = "INTERNAL"});
}

}  // namespace oscarkv
