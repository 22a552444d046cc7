// How much a test with random cases tries.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace oscarkv::testing {

// Whether the processor, and with it the system, is emulated.
inline bool Emulated() { return std::getenv("OSCARKV_TEST_EMULATED") != nullptr; }

// `usual` cases; `full` where OSCARKV_TEST_FULL is set (CONTRIBUTING.md), and a quarter where
// OSCARKV_TEST_EMULATED is: an emulated processor is twenty times slower, and the cases differ less
// from one instruction set to another than from each other.
inline int Trials(int usual, int full) {
  if (Emulated()) return std::max(1, usual / 4);
  return std::getenv("OSCARKV_TEST_FULL") != nullptr ? full : usual;
}
inline int Trials(int usual) { return Trials(usual, usual); }

}  // namespace oscarkv::testing
