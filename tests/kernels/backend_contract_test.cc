// What every backend promises, against the float64 oracle. A backend joins by one line below.
#include "tests/kernels/support/backend_contract.h"

#include <gtest/gtest.h>

namespace oscarkv::testing {

INSTANTIATE_TEST_SUITE_P(Backends, BackendContract,
                         ::testing::Values(BackendCase{"cpu", BackendKind::kCpu}),
                         [](const auto& backend) { return std::string(backend.param.name); });

}  // namespace oscarkv::testing
