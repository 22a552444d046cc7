#include "tests/server/support/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/api/dtype.h"

namespace oscarkv {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float Logit(const LayerSpec& spec, const float* query, const std::uint16_t* key) {
  float dot = 0;
  for (int c = 0; c < spec.key_dim; ++c) dot += query[c] * FromBits16(spec.storage, key[c]);
  const float logit = spec.scale * dot;
  return spec.softcap > 0 ? spec.softcap * std::tanh(logit / spec.softcap) : logit;
}

// One query head of one query over the positions [from, to).
void AttendOne(const LayerSpec& spec, const PlainTokens& tokens, const float* query, int kv_head,
               std::int64_t from, std::int64_t to, float sink_logit, float* output, float* lse) {
  std::vector<float> logits;
  float largest = sink_logit;
  for (std::int64_t t = from; t < to; ++t) {
    logits.push_back(
        Logit(spec, query, &tokens.keys[(t * spec.kv_heads + kv_head) * spec.key_dim]));
    largest = std::max(largest, logits.back());
  }
  std::fill_n(output, spec.value_dim, 0.0F);
  *lse = kMinusInfinity;
  if (largest == kMinusInfinity) return;
  float sum = std::exp(sink_logit - largest);
  for (std::int64_t t = from; t < to; ++t) {
    const float weight = std::exp(logits[t - from] - largest);
    sum += weight;
    const std::uint16_t* value = &tokens.values[(t * spec.kv_heads + kv_head) * spec.value_dim];
    for (int c = 0; c < spec.value_dim; ++c)
      output[c] += weight * FromBits16(spec.storage, value[c]);
  }
  for (int c = 0; c < spec.value_dim; ++c) output[c] /= sum;
  *lse = largest + std::log(sum);
}

}  // namespace

void PlainAttend(const LayerSpec& spec, const PlainTokens& tokens, const PlainQueries& queries,
                 float* outputs, float* log_sum_exps) {
  const std::size_t row = static_cast<std::size_t>(spec.query_heads) * spec.key_dim;
  std::vector<float> floats(row * queries.count);
  ToFloats(queries.dtype, queries.data, floats.size(), floats.data());
  for (std::int32_t i = 0; i < queries.count; ++i) {
    const std::int64_t position = queries.begin + i;
    const std::int64_t to =
        queries.causal ? std::clamp<std::int64_t>(position + 1, 0, tokens.length) : tokens.length;
    const std::int64_t from =
        spec.sliding_window > 0
            ? std::clamp<std::int64_t>(position - spec.sliding_window + 1, 0, to)
            : 0;
    for (int h = 0; h < spec.query_heads; ++h) {
      const bool sinks = queries.count_sink_logits && !spec.sink_logits.empty();
      AttendOne(spec, tokens, &floats[i * row + h * spec.key_dim], h / spec.queries_per_kv_head(),
                from, to, sinks ? spec.sink_logits[h] : kMinusInfinity,
                outputs + (static_cast<std::int64_t>(i) * spec.query_heads + h) * spec.value_dim,
                log_sum_exps + static_cast<std::int64_t>(i) * spec.query_heads + h);
    }
  }
}

}  // namespace oscarkv
