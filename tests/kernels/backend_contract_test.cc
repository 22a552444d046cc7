// What every backend promises, against the float64 oracle: the CPU backend on each of its
// instruction sets. A backend joins by a line below.
#include "tests/kernels/support/backend_contract.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {

namespace {

std::vector<BackendCase> AllBackends() {
  std::vector<BackendCase> backends;
  for (const std::string& instructions : cpu::InstructionSets()) {
    backends.push_back({"cpu", BackendKind::kCpu, instructions});
    // Threads share work alike on all of them.
    if (kWatchingThreads) break;
  }
  return backends;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Backends, BackendContract, ::testing::ValuesIn(AllBackends()),
                         [](const auto& backend) { return backend.param.TestName(); });

}  // namespace oscarkv::testing
