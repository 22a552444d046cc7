// Decodes a tile of tokens of a page, for code that is compiled once per instruction set.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_DECODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_DECODE_TILE_INL_H_
#undef OSCARKV_KERNELS_CPU_DECODE_TILE_INL_H_
#else
#define OSCARKV_KERNELS_CPU_DECODE_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/page_view.h"
#include "kernels/codec/tile.h"
#include "kernels/cpu/rotate-inl.h"
#include "kernels/cpu/simd-inl.h"

// Loops over arrays of vectors are unrolled, so that they stay in registers.
#ifndef OSCARKV_UNROLL
#define OSCARKV_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

static_assert(kGroup == kTileSide);
constexpr int kWordBytes = kTileBytes / kTileSide;

// Numbers of the 16 tokens of a tile: [dim][kGroup].
struct TileColumns {
  HWY_ALIGN float x[kMaxHeadDim * kGroup];

  HWY_INLINE float* at(int channel, int part) { return x + channel * kGroup + part * kLanes; }
};

// A head's matrix of codes, [rows][columns].
struct PackedCodes {
  const std::byte* first;
  int columns;
  std::ptrdiff_t plane;  // to the high plane of 4-bit codes

  // The word of a row in the tile that begins with `column`.
  HWY_INLINE const std::byte* Word(int row, int column) const {
    return first + PositionInPlane(row, column, columns).offset;
  }
};

HWY_INLINE PackedCodes CodesOf(const std::byte* first, int rows, int columns) {
  return {first, columns, PlaneBytes(rows, columns)};
}

// The shift of a tile's column in its word.
constexpr int ShiftOf(int column) {
  const TilePosition at = PositionInPlane(0, column, kTileSide);
  return static_cast<int>(8 * at.offset) + at.shift;
}

// `high`: of 4-bit codes.
template <int bits>
HWY_INLINE VF ToNumbers(hn::Vec<U32> low, hn::Vec<U32> high, VF scale, VF zero) {
  const auto mask = hn::Set(U32(), 3);
  auto code = hn::And(low, mask);
  if constexpr (bits == 4) code = hn::Or(code, hn::ShiftLeft<2>(hn::And(high, mask)));
  // The product is exact in fp32, so that it does not matter whether it is rounded.
  return FusedMulAdd(scale, hn::ConvertTo(F32(), hn::BitCast(I32(), code)), zero);
}

// x[radix] times the Sylvester matrix of that order, from the butterflies with the stride `step`
// on.
template <int step = 1, int radix>
HWY_INLINE void Butterfly(VF (&x)[radix]) {
  if constexpr (step < radix) {
    OSCARKV_UNROLL
    for (int pair = 0; pair < radix / 2; ++pair) {
      const int i = pair / step * 2 * step + pair % step;
      const VF sum = hn::Add(x[i], x[i + step]);
      x[i + step] = hn::Sub(x[i], x[i + step]);
      x[i] = sum;
    }
    Butterfly<2 * step>(x);
  }
}

// Lanes are tokens, the rows of a tile, as its words lie. Each `radix` channels are rotated.
template <int bits, int radix>
void DecodeKeyCodes(const PackedCodes& codes, const AffineFP16* params, int token,
                    TileColumns& out) {
  const U32 u;
  HWY_ALIGN float scales[kMaxHeadDim];
  HWY_ALIGN float zeros[kMaxHeadDim];
  SplitParams(params, codes.columns, scales, zeros);
  for (int channel = 0; channel < codes.columns; channel += kTileSide) {
    const std::byte* tile = codes.Word(token, channel);
    for (int part = 0; part < kParts; ++part) {
      const auto load = [&](const std::byte* from) HWY_ATTR {
        return hn::LoadU(u, reinterpret_cast<const std::uint32_t*>(from) + part * kLanes);
      };
      const auto low = load(tile);
      const auto high = bits == 4 ? load(tile + codes.plane) : low;
      for (int first = 0; first < kTileSide; first += radix) {
        VF x[radix];
        OSCARKV_UNROLL
        for (int i = 0; i < radix; ++i) {
          const int c = first + i;
          x[i] = ToNumbers<bits>(
              hn::ShiftRightSame(low, ShiftOf(c)), hn::ShiftRightSame(high, ShiftOf(c)),
              hn::Set(F32(), scales[channel + c]), hn::Set(F32(), zeros[channel + c]));
        }
        Butterfly(x);
        OSCARKV_UNROLL
        for (int i = 0; i < radix; ++i) hn::Store(x[i], F32(), out.at(channel + first + i, part));
      }
    }
  }
}

