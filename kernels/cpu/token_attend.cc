#include "kernels/cpu/token_attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/int8_step.h"

namespace oscarkv::cpu {
namespace {

constexpr int kRunTokens = 16;  // converted to fp32 at a time

}  // namespace

void DenseLogits(const LayerSpec& spec, const QueryTile& queries, const std::byte* keys, int tokens,
                 float* logits) {
  const int dim = spec.key_dim;
  alignas(64) float run[kRunTokens * kMaxHeadDim];
  for (int begin = 0; begin < tokens; begin += kRunTokens) {
    const int count = std::min(kRunTokens, tokens - begin);
    ToFloats(spec.storage, keys + static_cast<std::int64_t>(begin) * dim * 2,
             static_cast<std::size_t>(count) * dim, run);
    for (int row = 0; row < queries.rows(); ++row) {
      for (int t = 0; t < count; ++t) {
        logits[row * tokens + begin + t] = Dot(queries.plain() + row * dim, run + t * dim, dim);
      }
    }
  }
}

void AddDenseValues(const LayerSpec& spec, const std::byte* values, int tokens,
                    const float* weights, TileState& state) {
  const int dim = spec.value_dim;
  alignas(64) float run[kRunTokens * kMaxHeadDim];
  for (int begin = 0; begin < tokens; begin += kRunTokens) {
    const int count = std::min(kRunTokens, tokens - begin);
    ToFloats(spec.storage, values + static_cast<std::int64_t>(begin) * dim * 2,
             static_cast<std::size_t>(count) * dim, run);
    for (int row = 0; row < state.rows(); ++row) {
      float* out = state.out(row);
      for (int t = 0; t < count; ++t) {
        const float weight = weights[row * tokens + begin + t];
        for (int c = 0; c < dim; ++c) out[c] += weight * run[t * dim + c];
      }
    }
  }
}

void ApplySoftcap(float softcap, int count, float* logits) {
  if (!(softcap > 0)) return;
  for (int i = 0; i < count; ++i) logits[i] = softcap * std::tanh(logits[i] / softcap);
}

void AttendTokens(const LayerMemory& layer, const std::byte* block, int capacity,
                  std::int64_t begin, int tokens, const QueryTile& queries, TileState& state) {
  const LayerSpec& spec = *layer.spec;
  const TokenBlockLayout layout(spec, capacity);
  const std::byte* keys = block + layout.head_bytes * queries.kv_head();
  const std::byte* values = keys + layout.value_offset;
  alignas(64) float logits[kTileRows * kWindowBlockTokens];
  for (int first = 0; first < tokens; first += kWindowBlockTokens) {
    const int count = std::min(kWindowBlockTokens, tokens - first);
    if (!queries.SeesAny(begin + first, begin + first + count)) continue;
    DenseLogits(spec, queries, keys + static_cast<std::int64_t>(first) * spec.key_dim * 2, count,
                logits);
    for (int row = 0; row < queries.rows(); ++row) {
      float* row_logits = logits + row * count;
      ApplySoftcap(spec.softcap, count, row_logits);
      state.CountLogits(row, queries.Visible(row, begin + first, count), count, row_logits);
    }
    AddDenseValues(spec, values + static_cast<std::int64_t>(first) * spec.value_dim * 2, count,
                   logits, state);
  }
}

}  // namespace oscarkv::cpu
