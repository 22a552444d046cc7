#include "kernels/cpu/page_decode.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/decode_tile-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Numbers of 16 bits of the tokens of a tile, by pairs of channels: [dim / 2][kGroup].
struct TilePairs {
  HWY_ALIGN std::uint32_t x[kMaxHeadDim / 2 * kGroup];

  HWY_INLINE std::uint32_t* at(int pair, int part) { return x + pair * kGroup + part * kLanes; }
};

// a and b in the low and high halves of lanes, rounded to nearest even. `most`: the largest finite
// number, to which those beyond it are rounded.
template <DType storage>
HWY_INLINE hn::Vec<U32> ToPairs(VF a, VF b, VF most) {
  const U32 u;
  const auto clamped = [&](VF x) HWY_ATTR { return hn::Max(hn::Min(x, most), hn::Neg(most)); };
  if constexpr (storage == DType::kBF16) {
    // Rounded in their high halves.
    const auto rounded = [&](VF x) HWY_ATTR {
      const auto bits = hn::BitCast(u, clamped(x));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
      return hn::Add(hn::Add(bits, hn::Set(u, 0x7FFF)), odd);
    };
    return hn::Or(hn::ShiftRight<16>(rounded(a)), hn::And(rounded(b), hn::Set(u, 0xFFFF0000)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    const auto bits = [&](VF x) { return hn::Set(u, ToBits16(storage, clamped(x).raw)); };
#else
    const auto bits = [&](VF x) HWY_ATTR {
      return hn::PromoteTo(u, hn::BitCast(U16(), hn::DemoteTo(F16(), clamped(x))));
    };
#endif
    return hn::Or(bits(a), hn::ShiftLeft<16>(bits(b)));
  }
}

// Stores all lanes, or the first half.
template <bool all>
HWY_INLINE void StorePairs(hn::Vec<U32> pairs, std::uint16_t* out) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(out, &pairs.raw, sizeof(pairs.raw));
#else
  const hn::Repartition<std::uint16_t, U32> d;
  if constexpr (all) {
    hn::StoreU(hn::BitCast(d, pairs), d, out);
  } else {
    const hn::Half<decltype(d)> half;
    hn::StoreU(hn::LowerHalf(half, hn::BitCast(d, pairs)), half, out);
  }
#endif
}

// square[i] lane t = square[t] lane i.
HWY_INLINE void TransposeSquare(hn::Vec<U32> (&square)[kLanes]) {
#if HWY_TARGET != HWY_SCALAR
  // Squares of 4 within blocks of 16 bytes.
  const U32 u;
  const hn::Repartition<std::uint64_t, U32> wide;
  OSCARKV_UNROLL
  for (int i = 0; i < kLanes; i += 4) {
    const auto pair = [&](int from, bool upper) HWY_ATTR {
      const auto x = square[i + from];
      const auto y = square[i + from + 1];
      return hn::BitCast(wide, upper ? hn::InterleaveUpper(u, x, y) : hn::InterleaveLower(u, x, y));
    };
    const auto low01 = pair(0, false);
    const auto high01 = pair(0, true);
    const auto low23 = pair(2, false);
    const auto high23 = pair(2, true);
    square[i] = hn::BitCast(u, hn::InterleaveLower(wide, low01, low23));
    square[i + 1] = hn::BitCast(u, hn::InterleaveUpper(wide, low01, low23));
    square[i + 2] = hn::BitCast(u, hn::InterleaveLower(wide, high01, high23));
    square[i + 3] = hn::BitCast(u, hn::InterleaveUpper(wide, high01, high23));
  }
  // Then the blocks themselves.
  if constexpr (kLanes == 8) {
    OSCARKV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto x = square[i];
      const auto y = square[i + 4];
      square[i] = hn::ConcatLowerLower(u, y, x);
      square[i + 4] = hn::ConcatUpperUpper(u, y, x);
    }
  }
  if constexpr (kLanes == 16) {
    OSCARKV_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto even = [&](int from) HWY_ATTR {  // blocks x0 y0 x2 y2
        return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(square[i + from + 4]), square[i + from]);
      };
      const auto odd = [&](int from) HWY_ATTR {  // blocks x1 y1 x3 y3
        return hn::OddEvenBlocks(square[i + from + 4], hn::SwapAdjacentBlocks(square[i + from]));
      };
      const auto even_first = even(0);
      const auto even_last = even(8);
      const auto odd_first = odd(0);
      const auto odd_last = odd(8);
      square[i] = hn::ConcatLowerLower(u, even_last, even_first);
      square[i + 4] = hn::ConcatLowerLower(u, odd_last, odd_first);
      square[i + 8] = hn::ConcatUpperUpper(u, even_last, even_first);
      square[i + 12] = hn::ConcatUpperUpper(u, odd_last, odd_first);
    }
  }
