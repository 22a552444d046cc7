#include "kernels/cpu/page_decode.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rotate-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

static_assert(kGroup == kTileSide);

// Numbers of the 16 tokens of a tile: [dim][kGroup].
struct TileColumns {
  HWY_ALIGN float x[kMaxHeadDim * kGroup];

  HWY_INLINE float* at(int channel, int part) { return x + channel * kGroup + part * kLanes; }
};

// A head's matrix of codes, [rows][columns].
struct PackedCodes {
  const std::byte* first;
  int columns;
  std::ptrdiff_t plane;  // to the high plane of 4-bit codes; 0: 2 bits

  // The word of a row in the tile that begins with `column`.
  HWY_INLINE const std::byte* Word(int row, int column) const {
    return first + PositionInPlane(row, column, columns).offset;
  }
};

HWY_INLINE PackedCodes CodesOf(const std::byte* first, int rows, int columns, int bits) {
  return {first, columns, bits == 4 ? PlaneBytes(rows, columns) : 0};
}

// The shift of a tile's column in its word.
constexpr int ShiftOf(int column) {
  const TilePosition at = PositionInPlane(0, column, kTileSide);
  return static_cast<int>(8 * at.offset) + at.shift;
}

// Splits params[count] into scales and zeros.
HWY_INLINE void SplitParams(const AffineFP16* params, int count, float* scales, float* zeros) {
  for (int i = 0; i < count; i += kLanes) {
    VF scale;
    VF zero;
    LoadFP16Pairs(params + i, scale, zero);
    hn::Store(scale, F32(), scales + i);
    hn::Store(zero, F32(), zeros + i);
  }
}

HWY_INLINE VF ToNumbers(hn::Vec<U32> low, hn::Vec<U32> high, VF scale, VF zero) {
  const U32 u;
  const auto mask = hn::Set(u, 3);
  const auto code = hn::Or(hn::And(low, mask), hn::ShiftLeft<2>(hn::And(high, mask)));
  return hn::Add(hn::Mul(scale, hn::ConvertTo(F32(), hn::BitCast(I32(), code))), zero);
}

// Lanes are tokens, the rows of a tile, as its words lie.
HWY_INLINE void DecodeKeyCodes(const PackedCodes& codes, const AffineFP16* params, int token,
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
      const auto high = codes.plane == 0 ? hn::Zero(u) : load(tile + codes.plane);
      for (int c = 0; c < kTileSide; ++c) {
        hn::Store(
            ToNumbers(hn::ShiftRightSame(low, ShiftOf(c)), hn::ShiftRightSame(high, ShiftOf(c)),
                      hn::Set(F32(), scales[channel + c]), hn::Set(F32(), zeros[channel + c])),
            F32(), out.at(channel + c, part));
      }
    }
  }
}

// Of channels [first, last), a group. Lanes are tokens, the columns of a tile: each has its own
// shift of the word of a channel. params: from the tile's first token on.
HWY_INLINE void DecodeValueCodes(const PackedCodes& codes, const AffineFP16* params, int first,
                                 int last, int token, TileColumns& out) {
  const U32 u;
  HWY_ALIGN std::uint32_t shifts[kGroup];
  HWY_ALIGN float scales[kGroup];
  HWY_ALIGN float zeros[kGroup];
  SplitParams(params, kGroup, scales, zeros);
  for (int t = 0; t < kGroup; ++t) shifts[t] = ShiftOf(t);
  for (int channel = first; channel < last; ++channel) {
    const std::byte* word = codes.Word(channel, token);
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    std::memcpy(&low, word, sizeof(low));
    if (codes.plane != 0) std::memcpy(&high, word + codes.plane, sizeof(high));
    for (int part = 0; part < kParts; ++part) {
      const int lane = part * kLanes;
      const auto shift = hn::Load(u, shifts + lane);
      hn::Store(ToNumbers(hn::Shr(hn::Set(u, low), shift), hn::Shr(hn::Set(u, high), shift),
                          hn::Load(F32(), scales + lane), hn::Load(F32(), zeros + lane)),
                F32(), out.at(channel, part));
    }
  }
}

// The keys of the tile that begins with `token`.
void DecodeKeyTile(const LayerSpec& spec, const HeadView& head, const float* direction, int token,
                   TileColumns& keys) {
  const F32 d;
  const int dim = spec.key_dim;
  DecodeKeyCodes(CodesOf(head.key_codes, kPageTokens, dim, spec.codec.key_bits),
                 head.key_params + token / spec.codec.key_group * dim, token, keys);
  if (head.keys_rotated) RotateGroup(keys.x, dim, /*back=*/true);
  const VF factor = hn::Set(d, head.key_factor);
  for (int part = 0; part < kParts; ++part) {
    const int lane = token + part * kLanes;
    const VF norm = head.norms == nullptr ? hn::Set(d, 1.0F) : LoadBF16(head.norms + lane);
    VF residual = hn::Zero(d);
    if (head.has_residual) {
      const auto codes = hn::PromoteTo(I32(), hn::LoadU(I8(), head.residuals + lane));
      residual = hn::Mul(hn::Set(d, head.residual_step), hn::ConvertTo(d, codes));
    }
    for (int c = 0; c < dim; ++c) {
      float* at = keys.at(c, part);
      VF key = hn::Mul(hn::Mul(hn::Load(d, at), factor), norm);
      if (head.has_residual) key = hn::Add(key, hn::Mul(residual, hn::Set(d, direction[c])));
      hn::Store(key, d, at);
    }
  }
}

