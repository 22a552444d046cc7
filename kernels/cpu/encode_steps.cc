#include "kernels/cpu/encode_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/codec/scaled.h"
#include "kernels/codec/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode_steps.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rotate-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Asks for a row that is needed soon: rows of a head are few between those of others, so that the
// processor does not see what comes.
HWY_INLINE void FetchRow(const TokenRows& rows, int token) {
  constexpr int kLine = 64 / sizeof(std::uint16_t);
  const std::uint16_t* const row = rows.Row(token);
  for (int c = 0; c < rows.dim; c += kLine) Fetch(reinterpret_cast<const std::byte*>(row + c));
}

// Asks for what a loop over rows needs some rows after `token`.
HWY_INLINE void FetchAhead(const TokenRows& rows, int token, int tokens) {
  constexpr int kAhead = 16;
  if (token + kAhead < tokens) FetchRow(rows, token + kAhead);
}

template <DType storage>
HWY_INLINE void WidenAs(const std::uint16_t* from, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(LoadFloats<storage>(from + i), F32(), out + i);
  }
}

void WidenOfTarget(DType storage, const void* from, std::size_t count, float* out) {
  const auto* const bits = static_cast<const std::uint16_t*>(from);
  storage == DType::kBF16 ? WidenAs<DType::kBF16>(bits, count, out)
                          : WidenAs<DType::kFP16>(bits, count, out);
}

void WidenRowsOfTarget(const TokenRows& rows, int tokens, float* out) {
  for (int t = 0; t < tokens; ++t, out += rows.dim) {
    FetchAhead(rows, t, tokens);
    WidenOfTarget(rows.storage, rows.Row(t), static_cast<std::size_t>(rows.dim), out);
  }
}

// kSums sums of every kSums-th number's square, in double.
struct DoubleSums {
  static constexpr int kSums = 8;
  using D = hn::CappedTag<double, kSums>;
  static constexpr int kWide = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kVectors = kSums / kWide;
  hn::Vec<D> part[kVectors];

  HWY_INLINE DoubleSums() {
    for (auto& v : part) v = hn::Zero(D());
  }
  template <class V>
  HWY_INLINE void AddSquare(int i, V x) {
    const auto wide = hn::PromoteTo(D(), x);
    part[i] = hn::Add(part[i], hn::Mul(wide, wide));
  }
  HWY_INLINE double Fold() const {
    HWY_ALIGN double lanes[kSums];
    for (int i = 0; i < kVectors; ++i) hn::Store(part[i], D(), lanes + i * kWide);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
};

template <DType storage>
HWY_INLINE void SumSquaresAs(const TokenRows& rows, int tokens, double* sums) {
  for (int t = 0; t < tokens; ++t) {
    FetchAhead(rows, t, tokens);
    const std::uint16_t* const row = rows.Row(t);
    DoubleSums sum;
    for (int c = 0; c < rows.dim; c += kLanes) {
      const VF x = LoadFloats<storage>(row + c);
#if HWY_TARGET == HWY_SCALAR
      sum.AddSquare(c % DoubleSums::kVectors, x);
#else
      const hn::Half<F32> half;
      const int i = 2 * c / kLanes;
      sum.AddSquare(i % DoubleSums::kVectors, hn::LowerHalf(half, x));
      sum.AddSquare((i + 1) % DoubleSums::kVectors, hn::UpperHalf(half, x));
#endif
    }
    sums[t] = sum.Fold();
  }
}

void SumSquaresOfTarget(const TokenRows& rows, int tokens, double* sums) {
  rows.storage == DType::kBF16 ? SumSquaresAs<DType::kBF16>(rows, tokens, sums)
                               : SumSquaresAs<DType::kFP16>(rows, tokens, sums);
}

// The largest magnitude of 16-bit numbers, whose magnitudes order like their bits.
std::uint16_t LargestOfTarget(const TokenRows& rows, int tokens) {
  const hn::CappedTag<std::uint16_t, 2 * kGroup> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto magnitude = hn::Set(d, 0x7fff);
  auto largest = hn::Zero(d);
  for (int t = 0; t < tokens; ++t) {
    FetchAhead(rows, t, tokens);
    const std::uint16_t* const row = rows.Row(t);
    for (int c = 0; c + lanes <= rows.dim; c += lanes) {
      largest = hn::Max(largest, hn::And(hn::LoadU(d, row + c), magnitude));
    }
    // Channels that are left may be counted again.
    if (rows.dim % lanes != 0) {
      largest = hn::Max(largest, hn::And(hn::LoadU(d, row + rows.dim - lanes), magnitude));
    }
  }
  HWY_ALIGN std::uint16_t all[2 * kGroup];
  hn::Store(largest, d, all);
  return *std::max_element(all, all + lanes);
}

// What a row is multiplied by: first * second, of which the first is a power of two, so that what
// can overflow or vanish does not.
struct Factors {
  float first;
  float second;
};

// 1 / norm, for any norm.
HWY_INLINE Factors Reciprocal(std::uint16_t bf16) {
  const float norm = std::bit_cast<float>(std::uint32_t{bf16} << 16);
  // 2^-e of the norm's exponent e, that of denormal ones for those.
  const int biased = std::max(bf16 >> 7, 1);
  const float first = PowerOfTwo(static_cast<std::int8_t>(127 - biased));
  return {first, 1 / (norm * first)};
}

template <DType storage>
HWY_INLINE void MultiplyRow(const std::uint16_t* row, int dim, Factors factors, float* out) {
  const VF first = hn::Set(F32(), factors.first);
  const VF second = hn::Set(F32(), factors.second);
  for (int c = 0; c < dim; c += kLanes) {
    const VF x = hn::Mul(LoadFloats<storage>(row + c), first);
    hn::StoreU(hn::Mul(x, second), F32(), out + c);
  }
}

// Writes the rows of a page over their norms or, without norms, times `factor`; rotated; returns
// the largest magnitude.
template <DType storage>
HWY_INLINE float FillAs(const TokenRows& rows, const std::uint16_t* norms, float factor,
                        bool rotated, const TokenRows* next, float* x) {
  const F32 d;
  VF largest = hn::Zero(d);
  const std::size_t group = static_cast<std::size_t>(kGroup) * rows.dim;
  for (int t = 0; t < kPageTokens; t += kGroup, x += group) {
    for (int i = 0; i < kGroup; ++i) {
      FetchAhead(rows, t + i, kPageTokens);
      if (next != nullptr) FetchRow(*next, t + i);
      MultiplyRow<storage>(rows.Row(t + i), rows.dim,
                           norms == nullptr ? Factors{factor, 1} : Reciprocal(norms[t + i]),
                           x + static_cast<std::ptrdiff_t>(i) * rows.dim);
    }
    if (rotated) RotateRowsOf(x, kGroup, rows.dim, /*back=*/false);
    for (std::size_t i = 0; i < group; i += kLanes) {
      largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
    }
  }
  return LargestLane(largest);
}

float FillOfTarget(const TokenRows& rows, const std::uint16_t* norms, float factor, bool rotated,
                   const TokenRows* next, float* x) {
  return rows.storage == DType::kBF16 ? FillAs<DType::kBF16>(rows, norms, factor, rotated, next, x)
                                      : FillAs<DType::kFP16>(rows, norms, factor, rotated, next, x);
}

void TransposeRowsOfTarget(const float* x, int tokens, int dim, float* out) {
  Transpose({x, dim}, tokens, dim, {out, tokens});
}

void PackCodesOfTarget(const std::uint8_t* codes, int rows, int columns, int bits, std::byte* out) {
#if HWY_TARGET == HWY_SCALAR
  oscarkv::PackCodes(codes, rows, columns, bits, out);
#else
  constexpr int kRows = 4;  // at once: their words are next to each other
  const hn::FixedTag<std::uint32_t, kRows> d;
  const auto load = [&](int row, int column) HWY_ATTR {
    const std::uint8_t* const from = codes + static_cast<std::ptrdiff_t>(row) * columns + column;
    return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, decltype(d)>(), from));
  };
  for (int row = 0; row < rows; row += kRows) {
    for (int column = 0; column < columns; column += kTileSide) {
      auto a = load(row, column);
      auto b = load(row + 1, column);
      auto c = load(row + 2, column);
      auto e = load(row + 3, column);
      TransposeVectors(d, a, b, c, e);
      std::byte* to = out + PositionInPlane(row, column, columns).offset;
      for (int plane = 0; plane < bits / 2; ++plane) {
        const auto low = [&](auto four) HWY_ATTR {
          return hn::And(hn::ShiftRightSame(four, 2 * plane), hn::Set(d, 0x03030303));
        };
        const auto words = hn::Or(hn::Or(low(a), hn::ShiftLeft<2>(low(b))),
                                  hn::Or(hn::ShiftLeft<4>(low(c)), hn::ShiftLeft<6>(low(e))));
        hn::StoreU(words, d, reinterpret_cast<std::uint32_t*>(to));
        to += PlaneBytes(rows, columns);
      }
    }
  }
