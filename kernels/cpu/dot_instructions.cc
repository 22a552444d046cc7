#include "kernels/cpu/dot_instructions.h"

#include <atomic>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace oscarkv::cpu {
namespace {

bool HasDotInstructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

std::atomic<bool>& Use() {
  static std::atomic<bool> use{HasDotInstructions()};
  return use;
}

}  // namespace

bool UseDotInstructions() { return Use().load(std::memory_order_relaxed); }

void UseDotInstructionsForTest(bool use) { Use().store(use && HasDotInstructions()); }

}  // namespace oscarkv::cpu
