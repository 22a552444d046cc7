#include "kernels/cpu/affine_fit.h"

#include <cstddef>

#include "kernels/api/dtype.h"
#include "kernels/codec/scaled.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/affine_fit.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

// Groups are fitted a vector of them at a time, one per lane, so that every sum runs in the order
// of the rows.

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// `kLanes` groups of `count` values, [count][kLanes], and where their codes go, rows `stride`
// apart.
struct Block {
  const float* x;
  int count;
  std::uint8_t* codes;
  std::ptrdiff_t stride;
};

// Of a block's numbers x, and of y = x less their mean as first found.
struct Moments {
  VF low;
  VF high;
  VF mean;      // as first found
  VF sum;       // of y: what rounding left of the mean
  VF squares;   // of y
  VF variance;  // times count
};

// Sums over the codes that a scale and a zero give.
struct CodeSums {
  VF code;
  VF squared;
  VF product;  // of codes and y
};

HWY_INLINE VF SetAll(float x) { return hn::Set(F32(), x); }

// Of from[count][stride] * factor, which x[count][kLanes] becomes: less its mean if `centered`.
template <bool centered>
HWY_INLINE Moments MomentsOf(const float* from, std::ptrdiff_t stride, float factor, int count,
                             float* x) {
  const F32 d;
  VF low = hn::LoadU(d, from);
  VF high = low;
  VF sum = hn::Zero(d);
  for (int i = 0; i < count; ++i) {
    const VF value = hn::LoadU(d, from + i * stride);
    low = hn::Min(low, value);
    high = hn::Max(high, value);
    sum = hn::Add(sum, value);
  }
  const VF times = SetAll(factor);
  const VF n = SetAll(static_cast<float>(count));
  const VF mean = hn::Div(hn::Mul(sum, times), n);
  VF rest = hn::Zero(d);
  VF squares = hn::Zero(d);
  for (int i = 0; i < count; ++i) {
    const VF value = hn::LoadU(d, from + i * stride);
    const VF y = FusedMulSub(value, times, mean);
    hn::Store(centered ? y : hn::Mul(value, times), d, x + i * kLanes);
    rest = hn::Add(rest, y);
    squares = FusedMulAdd(y, y, squares);
  }
  const VF variance = hn::Sub(squares, hn::Div(hn::Mul(rest, rest), n));
  return {hn::Mul(low, times),           hn::Mul(high, times), mean, rest, squares,
          hn::Max(variance, hn::Zero(d))};
}

// The mean, with what rounding left of it at first.
HWY_INLINE VF MeanOf(const Moments& m, VF n) {
  const VF better = hn::Add(m.mean, hn::Div(m.sum, n));
  return hn::Min(hn::Max(better, m.low), m.high);
}

// 1 / scale; 0, which gives codes 0, for a scale so small that it vanishes in fp16.
HWY_INLINE VF ReciprocalOf(VF scale) {
  const auto usable = hn::Gt(scale, SetAll(0x1p-100F));
  return hn::IfThenElseZero(usable, hn::Div(SetAll(1), hn::IfThenElse(usable, scale, SetAll(1))));
}

// x / scale as IEEE rounds it, given the rounded reciprocal, but in a third of the time: Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 8.3.
HWY_INLINE VF Quotient(VF x, VF scale, VF reciprocal) {
  const VF near = hn::Mul(x, reciprocal);
  return FusedMulAdd(FusedNegMulAdd(near, scale, x), reciprocal, near);
}

// The bits of a code, as AddCode has them.
HWY_INLINE hn::Vec<I32> BitsOf(float code) { return hn::BitCast(I32(), SetAll(kToWhole + code)); }

// Assigns the code of `at`, codes from zero, rounded and clamped to `top`; adds to the sums, and
// writes it where `code_out` says, unless that is null.
HWY_INLINE void AddCode(VF at, VF y, hn::Vec<I32> top, CodeSums& sums, std::uint8_t* code_out) {
  const VF unit = SetAll(kToWhole);
  // Clamped as bits, which are in the order of the numbers: processors have more room for that.
  const hn::Vec<I32> bits =
      hn::Min(hn::Max(hn::BitCast(I32(), hn::Add(at, unit)), hn::Set(I32(), kToWholeBits)), top);
  const VF code = hn::Sub(hn::BitCast(F32(), bits), unit);
  sums.code = hn::Add(sums.code, code);
  sums.squared = FusedMulAdd(code, code, sums.squared);
  sums.product = FusedMulAdd(code, y, sums.product);
  if (code_out == nullptr) return;
  StoreLastBytes(hn::BitCast(U32(), bits), reinterpret_cast<std::int8_t*>(code_out));
}