#endif
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(WidenOfTarget);
HWY_EXPORT(WidenRowsOfTarget);
HWY_EXPORT(SumSquaresOfTarget);
HWY_EXPORT(LargestOfTarget);
HWY_EXPORT(FillOfTarget);
HWY_EXPORT(TransposeRowsOfTarget);
HWY_EXPORT(PackCodesOfTarget);

void Widen(DType storage, const void* from, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenOfTarget)(storage, from, count, out);
}

void WidenRows(const TokenRows& rows, int tokens, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenRowsOfTarget)(rows, tokens, out);
}

void SumSquares(const TokenRows& rows, int tokens, double* sums) {
  HWY_DYNAMIC_DISPATCH(SumSquaresOfTarget)(rows, tokens, sums);
}

Scaled ScaleRows(const TokenRows& rows, const std::uint16_t* norms, bool rotated,
                 const TokenRows* next) {
  // Where no norms do it, scaled before, too, so that no sums of these numbers overflow: by a power
  // of two, which changes no rounding.
  int before = 0;
  if (norms == nullptr) {
    const std::uint16_t largest = HWY_DYNAMIC_DISPATCH(LargestOfTarget)(rows, kPageTokens);
    before = ScaleExponent(FromBits16(rows.storage, largest));
  }
  Scaled scaled;
  scaled.x = Scratch<float>(static_cast<std::size_t>(kPageTokens) * rows.dim);
  const float largest = HWY_DYNAMIC_DISPATCH(FillOfTarget)(rows, norms, std::ldexp(1.0F, -before),
                                                           rotated, next, scaled.x.data());
  const int after = std::clamp(ScaleExponent(largest), -126 - before, 127 - before);
  scaled.factor = std::ldexp(1.0F, -after);
  scaled.exponent = before + after;
  return scaled;
}

void TransposeRows(const float* x, int tokens, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(TransposeRowsOfTarget)(x, tokens, dim, out);
}

void PackCodes(const std::uint8_t* codes, int rows, int columns, int bits, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(PackCodesOfTarget)(codes, rows, columns, bits, out);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
