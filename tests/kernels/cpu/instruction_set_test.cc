#include "kernels/cpu/instruction_set.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/cpu/cpu_backend.h"

namespace oscarkv::cpu {
namespace {

TEST(InstructionSet, TheFirstRunsUntilAnotherIsChosen) {
  const std::vector<std::string>& names = InstructionSets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(InstructionSet(), names[0]);
  for (const std::string& name : names) {
    EXPECT_TRUE(UseInstructionSet(name));
    EXPECT_EQ(InstructionSet(), name);
    EXPECT_EQ(InstructionSets(), names);  // others can be chosen still
  }
  EXPECT_TRUE(UseInstructionSet(names[0]));
}

TEST(InstructionSet, OneThatIsNotThereChangesNothing) {
  const std::string before = InstructionSet();
  for (const char* name : {"", "avx", "AVX2", "avx512 ", "sse9"}) {
    EXPECT_FALSE(UseInstructionSet(name)) << name;
    EXPECT_EQ(InstructionSet(), before);
  }
}

TEST(InstructionSet, TheBackendTellsIt) {
  const CpuBackend backend(1);
  for (const std::string& name : InstructionSets()) {
    ASSERT_TRUE(UseInstructionSet(name));
    EXPECT_TRUE(backend.Info().device.ends_with(", " + name)) << backend.Info().device;
  }
  UseInstructionSet(InstructionSets()[0]);
}

}  // namespace
}  // namespace oscarkv::cpu
