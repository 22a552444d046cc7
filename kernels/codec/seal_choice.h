// How much a candidate for a page's keys changes the attention of recent queries.
#pragma once

#include <vector>

namespace oscarkv {

// Measures candidates for the keys of one page and kv head: the sum over queries of the square root
// of the KL divergence from the exact attention to the candidate's, softmax over the page and its
// context, unmasked, with scale, without soft cap and sinks. (A plain sum follows single queries
// and chose worse.)
//
// Thread-compatible. Invariant: everything but scratch is fixed once constructed.
class AttentionChange {
 public:
  // keys[page_tokens][dim], context[context_tokens][dim], queries[num_queries][dim].
  // REQUIRES: num_queries > 0, page_tokens > 0.
  AttentionChange(const float* keys, int page_tokens, const float* context, int context_tokens,
                  const float* queries, int num_queries, int dim, float scale);

  // Of decoded[page_tokens][dim]; infinite if logits overflow.
  double Of(const float* decoded);

 private:
  int page_tokens_;
  int num_queries_;
  int dim_;
  std::vector<float> queries_;        // [num_queries][dim], times scale
  std::vector<float> logits_;         // exact, of the page: [num_queries][page_tokens]
  std::vector<float> probabilities_;  // likewise
  std::vector<float> context_max_;    // [num_queries], -inf without context
  std::vector<double> context_sum_;   // of exp(logit - context_max_)
  std::vector<double> log_sum_exp_;   // of page and context
  std::vector<float> transposed_;     // scratch [dim][page_tokens]
  std::vector<float> scratch_;        // [num_queries][page_tokens]
};

}  // namespace oscarkv
