// Attention of a recorded layer in float64, by its definition: what a compressed cache is compared
// with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/recording/recording.h"

namespace oscarkv {

// Of the query of one token.
struct ExactOutput {
  std::vector<double> output;       // [query_heads, value_dim]
  std::vector<double> log_sum_exp;  // [query_heads], natural, learned sinks included
};

// The layer's own queries at `positions`, each over the tokens up to its own and within the sliding
// window. Computed by as many threads as the machine has; the result does not depend on them.
// REQUIRES: 0 <= position < layer.tokens().
std::vector<ExactOutput> ExactAttention(const RecordedLayer& layer,
                                        std::span<const std::int64_t> positions);

}  // namespace oscarkv