// Assigns the nearest codes under a scale and a zero, writes them and returns their sums.
HWY_INLINE CodeSums AssignNearest(const Block& block, VF scale, VF zero, VF mean,
                                  hn::Vec<I32> top) {
  const F32 d;
  const VF reciprocal = ReciprocalOf(scale);
  CodeSums sums = {hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int i = 0; i < block.count; ++i) {
    const VF x = hn::Load(d, block.x + i * kLanes);
    AddCode(Quotient(hn::Sub(x, zero), scale, reciprocal), hn::Sub(x, mean), top, sums,
            block.codes + i * block.stride);
  }
  return sums;
}

// Assigns codes of a block less its mean, `zero` from it, to within rounding; writes them if
// `store`.
template <bool store>
HWY_INLINE CodeSums AssignCentered(const Block& block, VF scale, VF zero, hn::Vec<I32> top) {
  const F32 d;
  const VF reciprocal = ReciprocalOf(scale);
  const VF start = hn::Neg(hn::Mul(zero, reciprocal));
  CodeSums sums = {hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int i = 0; i < block.count; ++i) {
    const VF y = hn::Load(d, block.x + i * kLanes);
    AddCode(FusedMulAdd(y, reciprocal, start), y, top, sums,
            store ? block.codes + i * block.stride : nullptr);
  }
  return sums;
}

// count^2 times the variance of the codes, exact: an integer below 2^24.
HWY_INLINE VF CodeVariance(const CodeSums& sums, VF n) {
  return hn::Sub(hn::Mul(n, sums.squared), hn::Mul(sums.code, sums.code));
}

struct Affine {
  VF scale;
  VF zero;
};

// Rounds to fp16, saturating.
HWY_INLINE hn::Vec<U16> RoundToFP16(VF x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(U16(), ToFP16Saturated(hn::GetLane(x)));
#else
  const VF within = hn::Min(hn::Max(x, SetAll(-kLargestFP16)), SetAll(kLargestFP16));
  return hn::BitCast(U16(), hn::DemoteTo(F16(), within));
#endif
}

// Rounds scale and zero to fp16; a scale that vanishes is degenerate.
HWY_INLINE Affine RoundParams(VF mean, VF scale, VF zero, AffineFP16* params) {
  const U32 u;
  const hn::Vec<U32> scale_bits = hn::PromoteTo(u, RoundToFP16(scale));
  const VF rounded = FloatFromFP16(scale_bits);
  const auto fits = hn::Gt(rounded, hn::Zero(F32()));
  // Instruction sets do not agree on which of 0 and -0 is less: added to 0, both are 0.
  const VF exact = hn::Add(hn::IfThenElse(fits, zero, mean), hn::Zero(F32()));
  const hn::Vec<U32> zero_bits = hn::PromoteTo(u, RoundToFP16(exact));
  hn::StoreU(hn::Or(scale_bits, hn::ShiftLeft<16>(zero_bits)), u,
             reinterpret_cast<std::uint32_t*>(params));
  return {rounded, FloatFromFP16(zero_bits)};
}

// Codes of lanes without scale become 0.
HWY_INLINE void ClearDegenerate(const Block& block, VF scale) {
  const F32 d;
  if (hn::AllFalse(d, hn::Eq(scale, hn::Zero(d)))) return;
  HWY_ALIGN float scales[kLanes];
  hn::Store(scale, d, scales);
  for (int l = 0; l < kLanes; ++l) {
    if (scales[l] != 0) continue;
    for (int i = 0; i < block.count; ++i) block.codes[i * block.stride + l] = 0;
  }
}

struct Fitted {
  Affine affine;
  CodeSums sums;
};

HWY_INLINE Fitted FitMinMax(const Block& block, const Moments& m, float top, AffineFP16* params) {
  const VF n = SetAll(static_cast<float>(block.count));
  const VF mean = MeanOf(m, n);
  const VF exact = hn::Div(hn::Sub(m.high, m.low), SetAll(top));
  Affine affine = RoundParams(mean, exact, m.low, params);
  const CodeSums sums = AssignNearest(block, affine.scale, affine.zero, m.mean, BitsOf(top));
  const VF scale = hn::IfThenElseZero(hn::Gt(CodeVariance(sums, n), hn::Zero(F32())), affine.scale);
  affine = RoundParams(mean, scale, affine.zero, params);
  return {affine, sums};
}

