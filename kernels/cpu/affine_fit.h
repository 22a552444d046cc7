// Affine quantization of groups of values: code c of b bits decodes to scale * c + zero.
//
// kMinMax: zero = min, scale = (max - min) / (2^b - 1), rounded to fp16, then codes are assigned.
//
// kVariance: start from the range shrunk about its centre to 0.75 (2 bits) or 0.95 (4 bits); twice:
// assign codes, refit scale and zero by least squares; then assign codes once more and set
// scale = stddev(x) / stddev(code), zero = mean(x) - scale * mean(code), rounded last. Least
// squares alone shrinks what it decodes, which flattens attention; matching the variance does not.
//
// A group without variance in its values or in its codes, or covariance of these, at any step, or
// whose scale is zero in fp16, ends with scale 0, zero = mean and codes 0.
//
// A code is (x - zero) / scale, rounded to nearest even, clamped; kVariance takes the quotient to
// within a few units in the last place.
#pragma once

#include <cstdint>

#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {

inline constexpr int kMaxGroup = 256;

// Sums over what was fitted, of which the root of a quotient is the relative error: each to within
// about 1e-6 of `squares`.
struct FitSums {
  double squares = 0;  // of x
  double errors = 0;   // of x less what its code decodes to, squared
};

// Fits each column of x[count][lanes] * factor as one group: params[lanes], codes[count][lanes].
// Keys: rows are tokens, columns channels. Values: rows are channels, columns tokens.
// Fixed order of operations, fp32; the same bits on every instruction set. REQUIRES: factor is a
// power of two; bits is 2 or 4; 1 <= count <= kMaxGroup; lanes is a multiple of kTileSide;
// |x * factor| < 2^16, see ScaleExponent; count * |x| is finite.
FitSums FitGroups(const float* x, float factor, int count, int lanes, int bits, Fit fit,
                  AffineFP16* params, std::uint8_t* codes);

}  // namespace oscarkv::cpu
