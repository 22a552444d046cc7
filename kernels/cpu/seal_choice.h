// How much a candidate for a page's keys changes the attention of recent queries.
#pragma once

#include <cstdint>

#include "kernels/api/layer_spec.h"
#include "kernels/cpu/key_encoder.h"
#include "kernels/cpu/page_encoder.h"
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
  // `norms`: bf16 [kPageTokens], or null. REQUIRES: tokens.num_queries > 0.
  AttentionChange(const LayerSpec& spec, const HeadTokens& tokens, const std::uint16_t* norms);

  // Infinite if logits overflow.
  double Of(const CodedKeys& keys);

 private:
  // logits[num_queries][tokens, rounded up to kLogitsMultiple] of the first rows.
  void Logits(const TokenRows& rows, int tokens, float* logits);

  const int num_queries_;
  const int dim_;
  Scratch<float> queries_;        // [num_queries][dim], times scale
  Scratch<float> rotated_;        // likewise, rotated
  Scratch<float> along_;          // [num_queries]: of queries_ along the direction
  Scratch<float> norms_;          // [kPageTokens]
  Scratch<float> logits_;         // exact, of the page: [num_queries][kPageTokens]
  Scratch<float> probabilities_;  // likewise
  Scratch<ExpSum> context_;       // [num_queries], of the logits of the context
  Scratch<double> log_sum_exp_;   // of page and context
  Scratch<float> transposed_;     // scratch [dim][kLogitsMultiple]
  Scratch<float> scratch_;        // [num_queries][row of logits]
};

}  // namespace oscarkv::cpu
