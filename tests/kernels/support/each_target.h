// Runs a test on every instruction set that this build and this processor have.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/cpu/instruction_set.h"

namespace oscarkv::testing {

// Calls test() on each. Not thread-safe.
inline void ForEachTarget(const std::function<void()>& test) {
  const std::string before = cpu::InstructionSet();
  for (const std::string& name : cpu::InstructionSets()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(cpu::UseInstructionSet(name));
    test();
  }
  cpu::UseInstructionSet(before);
}

}  // namespace oscarkv::testing
