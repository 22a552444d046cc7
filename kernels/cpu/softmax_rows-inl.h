// Rows of logits: the online softmax, and the soft cap.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_SOFTMAX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_SOFTMAX_ROWS_INL_H_
#undef OSCARKV_KERNELS_CPU_SOFTMAX_ROWS_INL_H_
#else
#define OSCARKV_KERNELS_CPU_SOFTMAX_ROWS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/codec/softmax_state.h"
#include "kernels/cpu/query_tile.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// x[count] *= factor. REQUIRES here and below: count is a multiple of kGroup, x is aligned.
HWY_INLINE void Scale(float factor, int count, float* x) {
  const VF factors = hn::Set(F32(), factor);
  for (int i = 0; i < count; i += kLanes) {
    hn::Store(hn::Mul(factors, hn::Load(F32(), x + i)), F32(), x + i);
  }
}

// logits[count] = softcap * tanh(logits / softcap), to about softcap * 1e-7; as they are if softcap
// is 0.
HWY_INLINE void ApplySoftcap(float softcap, int count, float* logits) {
  if (!(softcap > 0)) return;
  const F32 d;
  const VF cap = hn::Set(d, softcap);
  const VF one = hn::Set(d, 1.0F);
  for (int i = 0; i < count; i += kLanes) {
    const VF x = hn::Div(hn::Load(d, logits + i), cap);
    // tanh |x| = (1 - e) / (1 + e) with e = exp(-2 |x|).
    const VF e = ExpNonPositive(hn::Mul(hn::Set(d, -2.0F), hn::Abs(x)));
    const VF magnitude = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    hn::Store(hn::Mul(cap, hn::CopySignToAbs(magnitude, x)), d, logits + i);
  }
}

HWY_INLINE float Largest(const float* x, int count) {
  VF largest = hn::Load(F32(), x);
  for (int i = kLanes; i < count; i += kLanes) largest = hn::Max(largest, hn::Load(F32(), x + i));
  return hn::GetLane(hn::MaxOfLanes(F32(), largest));
}

// x[count] = exp(x - max), and their sum. REQUIRES: max >= x.
HWY_INLINE float Exponentials(float max, int count, float* x) {
  const VF maxima = hn::Set(F32(), max);
  GroupSum sum;
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      float* at = x + i + part * kLanes;
      const VF e = ExpNonPositive(hn::Sub(hn::Load(F32(), at), maxima));
      hn::Store(e, F32(), at);
      sum.Add(part, e);
    }
  }
  return sum.Fold();
}

// One step of the online softmax: turns the logits of a row for a run of `count` tokens into their
// weights exp(logit - max), zero where the row does not see them, and scales what the row had.
HWY_INLINE void CountLogits(TileState& state, int row, VisibleTokens visible, int count,
                            float* logits) {
  if (visible.empty()) {
    std::fill_n(logits, count, 0.0F);
    return;
  }
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  std::fill_n(logits, visible.first, kUnseen);
  std::fill(logits + visible.last, logits + count, kUnseen);
  SoftmaxState softmax = state.state(row);
  const float factor = softmax.Raise(Largest(logits, count));
  if (factor != 1) Scale(factor, state.value_dim(), state.out(row));
  softmax.sum += Exponentials(softmax.max, count, logits);
  state.set_state(row, softmax);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
