// Vectors of fp32 for code that is compiled once per instruction set (Highway's foreach_target).
//
// Every function gives the same bits on every instruction set: products and sums are fused where
// that is written (FusedMulAdd) and nowhere else, and sums run over kGroup lanes, however wide a
// vector is, and are folded in one order.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_SIMD_INL_H_
#undef OSCARKV_KERNELS_CPU_SIMD_INL_H_
#else
#define OSCARKV_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes of a group: everything comes in multiples of it. A vector has kLanes <= kGroup of them.
inline constexpr int kGroup = 16;
using F32 = hn::CappedTag<float, kGroup>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;
using VF = hn::Vec<F32>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
inline constexpr int kParts = kGroup / kLanes;  // vectors of a group

// 1.5 * 2^23. Adding it rounds what is below 2^22 in magnitude to a whole number, nearest even,
// which the sum's last bits are; its first are those of kToWholeBits.
inline constexpr float kToWhole = 12582912.0F;
inline constexpr std::uint32_t kToWholeBits = 0x4B400000;

// a * b + c, rounded once.
HWY_INLINE VF FusedMulAdd(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR
  return VF(std::fma(a.raw, b.raw, c.raw));
#else
  return hn::MulAdd(a, b, c);
#endif
}
// a * b - c, rounded once.
HWY_INLINE VF FusedMulSub(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR
  return VF(std::fma(a.raw, b.raw, -c.raw));
#else
  return hn::MulSub(a, b, c);
#endif
}
// c - a * b, rounded once.
HWY_INLINE VF FusedNegMulAdd(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR
  return VF(std::fma(-a.raw, b.raw, c.raw));
#else
  return hn::NegMulAdd(a, b, c);
#endif
}

// kGroup sums, folded at the end.
struct GroupSum {
  VF part[kParts];

  HWY_INLINE GroupSum() {
    for (VF& v : part) v = hn::Zero(F32());
  }
  HWY_INLINE void Add(int i, VF x) { part[i] = hn::Add(part[i], x); }
  HWY_INLINE void AddProduct(int i, VF a, VF b) { part[i] = FusedMulAdd(a, b, part[i]); }
  HWY_INLINE void Add(const GroupSum& other) {
    for (int i = 0; i < kParts; ++i) Add(i, other.part[i]);
  }

  // The sum of all lanes: those of lanes i and i + 8 first, then of i and i + 4, then 2, then 1.
  HWY_INLINE float Fold() const {
    HWY_ALIGN float lane[kQuarter];
    StoreQuarter(lane);
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }

  static constexpr int kQuarter = kGroup / 4;

#if HWY_TARGET == HWY_SCALAR
  // Four sums, of lanes i, i + 4, i + 8 and i + 12.
  HWY_INLINE void StoreQuarter(float* out) const {
    for (int i = 0; i < kQuarter; ++i) {
      out[i] = (part[i].raw + part[i + 8].raw) + (part[i + 4].raw + part[i + 12].raw);
    }
  }
#else
  using Quarters = hn::FixedTag<float, kQuarter>;
  HWY_INLINE void StoreQuarter(float* out) const { hn::Store(Quarter(), Quarters(), out); }
  HWY_INLINE hn::Vec<Quarters> Quarter() const { return QuarterOf(part); }

 private:
  // By the number of parts.
  template <class V>
  static HWY_INLINE hn::Vec<Quarters> QuarterOf(const V (&v)[1]) {
    using D = hn::DFromV<V>;
    const hn::Half<D> half;
    return QuarterOf({hn::LowerHalf(half, v[0]), hn::UpperHalf(half, v[0])});
  }
  template <class V>
  static HWY_INLINE hn::Vec<Quarters> QuarterOf(const V (&v)[2]) {
    const V sum = hn::Add(v[0], v[1]);
    return hn::Add(hn::LowerHalf(Quarters(), sum), hn::UpperHalf(Quarters(), sum));
  }
  template <class V>
  static HWY_INLINE hn::Vec<Quarters> QuarterOf(const V (&v)[4]) {
    return hn::Add(hn::Add(v[0], v[2]), hn::Add(v[1], v[3]));
  }
#endif
};

// out[0 .. 4) = the four sums, folded as Fold does.
HWY_INLINE void FoldFour(const GroupSum& a, const GroupSum& b, const GroupSum& c, const GroupSum& d,
                         float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = a.Fold();
  out[1] = b.Fold();
  out[2] = c.Fold();
  out[3] = d.Fold();
#else
  const GroupSum::Quarters tag;
  // Lanes 0 + 2 of both, then lanes 1 + 3 of both.
  const auto pair = [](const GroupSum& x, const GroupSum& y) HWY_ATTR {
    const auto qx = x.Quarter();
    const auto qy = y.Quarter();
    return hn::Add(hn::InterleaveLower(GroupSum::Quarters(), qx, qy),
                   hn::InterleaveUpper(GroupSum::Quarters(), qx, qy));
  };
  const auto ab = pair(a, b);
  const auto cd = pair(c, d);
  hn::StoreU(hn::Add(hn::ConcatLowerLower(tag, cd, ab), hn::ConcatUpperUpper(tag, cd, ab)), tag,
             out);
#endif
}

