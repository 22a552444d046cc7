// The int8 step of both products of attention on codes.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_INT8_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_INT8_STEP_INL_H_
#undef OSCARKV_KERNELS_CPU_INT8_STEP_INL_H_
#else
#define OSCARKV_KERNELS_CPU_INT8_STEP_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// An int8 step: a number is about step * code.
struct Int8Step {
  float step;
  float reciprocal;  // what numbers are multiplied by, then rounded
};

// The step of numbers of which the largest magnitude is `largest`, so that it has the code 127.
// Both are IEEE quotients, and products are rounded once, to whole numbers: every backend finds the
// same codes.
// Numbers that vanish beside everything else have codes 0.
HWY_INLINE Int8Step StepOf(float largest) {
  if (!(largest > 0x1p-120F)) return {0, 0};  // the reciprocal would overflow
  return {largest / 127, 127 / largest};
}

// codes[count] = x * step.reciprocal rounded to nearest even. Adds the codes to `sums`.
// REQUIRES: count is a multiple of kGroup; x is aligned.
HWY_INLINE void QuantizeToInt8(const float* x, int count, const Int8Step& step, std::int8_t* codes,
                               GroupSum& sums) {
  const F32 d;
  const U32 u;
  const VF reciprocals = hn::Set(d, step.reciprocal);
  const VF unit = hn::Set(d, kToWhole);  // the last byte is then that of an int8
  hn::Vec<U32> sum[kParts];              // of all bits, modulo 2^32
  for (auto& part : sum) part = hn::Zero(u);
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = i + part * kLanes;
      const VF shifted = FusedMulAdd(hn::Load(d, x + at), reciprocals, unit);
      const auto bits = hn::BitCast(u, shifted);
      StoreLastBytes(bits, codes + at);
      sum[part] = hn::Add(sum[part], bits);
    }
  }
  const auto units = hn::Set(u, static_cast<std::uint32_t>(count / kGroup) * kToWholeBits);
  for (int part = 0; part < kParts; ++part) {
    const auto whole = hn::BitCast(I32(), hn::Sub(sum[part], units));
    sums.Add(part, hn::ConvertTo(d, whole));
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
