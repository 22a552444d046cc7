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

HWY_INLINE float LargestLane(VF x) { return hn::GetLane(hn::MaxOfLanes(F32(), x)); }

// Whole numbers nearest to x / step, ties to even, as IEEE division would round them, in
// [-127, 127].
class Divider {
 public:
  // Magnitudes of what is divided are at most 127 * step, up to rounding.
  HWY_INLINE explicit Divider(float step) {
    step_ = hn::Set(F32(), step);
    reciprocal_ = hn::Set(F32(), 1 / step);
    // Otherwise the reciprocal may overflow or lose digits.
    fast_ = step > 1e-30F && step < 1e30F;
  }

  HWY_INLINE VF Round(VF x) const {
    // The product is off by less than 1e-4: rounding can differ only where it is that close to the
    // middle between two whole numbers.
    const VF product = hn::Mul(x, reciprocal_);
    const VF rounded = hn::Round(product);
    const VF off = hn::Abs(hn::Sub(product, rounded));
    if (HWY_LIKELY(fast_ && hn::AllTrue(F32(), hn::Lt(off, hn::Set(F32(), 0.4999F))))) {
      return rounded;
    }
    // A step that is not normal can be off by much; the comparisons turn NaN into -127.
    const VF exact = hn::Round(hn::Div(x, step_));
    const VF most = hn::Set(F32(), 127.0F);
    const VF least = hn::Set(F32(), -127.0F);
    const VF below = hn::IfThenElse(hn::Lt(exact, most), exact, most);
    return hn::IfThenElse(hn::Gt(below, least), below, least);
  }

 private:
  VF step_;
  VF reciprocal_;
  bool fast_;
};

// Quantizes x[count], of which the largest magnitude is `largest`, to int8 with one step,
// largest / 127, and returns the step (0 if x is zero). Adds to `rest` what rounding took away,
// x - step * codes. REQUIRES: count is a multiple of kGroup.
HWY_INLINE float QuantizeToInt8(const float* x, int count, float largest, std::int8_t* codes,
                                GroupSum& rest) {
  const F32 d;
  const float step = largest / 127;
  const Divider divider(step > 0 ? step : 1);
  const VF steps = hn::Set(d, step);
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = i + part * kLanes;
      const VF v = hn::Load(d, x + at);
      const VF code = divider.Round(v);
      hn::StoreU(hn::DemoteTo(I8(), hn::ConvertTo(I32(), code)), I8(), codes + at);
      rest.Add(part, hn::Sub(v, hn::Mul(steps, code)));
    }
  }
  return step;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
