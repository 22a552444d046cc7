// How much a test with random cases tries.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace oscarkv::testing {

// Whether the processor, and with it the system, is emulated.
inline bool Emulated() { return std::getenv("OSCARKV_TEST_EMULATED") != nullptr; }

// Whether the thread sanitizer watches: it is after threads, which few cases show as well as many.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kWatchingThreads = true;
#else
inline constexpr bool kWatchingThreads = false;
#endif

// `usual` cases; `full` where OSCARKV_TEST_FULL is set (CONTRIBUTING.md). Where each case takes ten
// times as long or more, a quarter of `usual`, or `usual` in place of `full`: there the cases
// differ less from one build or instruction set to another than from each other.
inline int Trials(int usual, int full) {
  const bool slow = Emulated() || kWatchingThreads;
  if (std::getenv("OSCARKV_TEST_FULL") != nullptr) return slow ? usual : full;
  return slow ? std::max(1, usual / 4) : usual;
}
inline int Trials(int usual) { return Trials(usual, usual); }

}  // namespace oscarkv::testing