HWY_INLINE Fitted FitVariance(const Block& block, const Moments& m, float top, AffineFP16* params) {
  constexpr int kRefits = 2;  // by least squares, before the variance is matched
  const VF none = hn::Zero(F32());
  const VF n = SetAll(static_cast<float>(block.count));
  const VF rest = hn::Div(m.sum, n);
  const VF half =
      hn::Mul(hn::Mul(hn::Sub(m.high, m.low), SetAll(0.5F)), SetAll(top == 3.0F ? 0.75F : 0.95F));
  VF scale =
      hn::IfThenElseZero(hn::Gt(m.variance, none), hn::Div(hn::Mul(SetAll(2), half), SetAll(top)));
  // From the mean, as first found.
  VF zero = hn::Sub(hn::Sub(hn::Mul(hn::Add(m.low, m.high), SetAll(0.5F)), m.mean), half);
  CodeSums sums = {none, none, none};
  for (int step = 0; step <= kRefits; ++step) {
    const bool last = step == kRefits;
    sums = last ? AssignCentered<true>(block, scale, zero, BitsOf(top))
                : AssignCentered<false>(block, scale, zero, BitsOf(top));
    const VF code_variance = CodeVariance(sums, n);
    const VF covariance = FusedNegMulAdd(rest, sums.code, sums.product);
    const auto fits = hn::And(hn::Gt(code_variance, none), hn::Gt(covariance, none));
    const VF divisor = hn::IfThenElse(fits, code_variance, SetAll(1));
    const VF refit = last ? hn::Sqrt(hn::Div(hn::Mul(n, m.variance), divisor))
                          : hn::Div(hn::Mul(n, covariance), divisor);
    scale = hn::IfThenElseZero(fits, refit);
    zero = hn::Sub(rest, hn::Mul(scale, hn::Div(sums.code, n)));
  }
  return {RoundParams(MeanOf(m, n), scale, hn::Add(m.mean, zero), params), sums};
}

// Adds the squares of x, and of x less what the codes decode to, from sums about the mean.
HWY_INLINE void AddSquares(const Moments& m, const Fitted& fitted, VF n, FitSums& sums) {
  const VF two = SetAll(2);
  const auto& [affine, codes] = fitted;
  const VF zero = hn::Sub(affine.zero, m.mean);
  // The sum of (scale * code + zero - y)^2.
  const VF code_part =
      hn::Mul(affine.scale, hn::Add(hn::Mul(affine.scale, codes.squared),
                                    hn::Mul(two, FusedMulSub(zero, codes.code, codes.product))));
  const VF zero_part = hn::Mul(zero, FusedNegMulAdd(two, m.sum, hn::Mul(n, zero)));
  const VF errors = hn::Max(hn::Add(hn::Add(m.squares, zero_part), code_part), hn::Zero(F32()));
  const VF about_zero = hn::Mul(m.mean, FusedMulAdd(two, m.sum, hn::Mul(n, m.mean)));
  HWY_ALIGN float lanes[2][kLanes];
  hn::Store(hn::Add(m.squares, about_zero), F32(), lanes[0]);
  hn::Store(errors, F32(), lanes[1]);
  for (int l = 0; l < kLanes; ++l) {
    sums.squares += lanes[0][l];
    sums.errors += lanes[1][l];
  }
}

FitSums FitGroupsOfTarget(const float* x, float factor, int count, int lanes, int bits, Fit fit,
                          AffineFP16* params, std::uint8_t* codes) {
  HWY_ALIGN float numbers[kMaxGroup * kLanes];
  FitSums sums;
  const auto top = static_cast<float>((1 << bits) - 1);
  for (int lane = 0; lane < lanes; lane += kLanes) {
    const Block block = {numbers, count, codes + lane, lanes};
    const bool min_max = fit == Fit::kMinMax;
    const Moments moments =
        min_max ? MomentsOf</*centered=*/false>(x + lane, lanes, factor, count, numbers)
                : MomentsOf</*centered=*/true>(x + lane, lanes, factor, count, numbers);
    const Fitted fitted = min_max ? FitMinMax(block, moments, top, params + lane)
                                  : FitVariance(block, moments, top, params + lane);
    ClearDegenerate(block, fitted.affine.scale);
    AddSquares(moments, fitted, SetAll(static_cast<float>(count)), sums);
  }
  return sums;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(FitGroupsOfTarget);

FitSums FitGroups(const float* x, float factor, int count, int lanes, int bits, Fit fit,
                  AffineFP16* params, std::uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(FitGroupsOfTarget)(x, factor, count, lanes, bits, fit, params, codes);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