HWY_INLINE float LargestLane(VF x) { return hn::GetLane(hn::MaxOfLanes(F32(), x)); }

// Rows of floats in memory, `stride` apart.
struct Rows {
  float* first;
  std::ptrdiff_t stride;
  HWY_INLINE float* operator[](int row) const { return first + row * stride; }
  HWY_INLINE Rows From(int row) const { return {first + row * stride, stride}; }
};

// `kLanes` numbers in 16 bits as fp32; `from` needs no alignment.
HWY_INLINE VF LoadBF16(const std::uint16_t* from) {
  const hn::Vec<U32> wide = hn::PromoteTo(U32(), hn::LoadU(U16(), from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}
HWY_INLINE VF LoadFP16(const std::uint16_t* from) {
  return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(from)));
}
// fp16 in the low halves of lanes whose high halves are zero.
HWY_INLINE VF FloatFromFP16(hn::Vec<U32> bits) {
  const U32 u;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u, 0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(u, 0x7FFF)));
  // Brings the exponent's bias from fp32's to fp16's, and makes normal numbers of denormal ones.
  const VF value = hn::Mul(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0x1p112F));
  return hn::Or(value, hn::BitCast(F32(), sign));
}

// kLanes pairs of fp16 as fp32; `from` needs no alignment.
HWY_INLINE void LoadFP16Pairs(const void* from, VF& first, VF& second) {
  const U32 u;
  const auto both = hn::LoadU(u, static_cast<const std::uint32_t*>(from));
  first = FloatFromFP16(hn::And(both, hn::Set(u, 0xFFFF)));
  second = FloatFromFP16(hn::ShiftRight<16>(both));
}

// Splits params[count] into scales and zeros, which are aligned. REQUIRES: count is a multiple of
// 16.
HWY_INLINE void SplitParams(const AffineFP16* params, int count, float* scales, float* zeros) {
  for (int i = 0; i < count; i += kLanes) {
    VF scale;
    VF zero;
    LoadFP16Pairs(params + i, scale, zero);
    hn::Store(scale, F32(), scales + i);
    hn::Store(zero, F32(), zeros + i);
  }
}

template <DType dtype>
HWY_INLINE VF LoadFloats(const void* from) {
  if constexpr (dtype == DType::kBF16) {
    return LoadBF16(static_cast<const std::uint16_t*>(from));
  } else if constexpr (dtype == DType::kFP16) {
    return LoadFP16(static_cast<const std::uint16_t*>(from));
  } else {
    return hn::LoadU(F32(), static_cast<const float*>(from));
  }
}

// out[0 .. kLanes) = the last byte of each lane.
HWY_INLINE void StoreLastBytes(hn::Vec<U32> x, std::int8_t* out) {
#if HWY_TARGET == HWY_AVX3
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(x.raw));
#else
  using U8 = hn::Rebind<std::uint8_t, F32>;
  hn::StoreU(hn::TruncateTo(U8(), x), U8(), reinterpret_cast<std::uint8_t*>(out));
#endif
}

// Asks for the cache line at `from`.
HWY_INLINE void Fetch(const std::byte* from) { __builtin_prefetch(from, 0, 3); }

// exp(x) for x <= 0 to about 3 units in the last place; 0 below -87.
HWY_INLINE VF ExpNonPositive(VF x) {
  const F32 d;
  const auto constant = [](float c) HWY_ATTR { return hn::Set(F32(), c); };
  const VF least = constant(-87.0F);
  const VF clamped = hn::Max(x, least);
  // exp(x) = 2^n 2^r for the whole number n next to x / ln 2.
  const VF unit = constant(kToWhole);
  const VF log2_e = constant(1.44269504F);
  const VF shifted = FusedMulAdd(clamped, log2_e, unit);
  const VF r = FusedMulSub(clamped, log2_e, hn::Sub(shifted, unit));
  // Of the polynomials 1 + r ln 2 + ... of degree 5, the one with the least relative
  // error, 1.05e-7, over |r| <= 1/2.
  VF p = constant(0.00133002497F);
  for (const float c : {0.00966972849F, 0.0555055991F, 0.240222813F, 0.693147181F, 1.0F}) {
    p = FusedMulAdd(p, r, constant(c));
  }
  const U32 u;
  // p is near 1: adding n to its exponent multiplies by 2^n.
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(u, shifted));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(u, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, least), power);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