#else
  (void)square;
#endif
}

// Row t of a tile goes to out + t * stride, of which kLanes pairs of channels, or half of them.
template <bool all>
HWY_INLINE void StoreSquares(TilePairs& pairs, int pair, std::ptrdiff_t stride,
                             std::uint16_t* out) {
  for (int part = 0; part < kParts; ++part) {
    hn::Vec<U32> square[kLanes];
    OSCARKV_UNROLL
    for (int i = 0; i < kLanes; ++i) square[i] = hn::Load(U32(), pairs.at(pair + i, part));
    TransposeSquare(square);
    std::uint16_t* to = out + part * kLanes * stride + 2 * pair;
    OSCARKV_UNROLL
    for (int i = 0; i < kLanes; ++i, to += stride) StorePairs<all>(square[i], to);
  }
}

HWY_INLINE void StoreTile(TilePairs& pairs, int dim, std::ptrdiff_t stride, std::uint16_t* out) {
  int pair = 0;
  for (; pair + kLanes <= dim / 2; pair += kLanes) StoreSquares<true>(pairs, pair, stride, out);
  if (pair < dim / 2) StoreSquares<false>(pairs, pair, stride, out);
}

// Tokens [begin, begin + tokens) by tiles: tile(token, first, count, row) is to put `count` tokens
// of the tile that begins with `token`, from its first-th on, into row `row` and those after.
template <class Tile>
HWY_INLINE void ForTiles(int begin, int tokens, const Tile& tile) {
  for (int row = 0; row < tokens;) {
    const int first = (begin + row) % kGroup;
    const int count = std::min(kGroup - first, tokens - row);
    tile(begin + row - first, first, count, row);
    row += count;
  }
}

// out[tokens][dim], of tiles that decode(token, columns, emit) decodes.
template <class Decode>
HWY_INLINE void DecodeTiles(int begin, int tokens, int dim, float* out, const Decode& decode) {
  TileColumns columns;
  HWY_ALIGN float rows[kGroup * kMaxHeadDim];
  ForTiles(begin, tokens, [&](int token, int first, int count, int row) HWY_ATTR {
    decode(token, columns, [&](int channel, int part, VF x, VF y) HWY_ATTR {
      hn::Store(x, F32(), columns.at(channel, part));
      hn::Store(y, F32(), columns.at(channel + 1, part));
    });
    float* const to = out + static_cast<std::ptrdiff_t>(row) * dim;
    const bool whole = count == kGroup;
    Transpose({columns.x, kGroup}, dim, kGroup, {whole ? to : rows, dim});
    if (!whole) std::copy_n(rows + first * dim, count * dim, to);
  });
}

