// How much a candidate for a page's keys changes the attention of recent queries.
#pragma once

#include "kernels/cpu/scratch.h"

namespace oscarkv::cpu {

inline constexpr int kLogitsMultiple = 32;  // rows of logits are padded to a multiple of it

// sum * exp(max): a sum of exponentials that cannot overflow.
struct ExpSum {
  float max;
  float sum;
};

// Measures candidates for the keys of one page and kv head: the sum over queries of the square root
// of the KL divergence from the exact attention to the candidate's, softmax over the page and its
// context, unmasked, with scale, without soft cap and sinks. (A plain sum follows single queries
// and chose worse.)
//
// Thread-compatible. Invariant: everything but scratch is fixed once constructed.
class AttentionChange {
 public:
  // keys[page_tokens][dim], context[context_tokens][dim], queries[num_queries][dim].
  // REQUIRES: num_queries > 0; page_tokens > 0 and dim
  // are multiples of 16.
  AttentionChange(const float* keys, int page_tokens, const float* context, int context_tokens,
                  const float* queries, int num_queries, int dim, float scale);

  // Of decoded[page_tokens][dim]; infinite if logits overflow.
  double Of(const float* decoded);

 private:
  // logits[num_queries][tokens, rounded up to whole vectors] of keys[tokens][dim].
  void Logits(const float* keys, int tokens, float* logits);

  int page_tokens_;
  int row_;  // floats of a row of logits of the page
  int num_queries_;
  int dim_;
  Scratch<float> queries_;        // [num_queries][dim], times scale
  Scratch<float> logits_;         // exact, of the page: [num_queries][row_]
  Scratch<float> probabilities_;  // likewise
  Scratch<ExpSum> context_;       // [num_queries], of the logits of the context
  Scratch<double> log_sum_exp_;   // of page and context
  Scratch<float> transposed_;     // scratch [dim][kLogitsMultiple]
  Scratch<float> scratch_;        // [num_queries][row of logits]
};

}  // namespace oscarkv::cpu
