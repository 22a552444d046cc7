// Runs a test on every instruction set that this build and this processor have.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "hwy/targets.h"
#include "kernels/cpu/dot_instructions.h"

namespace oscarkv::testing {

// Calls test() on each, with and without instructions for dot products. Not thread-safe.
inline void ForEachTarget(const std::function<void()>& test) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const bool dot_instructions : {true, false}) {
      SCOPED_TRACE(::testing::Message()
                   << hwy::TargetName(target) << ", dot instructions " << dot_instructions);
      cpu::UseDotInstructionsForTest(dot_instructions);
      test();
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  cpu::UseDotInstructionsForTest(true);
}

}  // namespace oscarkv::testing
