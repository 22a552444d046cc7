// Byte offsets in a page and in a block of 16-bit tokens. The drawing is in kernels/PAGE_FORMAT.md.
// One layout for GPU memory, host memory, disk and the wire; little-endian throughout.
#pragma once

#include <cstdint>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

inline constexpr int kTileSide = 16;   // rows and columns of a tile of 2-bit codes
inline constexpr int kTileBytes = 64;  // sixteen 32-bit words, one a row
inline constexpr int kPageAlignment = 64;

// The page header: one record per kv head. A scale or zero is its fp16 field times 2^exponent.
struct PageHeadHeader {
  std::uint8_t flags;  // kKeysRotated | kHasResidual
  std::int8_t key_exponent;
  std::int8_t value_exponent;
  std::int8_t residual_exponent;
  std::uint16_t residual_step;  // fp16
  std::uint16_t reserved;       // zero
};
static_assert(sizeof(PageHeadHeader) == 8);

inline constexpr std::uint8_t kKeysRotated = 1;
inline constexpr std::uint8_t kHasResidual = 2;

// Scale and zero of one group, interleaved. code c decodes to scale * c + zero.
struct AffineFP16 {
  std::uint16_t scale;
  std::uint16_t zero;
};
static_assert(sizeof(AffineFP16) == 4);

constexpr std::int64_t AlignUp(std::int64_t n) {
  return (n + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
}

// Bytes of a [rows][columns] matrix of codes. REQUIRES: both are multiples of kTileSide.
constexpr std::int64_t CodeBytes(std::int64_t rows, std::int64_t columns, int bits) {
  return rows * columns * bits / 8;
}

struct PageLayout {
  explicit PageLayout(const LayerSpec& spec) {
    const CodecSpec& codec = spec.codec;
    const bool normed = spec.keys_are_coded() && codec.scaling != Scaling::kNone;
    norms = AlignUp(static_cast<std::int64_t>(sizeof(PageHeadHeader)) * spec.kv_heads);
    norm_rows = !normed ? 0 : codec.scaling == Scaling::kJoint ? 1 : spec.kv_heads;
    heads = norms + AlignUp(2 * kPageTokens * norm_rows);

    key_groups = spec.keys_are_coded() ? kPageTokens / codec.key_group : 0;
    value_groups = !spec.values_are_coded() ? 0
                                            : (spec.value_dim + spec.value_group_channels() - 1) /
                                                  spec.value_group_channels();
    constexpr std::int64_t kParams = sizeof(AffineFP16);
    key_codes = 0;
    key_params = key_codes + AlignUp(CodeBytes(kPageTokens, spec.key_dim, codec.key_bits));
    residuals = key_params + AlignUp(kParams * key_groups * spec.key_dim);
    value_codes = residuals + (spec.has_residual() ? kPageTokens : 0);
    value_params = value_codes + AlignUp(CodeBytes(spec.value_dim, kPageTokens, codec.value_bits));
    head_bytes = value_params + AlignUp(kParams * value_groups * kPageTokens);
    bytes = heads + head_bytes * spec.kv_heads;
  }

  // From the start of the page.
  std::int64_t norms;  // bf16 [norm_rows][kPageTokens]; the header lies before them
  std::int64_t heads;  // kv_heads regions of head_bytes each

  // From the start of a head's region.
  std::int64_t key_codes;     // planes of tiles [token tile][channel tile], row = token;
                              // 16 bits: [kPageTokens][key_dim]
  std::int64_t key_params;    // AffineFP16 [key_groups][key_dim]
  std::int64_t residuals;     // int8 [kPageTokens]
  std::int64_t value_codes;   // planes of tiles [channel tile][token tile], row = channel;
                              // 16 bits: [kPageTokens][value_dim]
  std::int64_t value_params;  // AffineFP16 [value_groups][kPageTokens]

  std::int64_t head_bytes;
  std::int64_t bytes;  // of the whole page
  int norm_rows;
  int key_groups;
  int value_groups;
};

// A block of 16-bit tokens (window: kWindowBlockTokens; sinks: CodecSpec::sinks): per kv head,
// keys [tokens][key_dim], then values [tokens][value_dim], in the storage dtype.
struct TokenBlockLayout {
  TokenBlockLayout(const LayerSpec& spec, int block_tokens)
      : tokens(block_tokens),
        head_bytes(2LL * block_tokens * (spec.key_dim + spec.value_dim)),
        value_offset(2LL * block_tokens * spec.key_dim),
        bytes(head_bytes * spec.kv_heads) {}

  int tokens;
  std::int64_t head_bytes;
  std::int64_t value_offset;  // from the start of a head's region
  std::int64_t bytes;
};

}  // namespace oscarkv
