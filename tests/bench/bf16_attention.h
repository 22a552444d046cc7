// The baseline: flash attention on an uncompressed BF16 cache, tuned as hard as the compressed
// path. The cache lies as that path would like it best: [session][kv_head][token][head_dim], keys
// and values apart, so that every thread reads long runs of memory.
//
// Thread-safety: none; Run uses all threads of its executor.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/executor.h"
#include "tests/bench/bf16_kernels.h"

namespace oscarkv::bench {

struct AttentionShape {
  std::int64_t context = 0;  // tokens of a session
  int batch = 1;             // sessions
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int queries = 1;  // query tokens of a session: the last tokens of its context, causal

  int group() const { return query_heads / kv_heads; }
  std::int64_t cache_elements() const { return batch * kv_heads * context * head_dim; }
  std::int64_t query_elements() const {
    return std::int64_t{1} * batch * queries * query_heads * head_dim;
  }
  std::int64_t bytes() const { return 4 * cache_elements(); }  // of keys and values
};

// Empty if the baseline can compute the shape, else why not.
const char* WhyUnsupported(const AttentionShape& shape);

class BF16Attention {
 public:
  // REQUIRES: WhyUnsupported(shape) is empty; the executor outlives this.
  BF16Attention(cpu::Executor& executor, const AttentionShape& shape, float scale,
                const BF16Kernels& kernels);

  // keys, values: bf16 [batch][kv_heads][context][head_dim], 64-byte aligned.
  // queries: bf16 [batch][queries][query_heads][head_dim]; outputs: likewise, fp32.
  void Run(const std::uint16_t* keys, const std::uint16_t* values, const std::uint16_t* queries,
           float* outputs);

 private:
  void Decode(const std::uint16_t* keys, const std::uint16_t* values, const std::uint16_t* queries,
              float* outputs);
  void MergeParts(std::int64_t head, float* outputs) const;
  void Prefill(const std::uint16_t* keys, const std::uint16_t* values, const std::uint16_t* queries,
               float* outputs);
  void PrefillTile(std::int64_t index, const std::uint16_t* keys, const std::uint16_t* values,
                   const std::uint16_t* queries, float* outputs) const;

  cpu::Executor& executor_;
  const AttentionShape shape_;
  const float scale_;  // times log2(e)
  const BF16Kernels kernels_;
  std::int64_t part_tokens_ = 0;  // decode: tokens of a unit of work
  std::int64_t parts_ = 0;        // units of a kv head
  std::vector<float> part_outputs_;
  std::vector<float> part_maxima_;
  std::vector<float> part_sums_;
};

}  // namespace oscarkv::bench