// Of channels [first, last), a group. Lanes are tokens, the columns of a tile: each has its own
// shift of the word of a channel. params: from the tile's first token on. Each `radix` channels are
// rotated.
template <int bits, int radix>
void DecodeValueCodes(const PackedCodes& codes, const AffineFP16* params, int first, int last,
                      int token, TileColumns& out) {
  const U32 u;
  HWY_ALIGN std::uint32_t shifts[kGroup];
  HWY_ALIGN float scales[kGroup];
  HWY_ALIGN float zeros[kGroup];
  SplitParams(params, kGroup, scales, zeros);
  Fetch(reinterpret_cast<const std::byte*>(params + kGroup));
  for (int t = 0; t < kGroup; ++t) shifts[t] = ShiftOf(t);
  for (int part = 0; part < kParts; ++part) {
    const auto shift = hn::Load(u, shifts + part * kLanes);
    const VF scale = hn::Load(F32(), scales + part * kLanes);
    const VF zero = hn::Load(F32(), zeros + part * kLanes);
    const auto words_of = [&](const std::byte* from) HWY_ATTR {
      std::uint32_t word = 0;
      std::memcpy(&word, from, sizeof(word));
      return hn::Shr(hn::Set(u, word), shift);
    };
    for (int channel = first; channel < last; channel += kTileSide) {
      const std::byte* const tile = codes.Word(channel, token);
      // Tiles of one token tile lie far apart.
      Fetch(tile + kTileBytes);
      if constexpr (bits == 4) Fetch(tile + codes.plane + kTileBytes);
      for (int begin = 0; begin < kTileSide; begin += radix) {
        VF x[radix];
        OSCARKV_UNROLL
        for (int i = 0; i < radix; ++i) {
          const std::byte* const word = tile + (begin + i) * kWordBytes;
          const auto low = words_of(word);
          x[i] = ToNumbers<bits>(low, bits == 4 ? words_of(word + codes.plane) : low, scale, zero);
        }
        Butterfly(x);
        OSCARKV_UNROLL
        for (int i = 0; i < radix; ++i) hn::Store(x[i], F32(), out.at(channel + begin + i, part));
      }
    }
  }
}

// Undoes the rotation of a tile in steps, so that few of them go through memory: Butterfly on each
// `first` channels as they are decoded, then Between, and a last step where they are finished. The
// sums are those of RotateGroup.
class BackRotation {
 public:
  // As many vectors as registers hold, at the first step and, twice, at the last.
  static constexpr int kFirst = kLanes == kGroup ? 16 : 8;
  static constexpr int kLast = kFirst / 2;

  BackRotation(int dim, bool rotated) : base_(HadamardBaseOf(dim)), dim_(dim) {
    if (!rotated) return;
    run_ = dim / base_.order;
    if (base_.order == 1) last_ = kLast;
    first_ = std::min(kFirst, run_ / last_);
    factor_ = 1.0F / std::sqrt(static_cast<float>(dim));
  }

  int first() const { return first_; }
  // Of a Sylvester matrix, on each channels dim / last() apart, then times last_factor(): kLast, or
  // 1 for nothing.
  int last() const { return last_; }
  float last_factor() const { return last_ == 1 ? 1.0F : factor_; }

  HWY_INLINE void Between(TileColumns& columns) const {
    int stride = first_;
    for (; 8 * stride <= run_ / last_; stride *= 8)
      Butterflies<8, kGroup>(columns.x, dim_, stride, 1, AsTheyAre());
    for (; 2 * stride <= run_ / last_; stride *= 2)
      Butterflies<2, kGroup>(columns.x, dim_, stride, 1, AsTheyAre());
    if (run_ > 1 && base_.order > 1)
      MultiplyBase(base_, /*transposed=*/true, columns.x, run_, factor_);
  }

 private:
  const HadamardBase& base_;
  int dim_;
  int run_ = 1;
  int first_ = 1;
  int last_ = 1;
  float factor_ = 1;
};

