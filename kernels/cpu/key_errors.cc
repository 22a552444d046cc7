#include "kernels/cpu/key_errors.h"

#include <cstddef>
#include <cstdint>

#include "kernels/codec/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/key_errors.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// What the rows of one group of tokens share.
struct GroupParams {
  HWY_ALIGN float scales[kMaxHeadDim];
  HWY_ALIGN float zeros[kMaxHeadDim];
  HWY_ALIGN float direction[kMaxHeadDim];
};

void MeasureErrorsOfTarget(const float* keys_x, float factor, const KeyCodes& keys,
                           const float* direction, TokenErrors* errors) {
  const F32 d;
  const hn::Rebind<std::uint8_t, F32> bytes;
  const VF times = hn::Set(d, factor);
  GroupParams shared;
  for (int c = 0; c < keys.dim; c += kLanes) {
    hn::Store(direction == nullptr ? hn::Zero(d) : hn::LoadU(d, direction + c), d,
              shared.direction + c);
  }
  for (int t = 0; t < kPageTokens; ++t) {
    if (t % keys.group == 0) {
      const AffineFP16* const params =
          keys.params + static_cast<std::ptrdiff_t>(t / keys.group) * keys.dim;
      SplitParams(params, keys.dim, shared.scales, shared.zeros);
    }
    GroupSum along;
    GroupSum error_squares;
    GroupSum squares;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(t) * keys.dim;
    for (int c = 0; c < keys.dim; c += kGroup) {
      for (int part = 0; part < kParts; ++part) {
        const int at = c + part * kLanes;
        const VF x = hn::Mul(hn::LoadU(d, keys_x + row + at), times);
        const auto code = hn::PromoteTo(I32(), hn::LoadU(bytes, keys.codes + row + at));
        const VF near = FusedMulAdd(hn::Load(d, shared.scales + at), hn::ConvertTo(d, code),
                                    hn::Load(d, shared.zeros + at));
        const VF error = hn::Sub(x, near);
        along.AddProduct(part, error, hn::Load(d, shared.direction + at));
        error_squares.AddProduct(part, error, error);
        squares.AddProduct(part, x, x);
      }
    }
    errors->along[t] = along.Fold();
    errors->errors[t] = error_squares.Fold();
    errors->squares[t] = squares.Fold();
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(MeasureErrorsOfTarget);

void MeasureErrors(const float* x, float factor, const KeyCodes& keys, const float* direction,
                   TokenErrors* errors) {
  HWY_DYNAMIC_DISPATCH(MeasureErrorsOfTarget)(x, factor, keys, direction, errors);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
