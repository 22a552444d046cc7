// Makes a backend by name. The only header besides kernels/api that the server includes.
#pragma once

#include <memory>

#include "kernels/api/backend.h"
#include "kernels/api/status.h"

namespace oscarkv {

enum class BackendKind : std::uint8_t {
  kAuto,  // the best one that this build has and this machine can run
  kCpu,
};

struct BackendOptions {
  BackendKind kind = BackendKind::kAuto;
  int threads = 0;  // host threads that compute; 0: one per processor that this process may use
};

struct BackendResult {
  KernelStatus status;
  std::unique_ptr<Backend> backend;  // null unless ok
};

BackendResult MakeBackend(const BackendOptions& options);

}  // namespace oscarkv