// The last step: emit(channel, part, x, y) takes the numbers of each two channels as they are kept,
// which finish(channel, part, x) makes of them.
template <int radix, class Finish, class Emit>
HWY_INLINE void FinishTileBy(TileColumns& columns, int dim, float factor, const Finish& finish,
                             const Emit& emit) {
  const int stride = dim / radix;
  for (int part = 0; part < kParts; ++part) {
    for (int channel = 0; channel < stride; channel += 2) {
      VF x[2][radix];
      OSCARKV_UNROLL
      for (int i = 0; i < radix; ++i) {
        x[0][i] = hn::Load(F32(), columns.at(channel + i * stride, part));
        x[1][i] = hn::Load(F32(), columns.at(channel + 1 + i * stride, part));
      }
      Butterfly(x[0]);
      Butterfly(x[1]);
      OSCARKV_UNROLL
      for (int i = 0; i < radix; ++i) {
        const int c = channel + i * stride;
        if (radix > 1) {
          x[0][i] = hn::Mul(x[0][i], hn::Set(F32(), factor));
          x[1][i] = hn::Mul(x[1][i], hn::Set(F32(), factor));
        }
        emit(c, part, finish(c, part, x[0][i]), finish(c + 1, part, x[1][i]));
      }
    }
  }
}

template <class Finish, class Emit>
HWY_INLINE void FinishTile(const BackRotation& back, TileColumns& columns, int dim,
                           const Finish& finish, const Emit& emit) {
  if (back.last() == 1) return FinishTileBy<1>(columns, dim, 1, finish, emit);
  FinishTileBy<BackRotation::kLast>(columns, dim, back.last_factor(), finish, emit);
}

// Calls decode(bits, first) with constants of these values.
template <class Decode>
HWY_INLINE void WithConstants(int bits, int first, const Decode& decode) {
  const auto with_first = [&](auto constant_bits) HWY_ATTR {
    switch (first) {
      case 1:
        return decode(constant_bits, std::integral_constant<int, 1>());
      case 4:
        return decode(constant_bits, std::integral_constant<int, 4>());
      case 8:
        return decode(constant_bits, std::integral_constant<int, 8>());
      default:
        return decode(constant_bits, std::integral_constant<int, BackRotation::kFirst>());
    }
  };
  if (bits == 2) return with_first(std::integral_constant<int, 2>());
  with_first(std::integral_constant<int, 4>());
}

// The keys of the tile that begins with `token`, given to `emit`.
template <class Emit>
HWY_INLINE void DecodeKeyTile(const LayerSpec& spec, const HeadView& head, const float* direction,
                              int token, TileColumns& columns, const Emit& emit) {
  const F32 d;
  const int dim = spec.key_dim;
  const PackedCodes codes = CodesOf(head.key_codes, kPageTokens, dim);
  const AffineFP16* const params = head.key_params + token / spec.codec.key_group * dim;
  const BackRotation back(dim, head.keys_rotated);
  WithConstants(spec.codec.key_bits, back.first(), [&](auto bits, auto first) HWY_ATTR {
    DecodeKeyCodes<bits, first>(codes, params, token, columns);
  });
  back.Between(columns);
  VF norms[kParts];
  VF residuals[kParts];
  for (int part = 0; part < kParts; ++part) {
    const int lane = token + part * kLanes;
    norms[part] = head.norms == nullptr ? hn::Set(d, 1.0F) : LoadBF16(head.norms + lane);
    residuals[part] = hn::Zero(d);
    if (head.has_residual) {
      const auto steps = hn::PromoteTo(I32(), hn::LoadU(I8(), head.residuals + lane));
      residuals[part] = hn::Mul(hn::Set(d, head.residual_step), hn::ConvertTo(d, steps));
    }
  }
  const VF factor = hn::Set(d, head.key_factor);
  const auto finish = [&](int channel, int part, VF x) HWY_ATTR {
    const VF key = hn::Mul(hn::Mul(x, factor), norms[part]);
    if (!head.has_residual) return key;
    return hn::Add(key, hn::Mul(residuals[part], hn::Set(d, direction[channel])));
  };
  FinishTile(back, columns, dim, finish, emit);
}

template <class Emit>
HWY_INLINE void DecodeValueTile(const LayerSpec& spec, const HeadView& head, int token,
                                TileColumns& columns, const Emit& emit) {
  const int dim = spec.value_dim;
  const PackedCodes codes = CodesOf(head.value_codes, dim, kPageTokens);
  const int group = spec.value_group_channels();
  const BackRotation back(dim, spec.codec.value_rotation == Rotation::kHadamard);
  WithConstants(spec.codec.value_bits, back.first(), [&](auto bits, auto first) HWY_ATTR {
    for (int begin = 0; begin < dim; begin += group) {
      DecodeValueCodes<bits, first>(codes, head.value_params + begin / group * kPageTokens + token,
                                    begin, std::min(dim, begin + group), token, columns);
    }
  });
  back.Between(columns);
  const VF factor = hn::Set(F32(), head.value_factor);
  const auto finish = [&](int, int, VF x) HWY_ATTR { return hn::Mul(x, factor); };
  FinishTile(back, columns, dim, finish, emit);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
