#include "kernels/backend_factory.h"

#include <exception>

#include "kernels/cpu/cpu_backend.h"

namespace oscarkv {

BackendResult MakeBackend(const BackendOptions& options) {
  if (options.threads < 0) {
    return {KernelStatus::InvalidArgument("threads is 0 (all) or a count"), nullptr};
  }
  // The processor is the one backend of this build: kAuto and kCpu are the same.
  try {
    return {KernelStatus::Ok(), std::make_unique<CpuBackend>(options.threads)};
  } catch (const std::exception& error) {  // of the system: no thread, no memory
    return {KernelStatus::ResourceExhausted(error.what()), nullptr};
  }
}

}  // namespace oscarkv
