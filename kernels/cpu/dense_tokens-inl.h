// Products with keys and values in 16 bits: of the window, of sinks, and of 16-bit sides of pages.
// All arithmetic is fp32.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_DENSE_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_DENSE_TOKENS_INL_H_
#undef OSCARKV_KERNELS_CPU_DENSE_TOKENS_INL_H_
#else
#define OSCARKV_KERNELS_CPU_DENSE_TOKENS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/api/dtype.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// A run of tokens in 16 bits, packed [tokens][dim].
struct DenseTokens {
  const std::byte* rows;
  int tokens;
  int dim;
  std::ptrdiff_t next;  // bytes from here to what is read later, fetched into the cache meanwhile

  HWY_INLINE const std::uint16_t* row(int token) const {
    return reinterpret_cast<const std::uint16_t*>(rows) + static_cast<std::ptrdiff_t>(token) * dim;
  }
  HWY_INLINE void FetchNext(int token) const {
    const std::byte* at = rows + next + std::ptrdiff_t{2} * token * dim;
    for (int byte = 0; byte < 2 * dim; byte += 64) Fetch(at + byte);
  }
};

// logits[row][token] = queries[row] . key of some tokens and rows at a time.
template <DType dtype, int tokens, int rows>
HWY_INLINE void LogitsOfBlock(const float* queries, const DenseTokens& keys, int token,
                              Rows logits) {
  GroupSum sums[tokens][rows];
  for (int c = 0; c < keys.dim; c += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = c + part * kLanes;
      VF q[rows];
      for (int r = 0; r < rows; ++r) q[r] = hn::Load(F32(), queries + r * keys.dim + at);
      for (int t = 0; t < tokens; ++t) {
        const VF key = LoadFloats<dtype>(keys.row(token + t) + at);
        for (int r = 0; r < rows; ++r) sums[t][r].AddProduct(part, q[r], key);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    if constexpr (tokens == 4) {
      FoldFour(sums[0][r], sums[1][r], sums[2][r], sums[3][r], logits[r] + token);
    } else {
      for (int t = 0; t < tokens; ++t) logits[r][token + t] = sums[t][r].Fold();
    }
  }
}

template <DType dtype, int rows>
HWY_INLINE void LogitsOfRows(const float* queries, const DenseTokens& keys, Rows logits) {
  constexpr int kTokens = 4;
  int token = 0;
  for (; token + kTokens <= keys.tokens; token += kTokens) {
    for (int t = 0; t < kTokens; ++t) keys.FetchNext(token + t);
    LogitsOfBlock<dtype, kTokens, rows>(queries, keys, token, logits);
  }
  for (; token < keys.tokens; ++token) LogitsOfBlock<dtype, 1, rows>(queries, keys, token, logits);
}

template <DType dtype>
HWY_INLINE void LogitsOfType(const float* queries, int rows, const DenseTokens& keys, Rows logits) {
  // As many as leave room for their sums in registers.
  constexpr int kRows = kParts == 1 ? 4 : 2;
  int row = 0;
  for (; row + kRows <= rows; row += kRows) {
    LogitsOfRows<dtype, kRows>(queries + row * keys.dim, keys, logits.From(row));
  }
  for (; row < rows; ++row) {
    LogitsOfRows<dtype, 1>(queries + row * keys.dim, keys, logits.From(row));
  }
}

// logits[row][token] = query . key, for queries[rows][keys.dim] and keys in `storage`.
HWY_INLINE void DenseLogits(DType storage, const float* queries, int rows, const DenseTokens& keys,
                            Rows logits) {
  if (storage == DType::kBF16) {
    LogitsOfType<DType::kBF16>(queries, rows, keys, logits);
  } else {
    LogitsOfType<DType::kFP16>(queries, rows, keys, logits);
  }
}

// outs[row][c ..] += sum over tokens, in their order, of weights[row][token] * value.
template <DType dtype, int rows, int vectors>
HWY_INLINE void ValuesOfBlock(Rows weights, const DenseTokens& values, int c, Rows outs) {
  const F32 d;
  VF sums[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Load(d, outs[r] + c + v * kLanes);
  }
  for (int t = 0; t < values.tokens; ++t) {
    for (int v = 0; v < vectors; ++v) {
      const VF value = LoadFloats<dtype>(values.row(t) + c + v * kLanes);
      for (int r = 0; r < rows; ++r) {
        sums[r][v] = FusedMulAdd(hn::Set(d, weights[r][t]), value, sums[r][v]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) hn::Store(sums[r][v], d, outs[r] + c + v * kLanes);
  }
}

template <DType dtype, int rows>
HWY_INLINE void ValuesOfRows(Rows weights, const DenseTokens& values, Rows outs) {
  constexpr int kVectors = 8 / rows;
  int c = 0;
  for (; c + kVectors * kLanes <= values.dim; c += kVectors * kLanes) {
    ValuesOfBlock<dtype, rows, kVectors>(weights, values, c, outs);
  }
  for (; c < values.dim; c += kLanes) ValuesOfBlock<dtype, rows, 1>(weights, values, c, outs);
}

template <DType dtype>
HWY_INLINE void ValuesOfType(Rows weights, int rows, const DenseTokens& values, Rows outs) {
  for (int t = 0; t < values.tokens; ++t) values.FetchNext(t);
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    ValuesOfRows<dtype, 4>(weights.From(row), values, outs.From(row));
  }
  for (; row + 2 <= rows; row += 2) {
    ValuesOfRows<dtype, 2>(weights.From(row), values, outs.From(row));
  }
  for (; row < rows; ++row) {
    ValuesOfRows<dtype, 1>(weights.From(row), values, outs.From(row));
  }
}

// outs[row] += sum over tokens of weights[row][token] * value, for values in `storage`.
HWY_INLINE void AddDenseValues(DType storage, Rows weights, int rows, const DenseTokens& values,
                               Rows outs) {
  if (storage == DType::kBF16) {
    ValuesOfType<DType::kBF16>(weights, rows, values, outs);
  } else {
    ValuesOfType<DType::kFP16>(weights, rows, values, outs);
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
