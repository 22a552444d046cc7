// The instruction sets that the CPU backend is compiled for, and the one that runs: one for the
// whole process. All give the same bits.
#pragma once

#include <string>
#include <vector>

namespace oscarkv::cpu {

// Names of those that this build and this processor have, the fastest first: of "avx512-vnni",
// "avx512", "avx2", "scalar" (x86), "neon-dotprod", "neon" (Arm). Thread-safe.
const std::vector<std::string>& InstructionSets();

// The name of the one that runs: the first of them until another is chosen. Thread-safe.
std::string InstructionSet();

// Makes another one run. False, and nothing changes, if InstructionSets() has no such name.
// REQUIRES: no kernel runs meanwhile.
bool UseInstructionSet(const std::string& name);

// For kernels: whether the one that runs multiplies and sums bytes in fours (AVX-512 VNNI; NEON's
// dot products), which Highway has no target for. Cheap: to be asked for every page. Thread-safe.
bool UseDotInstructions();

}  // namespace oscarkv::cpu
