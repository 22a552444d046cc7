// Omni-token scaling (OScaR, arXiv 2605.19660, section 3.3): the norm of a token's keys.
#pragma once

#include <cstdint>

namespace oscarkv {

// The root mean square of `count` values with that sum of squares, rounded to bf16; 1 if that is
// zero. Returns the bits of a bf16.
std::uint16_t TokenNorm(double sum_of_squares, std::int64_t count);

// The largest of norms[tokens] (bf16) over their median (the mean of the middle two).
// REQUIRES: tokens is even and > 0; norms are positive.
float NormImbalance(const std::uint16_t* norms, int tokens);

}  // namespace oscarkv
