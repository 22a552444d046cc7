// The inner loops of the BF16 baseline, one set for each kind of processor.
#pragma once

#include <cstdint>

namespace oscarkv::bench {

// Decode: one query token of the query heads of one kv head over a range of tokens.
struct DecodeUnit {
  const std::uint16_t* keys = nullptr;     // bf16 [tokens][head_dim], 64-byte aligned
  const std::uint16_t* values = nullptr;   // likewise
  std::int64_t tokens = 0;                 // a multiple of kDecodeBlock
  const std::uint16_t* queries = nullptr;  // bf16 [group][head_dim]
  int group = 0;                           // query heads: 1, 2, 4, 8 or 16
  int head_dim = 0;                        // 64, 128 or 256
  float scale = 0;                         // of logits, times log2(e)
  float* outputs = nullptr;                // [group][head_dim], not divided by the sum
  float* maxima = nullptr;                 // [group], of scaled logits
  float* sums = nullptr;                   // [group], of exp2(logit - maximum)
};

// Prefill: rows of queries of one kv head over tokens from the first one on. Row r is a query at
// position `positions[r]` and sees the tokens up to it.
struct PrefillUnit {
  const std::uint16_t* keys = nullptr;     // bf16 [tokens][head_dim], 64-byte aligned
  const std::uint16_t* values = nullptr;   // likewise
  std::int64_t tokens = 0;                 // a multiple of kPrefillBlock
  const std::uint16_t* queries = nullptr;  // bf16 [rows][head_dim]
  const std::int64_t* positions = nullptr;
  int rows = 0;  // a multiple of kPrefillRows, at most kPrefillMaxRows
  int head_dim = 0;
  float scale = 0;
  float* outputs = nullptr;  // [rows][head_dim]
};

inline constexpr int kDecodeBlock = 64;
inline constexpr int kPrefillBlock = 128;
inline constexpr int kPrefillRows = 6;  // that are computed together
inline constexpr int kPrefillMaxRows = 252;

struct BF16Kernels {
  const char* name;
  void (*decode)(const DecodeUnit& unit);
  void (*prefill)(const PrefillUnit& unit);
};

// By dpbf16 (AVX512_BF16). The functions are null where compiler or processor lack it.
BF16Kernels DotProductKernels();
// By fp32 multiply-add with the widest vectors there are.
BF16Kernels MultiplyAddKernels();
// The faster of the two that this processor can run.
BF16Kernels BestKernels();

}  // namespace oscarkv::bench