void DecodeValueTile(const LayerSpec& spec, const HeadView& head, int token, TileColumns& values) {
  const F32 d;
  const int dim = spec.value_dim;
  const PackedCodes codes = CodesOf(head.value_codes, dim, kPageTokens, spec.codec.value_bits);
  const int group = spec.value_group_channels();
  for (int first = 0; first < dim; first += group) {
    DecodeValueCodes(codes, head.value_params + first / group * kPageTokens + token, first,
                     std::min(dim, first + group), token, values);
  }
  if (spec.codec.value_rotation == Rotation::kHadamard) RotateGroup(values.x, dim, /*back=*/true);
  const VF factor = hn::Set(d, head.value_factor);
  for (int i = 0; i < dim * kGroup; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, values.x + i), factor), d, values.x + i);
  }
}

// out[tokens][dim] = tokens [begin, begin + tokens), of tiles that decode(token, columns) decodes.
template <class Decode>
HWY_INLINE void DecodeTiles(int begin, int tokens, int dim, float* out, const Decode& decode) {
  TileColumns columns;
  HWY_ALIGN float rows[kGroup * kMaxHeadDim];
  for (int done = 0; done < tokens;) {
    const int token = begin + done;
    const int from = token % kGroup;
    const int count = std::min(kGroup - from, tokens - done);
    decode(token - from, columns);
    float* to = out + static_cast<std::ptrdiff_t>(done) * dim;
    const bool whole = count == kGroup;
    Transpose({columns.x, kGroup}, dim, kGroup, {whole ? to : rows, dim});
    if (!whole) std::copy_n(rows + from * dim, count * dim, to);
    done += count;
  }
}

void DecodeKeysOfTarget(const LayerSpec& spec, const HeadView& head, const float* direction,
                        int begin, int tokens, float* keys) {
  DecodeTiles(begin, tokens, spec.key_dim, keys, [&](int token, TileColumns& columns) HWY_ATTR {
    DecodeKeyTile(spec, head, direction, token, columns);
  });
}

void DecodeValuesOfTarget(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                          float* values) {
  DecodeTiles(begin, tokens, spec.value_dim, values, [&](int token, TileColumns& columns) HWY_ATTR {
    DecodeValueTile(spec, head, token, columns);
  });
}

// Rounds kLanes finite numbers to nearest even.
template <DType storage>
HWY_INLINE void StoreRounded(VF x, std::uint16_t* out) {
#if HWY_TARGET == HWY_SCALAR
  *out = ToBits16(storage, x.raw);
#else
  if constexpr (storage == DType::kBF16) {
    const U32 u;
    const auto bits = hn::BitCast(u, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(u, 0x7FFF)), odd);
    hn::StoreU(hn::TruncateTo(U16(), hn::ShiftRight<16>(rounded)), U16(), out);
  } else {
    hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), x)), U16(), out);
  }
#endif
}

template <DType storage>
HWY_INLINE void StoreFiniteAs(const float* x, int count, std::uint16_t* out) {
  const F32 d;
  const VF most = hn::Set(d, LargestFinite(storage));
  for (int i = 0; i < count; i += kLanes) {
    const VF clamped = hn::Max(hn::Min(hn::LoadU(d, x + i), most), hn::Neg(most));
    StoreRounded<storage>(clamped, out + i);
  }
}

void StoreFiniteOfTarget(DType storage, const float* x, int count, std::uint16_t* out) {
  if (storage == DType::kBF16) {
    StoreFiniteAs<DType::kBF16>(x, count, out);
  } else {
    StoreFiniteAs<DType::kFP16>(x, count, out);
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(DecodeKeysOfTarget);
HWY_EXPORT(DecodeValuesOfTarget);
HWY_EXPORT(StoreFiniteOfTarget);

void DecodeKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
                int tokens, float* keys) {
  if (!spec.keys_are_coded()) {
    const std::ptrdiff_t dim = spec.key_dim;
    return ToFloats(spec.storage, head.key_codes + 2 * dim * begin, dim * tokens, keys);
  }
  HWY_DYNAMIC_DISPATCH(DecodeKeysOfTarget)(spec, head, direction, begin, tokens, keys);
}

void DecodeValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                  float* values) {
  if (!spec.values_are_coded()) {
    const std::ptrdiff_t dim = spec.value_dim;
    return ToFloats(spec.storage, head.value_codes + 2 * dim * begin, dim * tokens, values);
  }
  HWY_DYNAMIC_DISPATCH(DecodeValuesOfTarget)(spec, head, begin, tokens, values);
}

void StoreFinite(DType storage, const float* x, int count, std::uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(StoreFiniteOfTarget)(storage, x, count, out);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
