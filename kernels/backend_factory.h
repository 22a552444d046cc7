// Makes a backend by name. The only header besides kernels/api that the server includes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  // Of CpuInstructionSets(), for all CPU backends of the process, none of which computes meanwhile;
  // empty: as chosen before, or else the fastest.
  std::string cpu_instructions = {};
};

struct BackendResult {
  KernelStatus status;
  std::unique_ptr<Backend> backend;  // null unless ok
};

// INVALID_ARGUMENT if an option is not as it says; RESOURCE_EXHAUSTED if the system has no thread
// or no memory.
BackendResult MakeBackend(const BackendOptions& options);

// Names of the instruction sets that the CPU backend of this build can use on this processor, the
// fastest first: of "avx512-vnni", "avx512", "avx2", "scalar" (x86), "neon-dotprod", "neon" (Arm).
std::vector<std::string> CpuInstructionSets();

}  // namespace oscarkv
