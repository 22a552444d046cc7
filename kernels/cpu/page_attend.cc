#include "kernels/cpu/page_attend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/codec/page_view.h"
#include "kernels/cpu/code_matrix.h"
#include "kernels/cpu/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_attend.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/code_bytes-inl.h"
#include "kernels/cpu/dense_tokens-inl.h"
#include "kernels/cpu/int8_step-inl.h"
#include "kernels/cpu/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

HWY_INLINE float MiddleCode(int bits) { return static_cast<float>((1 << bits) - 1) / 2; }

// The scales of params[count], times `factor`, and what code `middle` stands for with each.
HWY_INLINE void ReadParams(const AffineFP16* params, int count, float factor, float middle,
                           float* scales, float* centers) {
  const VF factors = hn::Set(F32(), factor);
  const VF middles = hn::Set(F32(), middle);
  for (int i = 0; i < count; i += kLanes) {
    VF scale;
    VF zero;
    LoadFP16Pairs(params + i, scale, zero);
    scale = hn::Mul(scale, factors);
    zero = hn::Mul(zero, factors);
    hn::Store(scale, F32(), scales + i);
    hn::Store(FusedMulAdd(scale, middles, zero), F32(), centers + i);
  }
}

// a . b; b needs no alignment.
HWY_INLINE float DotProduct(const float* a, const float* b, int count) {
  GroupSum sum;
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = i + part * kLanes;
      sum.AddProduct(part, hn::Load(F32(), a + at), hn::LoadU(F32(), b + at));
    }
  }
  return sum.Fold();
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#ifdef OSCARKV_DOT_ATTRIBUTES
HWY_PUSH_ATTRIBUTES(OSCARKV_DOT_ATTRIBUTES)
namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions {
#include "kernels/cpu/code_dots.inc"
#include "kernels/cpu/page_attend.inc"
}  // namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions
HWY_POP_ATTRIBUTES
#endif  // OSCARKV_DOT_ATTRIBUTES

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {
namespace plain {
#include "kernels/cpu/code_dots.inc"
#include "kernels/cpu/page_attend.inc"
}  // namespace plain

void AttendRunOfPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                      TileState& state) {
#ifdef OSCARKV_DOT_ATTRIBUTES
  if (UseDotInstructions()) {
    with_dot_instructions::AttendRunOfPages(layer, first, last, queries, state);
    return;
  }
#endif
  plain::AttendRunOfPages(layer, first, last, queries, state);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(AttendRunOfPages);

void AttendPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                 TileState& state) {
  HWY_DYNAMIC_DISPATCH(AttendRunOfPages)(layer, first, last, queries, state);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
