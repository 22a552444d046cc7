// Canalized rotation (OScaR, arXiv 2605.19660, section 3.2): x' = x H, with H the normalized
// Hadamard matrix of order dim = m * 2^k, m one of 1, 12, 20, 28:
//
//   H = (H_m (x) H_2^k) / sqrt(dim),  channel = m_index * 2^k + j.
//
// H_2^k is Sylvester's. H_12 and H_20 are Paley's first construction over q = 11 and 19,
// I + [[0, 1], [-1, Q]]; H_28 is his second over q = 13,
// C (x) [[1, 1], [1, -1]] + I (x) [[1, -1], [-1, -1]] with C = [[0, 1], [1, Q]];
// Q[a][b] is the quadratic character of a - b. H_12 and H_20 are not symmetric.
//
// Every function does the same additions in the same order, so that all backends and all batch
// sizes agree to the bit: butterflies (a + b, a - b) over j with strides 1, 2, 4, ..., then the
// m x m step as ((+-x_0 +- x_1) +- x_2) ..., then one multiplication by 1 / sqrt(dim), all in fp32.
#pragma once

#include <array>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

inline constexpr int kMaxHeadDim = kHeadDims.back();

// Whether `dim` is one of kHeadDims.
bool IsHeadDim(int dim);

// H_m with entries 1 and -1, which multiply exactly.
struct HadamardBase {
  static constexpr int kMaxOrder = 28;
  int order = 1;
  std::array<std::array<float, kMaxOrder>, kMaxOrder> sign = {};  // [row][column]
};

// H_m of heads of `dim` channels. REQUIRES here and below: IsHeadDim(dim).
const HadamardBase& HadamardBaseOf(int dim);

// H[row][column] * sqrt(dim): 1 or -1.
int HadamardSign(int dim, int row, int column);

// x[dim] = x H, in place.
void Rotate(float* x, int dim);
// x[dim] = x H^T, in place: undoes Rotate.
void RotateBack(float* x, int dim);

}  // namespace oscarkv
