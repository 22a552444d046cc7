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

// `kLanes` groups of `count` values, rows `stride` apart.
struct Block {
  const float* x;
  int count;
  std::ptrdiff_t stride;
};

struct Moments {
  VF low;
  VF high;
  VF mean;
  VF variance;  // times count
};

// Sums over the codes that a scale and a zero give.
struct CodeSums {
  VF code;
  VF squared;
  VF covariance;  // of codes and values, times count
};

HWY_INLINE VF SetAll(float x) { return hn::Set(F32(), x); }

HWY_INLINE Moments MomentsOf(const Block& block) {
  const F32 d;
  VF low = hn::LoadU(d, block.x);
  VF high = low;
  VF sum = hn::Zero(d);
  for (int i = 0; i < block.count; ++i) {
    const VF x = hn::LoadU(d, block.x + i * block.stride);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
    sum = hn::Add(sum, x);
  }
  // Second pass: about the mean, and what rounding left of it.
  const VF n = SetAll(static_cast<float>(block.count));
  const VF mean = hn::Div(sum, n);
  VF rest = hn::Zero(d);
  VF squared = hn::Zero(d);
  for (int i = 0; i < block.count; ++i) {
    const VF from_mean = hn::Sub(hn::LoadU(d, block.x + i * block.stride), mean);
    rest = hn::Add(rest, from_mean);
    squared = hn::Add(squared, hn::Mul(from_mean, from_mean));
  }
  const VF variance = hn::Sub(squared, hn::Div(hn::Mul(rest, rest), n));
  const VF better = hn::Add(mean, hn::Div(rest, n));
  return {low, high, hn::Min(hn::Max(better, low), high), hn::Max(variance, hn::Zero(d))};
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

// Assigns codes and, if `store`, writes them, rows `stride` apart.
template <bool store>
HWY_INLINE CodeSums AssignCodes(const Block& block, VF scale, VF zero, VF mean, float top,
                                std::uint8_t* codes) {
  const F32 d;
  const VF reciprocal = ReciprocalOf(scale);
  const VF last = SetAll(top);
  const VF unit = SetAll(kToWhole);
  CodeSums sums = {hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int i = 0; i < block.count; ++i) {
    const VF x = hn::LoadU(d, block.x + i * block.stride);
    const VF exact = Quotient(hn::Sub(x, zero), scale, reciprocal);
    const VF shifted = hn::Add(hn::Min(hn::Max(exact, hn::Zero(d)), last), unit);
    const VF code = hn::Sub(shifted, unit);
    sums.code = hn::Add(sums.code, code);
    sums.squared = hn::Add(sums.squared, hn::Mul(code, code));
    sums.covariance = hn::Add(sums.covariance, hn::Mul(code, hn::Sub(x, mean)));
    if constexpr (store) {
      StoreLastBytes(hn::BitCast(U32(), shifted),
                     reinterpret_cast<std::int8_t*>(codes + i * block.stride));
    }
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

// Rounds scale and zero to fp16; a scale that vanishes is degenerate.
HWY_INLINE Affine RoundParams(VF mean, VF scale, VF zero, AffineFP16* params) {
  const F32 d;
  HWY_ALIGN float means[kLanes];
  HWY_ALIGN float scales[kLanes];
  HWY_ALIGN float zeros[kLanes];
  hn::Store(mean, d, means);
  hn::Store(scale, d, scales);
  hn::Store(zero, d, zeros);
  for (int l = 0; l < kLanes; ++l) {
    params[l].scale = ToFP16Saturated(scales[l]);
    scales[l] = FromFP16(params[l].scale);
    params[l].zero = ToFP16Saturated(scales[l] > 0 ? zeros[l] : means[l]);
    zeros[l] = FromFP16(params[l].zero);
  }
  return {hn::Load(d, scales), hn::Load(d, zeros)};
}

// Codes of lanes without scale become 0.
HWY_INLINE void ClearDegenerate(const Block& block, VF scale, std::uint8_t* codes) {
  const F32 d;
  if (hn::AllFalse(d, hn::Eq(scale, hn::Zero(d)))) return;
  HWY_ALIGN float scales[kLanes];
  hn::Store(scale, d, scales);
  for (int l = 0; l < kLanes; ++l) {
    if (scales[l] != 0) continue;
    for (int i = 0; i < block.count; ++i) codes[i * block.stride + l] = 0;
  }
}

HWY_INLINE Affine FitMinMax(const Block& block, const Moments& m, float top, AffineFP16* params,
                            std::uint8_t* codes) {
  const VF exact = hn::Div(hn::Sub(m.high, m.low), SetAll(top));
  Affine affine = RoundParams(m.mean, exact, m.low, params);
  const CodeSums sums =
      AssignCodes</*store=*/true>(block, affine.scale, affine.zero, m.mean, top, codes);
  const VF variance = CodeVariance(sums, SetAll(static_cast<float>(block.count)));
  const VF scale = hn::IfThenElseZero(hn::Gt(variance, hn::Zero(F32())), affine.scale);
  affine = RoundParams(m.mean, scale, affine.zero, params);
  ClearDegenerate(block, affine.scale, codes);
  return affine;
}

HWY_INLINE Affine FitVariance(const Block& block, const Moments& m, float top, AffineFP16* params,
                              std::uint8_t* codes) {
  constexpr int kRefits = 2;  // by least squares, before the variance is matched
  const VF none = hn::Zero(F32());
  const VF n = SetAll(static_cast<float>(block.count));
  const VF half =
      hn::Mul(hn::Mul(hn::Sub(m.high, m.low), SetAll(0.5F)), SetAll(top == 3.0F ? 0.75F : 0.95F));
  VF scale =
      hn::IfThenElseZero(hn::Gt(m.variance, none), hn::Div(hn::Mul(SetAll(2), half), SetAll(top)));
  VF zero = hn::Sub(hn::Mul(hn::Add(m.low, m.high), SetAll(0.5F)), half);
  for (int step = 0; step <= kRefits; ++step) {
    const bool last = step == kRefits;
    const CodeSums sums = last ? AssignCodes<true>(block, scale, zero, m.mean, top, codes)
                               : AssignCodes<false>(block, scale, zero, m.mean, top, nullptr);
    const VF code_variance = CodeVariance(sums, n);
    const auto fits = hn::And(hn::Gt(code_variance, none), hn::Gt(sums.covariance, none));
    const VF divisor = hn::IfThenElse(fits, code_variance, SetAll(1));
    const VF refit = last ? hn::Sqrt(hn::Div(hn::Mul(n, m.variance), divisor))
                          : hn::Div(hn::Mul(n, sums.covariance), divisor);
    scale = hn::IfThenElseZero(fits, refit);
    zero = hn::Sub(m.mean, hn::Mul(scale, hn::Div(sums.code, n)));
  }
  const Affine affine = RoundParams(m.mean, scale, zero, params);
  ClearDegenerate(block, affine.scale, codes);
  return affine;
}

// Decodes what `store` asks for, and adds to `sums`.
template <bool store>
HWY_INLINE void Decode(const Block& block, const Affine& affine, const std::uint8_t* codes,
                       float* decoded, FitSums& sums) {
  const F32 d;
  const hn::Rebind<std::uint8_t, F32> bytes;
  VF squares = hn::Zero(d);
  VF errors = hn::Zero(d);
  for (int i = 0; i < block.count; ++i) {
    const VF x = hn::LoadU(d, block.x + i * block.stride);
    const auto whole = hn::PromoteTo(I32(), hn::LoadU(bytes, codes + i * block.stride));
    const VF near = hn::Add(hn::Mul(affine.scale, hn::ConvertTo(d, whole)), affine.zero);
    if constexpr (store) hn::StoreU(near, d, decoded + i * block.stride);
    const VF error = hn::Sub(x, near);
    squares = FusedMulAdd(x, x, squares);
    errors = FusedMulAdd(error, error, errors);
  }
  HWY_ALIGN float lanes[2][kLanes];
  hn::Store(squares, d, lanes[0]);
  hn::Store(errors, d, lanes[1]);
  for (int l = 0; l < kLanes; ++l) {
    sums.squares += lanes[0][l];
    sums.errors += lanes[1][l];
  }
}

FitSums FitGroupsOfTarget(const float* x, int count, int lanes, int bits, Fit fit,
                          AffineFP16* params, std::uint8_t* codes, float* decoded) {
  FitSums sums;
  const auto top = static_cast<float>((1 << bits) - 1);
  for (int lane = 0; lane < lanes; lane += kLanes) {
    const Block block = {x + lane, count, lanes};
    const Moments moments = MomentsOf(block);
    const Affine affine = fit == Fit::kMinMax
                              ? FitMinMax(block, moments, top, params + lane, codes + lane)
                              : FitVariance(block, moments, top, params + lane, codes + lane);
    if (decoded == nullptr) {
      Decode</*store=*/false>(block, affine, codes + lane, nullptr, sums);
    } else {
      Decode</*store=*/true>(block, affine, codes + lane, decoded + lane, sums);
    }
  }
  return sums;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(FitGroupsOfTarget);

FitSums FitGroups(const float* x, int count, int lanes, int bits, Fit fit, AffineFP16* params,
                  std::uint8_t* codes, float* decoded) {
  return HWY_DYNAMIC_DISPATCH(FitGroupsOfTarget)(x, count, lanes, bits, fit, params, codes,
                                                 decoded);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
