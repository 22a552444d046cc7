// Errors of a backend as errors of the service.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/api/status.h"

namespace oscarkv {

// RESOURCE_EXHAUSTED, OUT_OF_MEMORY, worth another try after a while.
absl::Status OutOfMemory(std::string_view message);

// kResourceExhausted: OutOfMemory. kUnavailable: UNAVAILABLE, DEVICE_UNAVAILABLE. All others are
// INTERNAL: an argument that a backend refuses has passed the server's own checks.
absl::Status FromKernelStatus(const KernelStatus& status);

}  // namespace oscarkv