// The same in 16 bits, rows `stride` apart.
template <DType storage, class Decode>
HWY_INLINE void ReadTilesAs(int begin, int tokens, int dim, std::ptrdiff_t stride,
                            std::uint16_t* out, const Decode& decode) {
  TileColumns columns;
  TilePairs pairs;
  HWY_ALIGN std::uint16_t rows[kGroup * kMaxHeadDim];
  const VF most = hn::Set(F32(), LargestFinite(storage));
  ForTiles(begin, tokens, [&](int token, int first, int count, int row) HWY_ATTR {
    std::uint16_t* const to = out + row * stride;
    // Cache lines that the next tile will write, one for each pair of channels.
    const auto fetch_next = [&](int pair) HWY_ATTR {
      constexpr int kLine = 32;
      const std::uint16_t* const line =
          to + (count + pair % kGroup) * stride + pair / kGroup * kLine;
      Fetch(reinterpret_cast<const std::byte*>(line));
    };
    decode(token, columns, [&](int channel, int part, VF x, VF y) HWY_ATTR {
      hn::Store(ToPairs<storage>(x, y, most), U32(), pairs.at(channel / 2, part));
      if (part == 0) fetch_next(channel / 2);
    });
    if (count == kGroup) return StoreTile(pairs, dim, stride, to);
    StoreTile(pairs, dim, dim, rows);
    for (int i = 0; i < count; ++i) std::copy_n(rows + (first + i) * dim, dim, to + i * stride);
  });
}

template <class Decode>
HWY_INLINE void ReadTiles(DType storage, int begin, int tokens, int dim, std::ptrdiff_t stride,
                          std::uint16_t* out, const Decode& decode) {
  if (storage == DType::kBF16) {
    ReadTilesAs<DType::kBF16>(begin, tokens, dim, stride, out, decode);
  } else {
    ReadTilesAs<DType::kFP16>(begin, tokens, dim, stride, out, decode);
  }
}

void DecodeKeysOfTarget(const LayerSpec& spec, const HeadView& head, const float* direction,
                        int begin, int tokens, float* keys) {
  DecodeTiles(begin, tokens, spec.key_dim, keys,
              [&](int token, TileColumns& columns, const auto& emit)
                  HWY_ATTR { DecodeKeyTile(spec, head, direction, token, columns, emit); });
}

void DecodeValuesOfTarget(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                          float* values) {
  DecodeTiles(begin, tokens, spec.value_dim, values,
              [&](int token, TileColumns& columns, const auto& emit)
                  HWY_ATTR { DecodeValueTile(spec, head, token, columns, emit); });
}

void ReadKeysOfTarget(const LayerSpec& spec, const HeadView& head, const float* direction,
                      int begin, int tokens, std::ptrdiff_t stride, std::uint16_t* keys) {
  ReadTiles(spec.storage, begin, tokens, spec.key_dim, stride, keys,
            [&](int token, TileColumns& columns, const auto& emit)
                HWY_ATTR { DecodeKeyTile(spec, head, direction, token, columns, emit); });
}

void ReadValuesOfTarget(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                        std::ptrdiff_t stride, std::uint16_t* values) {
  ReadTiles(spec.storage, begin, tokens, spec.value_dim, stride, values,
            [&](int token, TileColumns& columns, const auto& emit)
                HWY_ATTR { DecodeValueTile(spec, head, token, columns, emit); });
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(DecodeKeysOfTarget);
HWY_EXPORT(DecodeValuesOfTarget);
HWY_EXPORT(ReadKeysOfTarget);
HWY_EXPORT(ReadValuesOfTarget);

namespace {

// Rows [begin, begin + tokens) of a matrix of 16-bit numbers, as they are.
void CopyRows(const std::byte* rows, int begin, int tokens, int dim, std::ptrdiff_t stride,
              std::uint16_t* out) {
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{2} * dim;
  for (int t = 0; t < tokens; ++t) {
    std::memcpy(out + t * stride, rows + (begin + t) * row_bytes, row_bytes);
  }
}

}  // namespace

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

void ReadKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
              int tokens, std::ptrdiff_t stride, std::uint16_t* keys) {
  if (!spec.keys_are_coded()) {
    return CopyRows(head.key_codes, begin, tokens, spec.key_dim, stride, keys);
  }
  HWY_DYNAMIC_DISPATCH(ReadKeysOfTarget)(spec, head, direction, begin, tokens, stride, keys);
}

void ReadValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                std::ptrdiff_t stride, std::uint16_t* values) {
  if (!spec.values_are_coded()) {
    return CopyRows(head.value_codes, begin, tokens, spec.value_dim, stride, values);
  }
  HWY_DYNAMIC_DISPATCH(ReadValuesOfTarget)(spec, head, begin, tokens, stride, values);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
