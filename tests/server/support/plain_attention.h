// Attention in fp32 by its definition, over rows of 16-bit tokens: what FakeBackend computes and
// what tests expect of it, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

// Rows of 16-bit tokens at positions [0, length).
struct PlainTokens {
  std::vector<std::uint16_t> keys;    // [length][kv_heads][key_dim]
  std::vector<std::uint16_t> values;  // [length][kv_heads][value_dim]
  std::int64_t length = 0;
};

struct PlainQueries {
  DType dtype = DType::kBF16;
  const void* data = nullptr;  // [count][query_heads][key_dim]
  std::int32_t count = 0;
  std::int64_t begin = 0;
  bool causal = true;
  bool count_sink_logits = true;
};

// outputs: [count][query_heads][value_dim]; log_sum_exps: [count][query_heads].
void PlainAttend(const LayerSpec& spec, const PlainTokens& tokens, const PlainQueries& queries,
                 float* outputs, float* log_sum_exps);

}  // namespace oscarkv
