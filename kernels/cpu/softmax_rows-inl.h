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

// logits[count] = softcap * tanh(logits / softcap), to about softcap * 1e-7.
HWY_INLINE void ApplySoftcap(float softcap, int count, float* logits) {
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

// Maxima of rows [0, rows) of x, each of `count`.
template <int rows>
HWY_INLINE void LargestOfRows(Rows x, int count, float* largest) {
  VF most[rows];
  for (int r = 0; r < rows; ++r) most[r] = hn::Load(F32(), x[r]);
  for (int i = kLanes; i < count; i += kLanes) {
    for (int r = 0; r < rows; ++r) most[r] = hn::Max(most[r], hn::Load(F32(), x[r] + i));
  }
  for (int r = 0; r < rows; ++r) largest[r] = LargestLane(most[r]);
}

// x[row][count] = exp(x - max[row]), and the sums of rows. REQUIRES: max >= x.
template <int rows>
HWY_INLINE void Exponentials(const float* max, int count, Rows x, float* sums) {
  VF maxima[rows];
  GroupSum sum[rows];
  for (int r = 0; r < rows; ++r) maxima[r] = hn::Set(F32(), max[r]);
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      for (int r = 0; r < rows; ++r) {
        float* at = x[r] + i + part * kLanes;
        const VF e = ExpNonPositive(hn::Sub(hn::Load(F32(), at), maxima[r]));
        hn::Store(e, F32(), at);
        sum[r].Add(part, e);
      }
    }
  }
  for (int r = 0; r < rows; ++r) sums[r] = sum[r].Fold();
}

// One step of the online softmax: turns the logits of a run of tokens into their weights
// exp(logit - max), zero where a row does not see them, and scales what the rows had.
template <int rows>
HWY_INLINE void CountLogitsOfRows(TileState& state, int first, const QueryTile& queries,
                                  std::int64_t begin, int tokens, int count, Rows logits) {
  float max[rows];
  for (int r = 0; r < rows; ++r) {
    const VisibleTokens visible = queries.Visible(first + r, begin, tokens);
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    std::fill_n(logits[r], visible.first, kUnseen);
    std::fill(logits[r] + visible.last, logits[r] + count, kUnseen);
  }
  LargestOfRows<rows>(logits, count, max);
  for (int r = 0; r < rows; ++r) {
    SoftmaxState softmax = state.state(first + r);
    const float factor = softmax.Raise(max[r]);
    if (factor != 1) Scale(factor, state.value_dim(), state.out(first + r));
    state.set_state(first + r, softmax);
    // Nothing seen, now or before: any number turns -inf into weights of zero.
    max[r] = softmax.empty() ? 0 : softmax.max;
  }
  float sums[rows];
  Exponentials<rows>(max, count, logits, sums);
  for (int r = 0; r < rows; ++r) {
    SoftmaxState softmax = state.state(first + r);
    softmax.sum += sums[r];
    state.set_state(first + r, softmax);
  }
}

// The same for all rows. `tokens` of `count` are there, the first at position `begin`; the soft cap
// comes first.
HWY_INLINE void CountLogits(const LayerSpec& spec, const QueryTile& queries, std::int64_t begin,
                            int tokens, int count, Rows logits, TileState& state) {
  for (int row = 0; row < queries.rows() && spec.softcap > 0; ++row) {
    ApplySoftcap(spec.softcap, count, logits[row]);
  }
  int row = 0;
  for (; row + 4 <= queries.rows(); row += 4) {
    CountLogitsOfRows<4>(state, row, queries, begin, tokens, count, logits.From(row));
  }
  for (; row < queries.rows(); ++row) {
    CountLogitsOfRows<1>(state, row, queries, begin, tokens, count, logits.From(row));
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
