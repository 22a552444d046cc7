#include "kernels/backend_factory.h"

#include <exception>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/instruction_set.h"

namespace oscarkv {

BackendResult MakeBackend(const BackendOptions& options) {
  if (options.threads < 0) {
    return {KernelStatus::InvalidArgument("threads is 0 (all) or a count"), nullptr};
  }
  if (!options.cpu_instructions.empty() && !cpu::UseInstructionSet(options.cpu_instructions)) {
    return {KernelStatus::InvalidArgument("this processor has no such cpu_instructions"), nullptr};
  }
  // The processor is the one backend of this build: kAuto and kCpu are the same.
  try {
    return {KernelStatus::Ok(), std::make_unique<CpuBackend>(options.threads)};
  } catch (const std::exception& error) {  // of the system: no thread, no memory
    return {KernelStatus::ResourceExhausted(error.what()), nullptr};
  }
}

std::vector<std::string> CpuInstructionSets() { return cpu::InstructionSets(); }

}  // namespace oscarkv
