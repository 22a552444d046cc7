#include "kernels/codec/page_decoder.h"

#include <algorithm>
#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/codec/affine.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/residual.h"
#include "kernels/codec/scaled.h"
#include "kernels/codec/tile.h"

namespace oscarkv {
namespace {

// Tokens are decoded a tile at a time.
constexpr int kTileFloats = kMaxHeadDim * kTileSide;

// keys[kTileSide][key_dim] of the tile that begins with `token`.
void DecodeKeyTile(const LayerSpec& spec, const HeadView& head, const float* direction, int token,
                   float* keys) {
  const int dim = spec.key_dim;
  std::uint8_t codes[kTileFloats];
  UnpackCodes(head.key_codes, kPageTokens, dim, spec.codec.key_bits, {token, kTileSide, 0, dim},
              codes);
  const AffineFP16* const params = head.key_params + token / spec.codec.key_group * dim;
  DecodeGroups(codes, params, kTileSide, dim, keys);
  RestoreKeys(head.keys_rotated, head.key_factor,
              head.norms == nullptr ? nullptr : head.norms + token, kTileSide, dim, keys);
  if (head.has_residual) {
    AddResiduals(head.residuals + token, head.residual_step, direction, kTileSide, dim, keys);
  }
}

// values[value_dim][kTileSide] of the tile that begins with `token`.
void DecodeValueTile(const LayerSpec& spec, const HeadView& head, int token, float* values) {
  const int dim = spec.value_dim;
  std::uint8_t codes[kTileFloats];
  UnpackCodes(head.value_codes, dim, kPageTokens, spec.codec.value_bits, {0, dim, token, kTileSide},
              codes);
  const int group = spec.value_group_channels();
  for (int begin = 0; begin < dim; begin += group) {
    const AffineFP16* const params = head.value_params + begin / group * kPageTokens + token;
    DecodeGroups(codes + begin * kTileSide, params, std::min(group, dim - begin), kTileSide,
                 values + begin * kTileSide);
  }
  if (spec.codec.value_rotation == Rotation::kHadamard) RotateColumnsBack(values, dim, kTileSide);
  for (int i = 0; i < dim * kTileSide; ++i) values[i] *= head.value_factor;
}

// Calls decode(tile, from, to, out) for the tokens [from, to) of each tile that the range touches;
// `out` counts the tokens before.
template <typename Decode>
void ForEachTile(int begin, int tokens, Decode decode) {
  for (int token = begin; token < begin + tokens;) {
    const int tile = token / kTileSide * kTileSide;
    const int end = std::min(begin + tokens, tile + kTileSide);
    decode(tile, token - tile, end - tile, token - begin);
    token = end;
  }
}

}  // namespace

HeadView PageView::Head(int head) const {
  const std::byte* const region = page_ + layout_.heads + layout_.head_bytes * head;
  PageHeadHeader header;
  std::memcpy(&header, page_ + sizeof(header) * head, sizeof(header));
  HeadView view = {};
  if (spec_->keys_are_coded()) {
    view.keys_rotated = (header.flags & kKeysRotated) != 0;
    view.has_residual = spec_->has_residual() && (header.flags & kHasResidual) != 0;
    view.key_params = reinterpret_cast<const AffineFP16*>(region + layout_.key_params);
  }
  if (spec_->has_residual()) {
    view.residuals = reinterpret_cast<const std::int8_t*>(region + layout_.residuals);
  }
  if (spec_->values_are_coded()) {
    view.value_params = reinterpret_cast<const AffineFP16*>(region + layout_.value_params);
  }
  if (layout_.norm_rows > 0) {
    const int row = layout_.norm_rows == 1 ? 0 : head;
    view.norms = reinterpret_cast<const std::uint16_t*>(page_ + layout_.norms) + row * kPageTokens;
  }
  view.key_codes = region + layout_.key_codes;
  view.value_codes = region + layout_.value_codes;
  view.key_factor = PowerOfTwo(header.key_exponent);
  view.value_factor = PowerOfTwo(header.value_exponent);
  view.residual_step = ResidualScale{header.residual_step, header.residual_exponent}.Step();
  return view;
}

void RestoreKeys(bool rotated, float factor, const std::uint16_t* norms, int tokens, int dim,
                 float* keys) {
  if (rotated) RotateRowsBack(keys, tokens, dim);
  for (int t = 0; t < tokens; ++t) {
    const float norm = norms == nullptr ? 1.0F : FromBF16(norms[t]);
    float* key = keys + static_cast<std::ptrdiff_t>(t) * dim;
    for (int c = 0; c < dim; ++c) key[c] = key[c] * factor * norm;
  }
}

void DecodeKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
                int tokens, float* keys) {
  const std::ptrdiff_t dim = spec.key_dim;
  if (!spec.keys_are_coded()) {
    ToFloats(spec.storage, head.key_codes + 2 * dim * begin, dim * tokens, keys);
    return;
  }
  alignas(64) float tile[kTileFloats];
  ForEachTile(begin, tokens, [&](int token, int from, int to, int out) {
    DecodeKeyTile(spec, head, direction, token, tile);
    std::copy(tile + from * dim, tile + to * dim, keys + out * dim);
  });
}

void DecodeValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                  float* values) {
  const std::ptrdiff_t dim = spec.value_dim;
  if (!spec.values_are_coded()) {
    ToFloats(spec.storage, head.value_codes + 2 * dim * begin, dim * tokens, values);
    return;
  }
  alignas(64) float tile[kTileFloats];
  ForEachTile(begin, tokens, [&](int token, int from, int to, int out) {
    DecodeValueTile(spec, head, token, tile);
    for (int t = from; t < to; ++t) {
      float* const value = values + (out + t - from) * dim;
      for (int c = 0; c < dim; ++c) value[c] = tile[c * kTileSide + t];
    }
  });
}

}  // namespace oscarkv
