// Whether this processor multiplies and sums bytes in fours (AVX-512 VNNI; the dot products of
// NEON), which attention on codes uses where it can.
#pragma once

namespace oscarkv::cpu {

// Cheap: to be asked for every page. Thread-safe.
bool UseDotInstructions();
// For tests: `use` has an effect only where there are such instructions.
void UseDotInstructionsForTest(bool use);

}  // namespace oscarkv::cpu
