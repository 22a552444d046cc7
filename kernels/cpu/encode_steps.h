// The steps of encoding a kv head of a page, but for fits and rotations, at the speed of the
// processor. Sums run in an order of their own, so that the bits are the same on every instruction
// set. Thread-safe: free functions on the memory they are given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace oscarkv::cpu {

// out[count] = the 16-bit numbers at `from`. REQUIRES: count is a multiple of 16.
void Widen(DType storage, const void* from, std::size_t count, float* out);

// sums[t] = the sum over c of x[t][c]^2, in double, for x[tokens][dim].
// REQUIRES here and below: dim is a multiple of 8.
void SumSquares(const float* x, int tokens, int dim, double* sums);

// out[t] = x[t] / norms[t] (bf16; null: no norms) for rows of `dim`.
void DivideByNorms(const float* x, const std::uint16_t* norms, int tokens, int dim, float* out);

// Brings the largest magnitude of x into [2^8, 2^9) by a power of two (smaller only where the
// exponent would leave [-126, 127]) and adds it to `exponent`: x * 2^exponent stays what it is.
// All zero: unchanged.
void Rescale(float* x, std::size_t count, int& exponent);

// out[dim][tokens] = x[tokens][dim], transposed. REQUIRES: both are multiples of 16.
void TransposeRows(const float* x, int tokens, int dim, float* out);

// Each column of x[dim][columns] times H (kernels/codec/hadamard.h), in place.
// REQUIRES: columns is a multiple of 16.
void RotateColumns(float* x, int dim, int columns);

// keys[tokens][dim], once they are scale * code + zero, as DecodeKeys (kernels/cpu/page_decode.h)
// has them but for the residual: rotated back if they are rotated, times `factor`, times norms.
void RestoreKeys(bool rotated, float factor, const std::uint16_t* norms, int tokens, int dim,
                 float* keys);

// c[t] = u . (keys[t] - decoded[t]) in double, for keys and decoded [tokens][dim].
void ProjectErrors(const float* keys, const float* decoded, const float* direction, int tokens,
                   int dim, double* c);

// keys[t] += (step * codes[t]) * direction, for keys[tokens][dim].
void AddResiduals(const std::int8_t* codes, float step, const float* direction, int tokens, int dim,
                  float* keys);

// |x - decoded| / |x|, 0 if x is zero. REQUIRES: count is a multiple of 8.
float RelativeError(const float* x, const float* decoded, std::size_t count);

}  // namespace oscarkv::cpu
