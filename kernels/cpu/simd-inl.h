// Vectors of fp32 for code that is compiled once per instruction set (Highway's foreach_target).
//
// Every function gives the same bits on every instruction set: no product and sum are fused, and
// sums run over kGroup lanes, however wide a vector is, and are folded in one order.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_SIMD_INL_H_
#undef OSCARKV_KERNELS_CPU_SIMD_INL_H_
#else
#define OSCARKV_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/api/dtype.h"

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

// kGroup sums, folded at the end.
struct GroupSum {
  VF part[kParts];

  HWY_INLINE GroupSum() {
    for (VF& v : part) v = hn::Zero(F32());
  }
  HWY_INLINE void Add(int i, VF x) { part[i] = hn::Add(part[i], x); }
  HWY_INLINE void Add(const GroupSum& other) {
    for (int i = 0; i < kParts; ++i) Add(i, other.part[i]);
  }

  // The sum of all lanes: of lanes i and i + 8 first, of these i and i + 4, then 2, then 1.
  HWY_INLINE float Fold() const {
    const hn::CappedTag<float, 4> d;
    constexpr int kStep = static_cast<int>(hn::MaxLanes(d));
    HWY_ALIGN float lane[kGroup];
    for (int i = 0; i < kParts; ++i) hn::Store(part[i], F32(), lane + i * kLanes);
    for (int half = 8; half >= 4; half /= 2) {
      for (int i = 0; i < half; i += kStep) {
        hn::Store(hn::Add(hn::Load(d, lane + i), hn::Load(d, lane + i + half)), d, lane + i);
      }
    }
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
};

// `kLanes` numbers in 16 bits as fp32; `from` needs no alignment.
HWY_INLINE VF LoadBF16(const std::uint16_t* from) {
  const hn::Vec<U32> wide = hn::PromoteTo(U32(), hn::LoadU(U16(), from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}
HWY_INLINE VF LoadFP16(const std::uint16_t* from) {
  return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(from)));
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

// exp(x) for x <= 0 to about 2 units in the last place; 0 below -87.
HWY_INLINE VF ExpNonPositive(VF x) {
  const F32 d;
  const auto constant = [](float c) HWY_ATTR { return hn::Set(F32(), c); };
  const VF least = constant(-87.0F);
  const VF clamped = hn::Max(x, least);
  // The last bits of a sum with 1.5 * 2^23 are a whole number.
  const VF unit = constant(12582912.0F);
  const VF shifted = hn::Add(hn::Mul(clamped, constant(1.44269504F)), unit);
  const VF n = hn::Sub(shifted, unit);
  // ln 2 in two parts; the first has few bits, so that a whole multiple of it is exact.
  VF r = hn::Sub(clamped, hn::Mul(n, constant(0.693359375F)));
  r = hn::Sub(r, hn::Mul(n, constant(-2.12194440e-4F)));
  // The Taylor series to r^6; |r| <= ln(2) / 2.
  VF p = constant(1.0F / 720);
  for (const float c : {1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    p = hn::Add(hn::Mul(p, r), constant(c));
  }
  const U32 u;
  const auto whole = hn::Sub(hn::BitCast(u, shifted), hn::BitCast(u, unit));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(whole, hn::Set(u, 127)));
  return hn::IfThenElseZero(hn::Ge(x, least), hn::Mul(p, hn::BitCast(d, exponent)));
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
