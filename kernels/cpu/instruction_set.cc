#include "kernels/cpu/instruction_set.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace oscarkv::cpu {
namespace {

// A target of Highway's, with or without instructions for dot products.
struct Set {
  const char* name;
  std::int64_t target;
  bool dot;
};

#if HWY_ARCH_ARM_A64
// One target, whose name depends on Highway's version.
constexpr Set kSets[] = {{"neon-dotprod", HWY_TARGETS, true}, {"neon", HWY_TARGETS, false}};
#else
constexpr Set kSets[] = {{"avx512-vnni", HWY_AVX3, true},
                         {"avx512", HWY_AVX3, false},
                         {"avx2", HWY_AVX2, false},
                         {"scalar", HWY_SCALAR, false}};
#endif

bool HasDotInstructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

// Before any other was chosen.
std::vector<Set> FindSets() {
  std::vector<Set> sets;
  const std::int64_t targets = HWY_SUPPORTED_TARGETS & HWY_TARGETS;
  for (const Set& set : kSets) {
    if ((targets & set.target) != 0 && (!set.dot || HasDotInstructions())) sets.push_back(set);
  }
  return sets;
}

const std::vector<Set>& Sets() {
  static const std::vector<Set> sets = FindSets();
  return sets;
}

std::atomic<std::size_t> running = 0;  // index in Sets()

const Set& Running() { return Sets()[running.load(std::memory_order_relaxed)]; }

}  // namespace

const std::vector<std::string>& InstructionSets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Set& set : Sets()) out.emplace_back(set.name);
    return out;
  }();
  return names;
}

std::string InstructionSet() { return Running().name; }

bool UseInstructionSet(const std::string& name) {
  const auto& names = InstructionSets();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return false;
  const auto index = static_cast<std::size_t>(found - names.begin());
  // A single target is called without asking, and without Highway's library.
  constexpr bool kSeveralTargets = (HWY_TARGETS & (HWY_TARGETS - 1)) != 0;
  if constexpr (kSeveralTargets) hwy::SetSupportedTargetsForTest(Sets()[index].target);
  running.store(index, std::memory_order_relaxed);
  return true;
}

bool UseDotInstructions() { return Running().dot; }

}  // namespace oscarkv::cpu
