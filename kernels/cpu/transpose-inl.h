// Transposing blocks of floats, for code that is compiled once per instruction set.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_TRANSPOSE_INL_H_
#undef OSCARKV_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define OSCARKV_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Rows of a matrix, `stride` floats apart; any alignment.
template <class T>
struct MatrixRows {
  T* first;
  std::ptrdiff_t stride;
  HWY_INLINE T* operator[](int row) const { return first + row * stride; }
  HWY_INLINE MatrixRows At(int row, int column) const {
    return {first + row * stride + column, stride};
  }
};

#if HWY_TARGET != HWY_SCALAR
// The rows of a 4 x 4 block become its columns. V: a vector of four lanes of 32 bits.
template <class D, class V>
HWY_INLINE void TransposeVectors(D d, V& a, V& b, V& c, V& e) {
  const V ab_low = hn::InterleaveLower(d, a, b);  // a0 b0 a1 b1
  const V ab_high = hn::InterleaveUpper(d, a, b);
  const V ce_low = hn::InterleaveLower(d, c, e);
  const V ce_high = hn::InterleaveUpper(d, c, e);
  a = hn::ConcatLowerLower(d, ce_low, ab_low);
  b = hn::ConcatUpperUpper(d, ce_low, ab_low);
  c = hn::ConcatLowerLower(d, ce_high, ab_high);
  e = hn::ConcatUpperUpper(d, ce_high, ab_high);
}
#endif

// to[column][row] = from[row][column] for a 4 x 4 block.
HWY_INLINE void TransposeFour(MatrixRows<const float> from, MatrixRows<float> to) {
#if HWY_TARGET == HWY_SCALAR
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 4; ++column) to[column][row] = from[row][column];
  }
#else
  const hn::FixedTag<float, 4> d;
  auto a = hn::LoadU(d, from[0]);
  auto b = hn::LoadU(d, from[1]);
  auto c = hn::LoadU(d, from[2]);
  auto e = hn::LoadU(d, from[3]);
  TransposeVectors(d, a, b, c, e);
  hn::StoreU(a, d, to[0]);
  hn::StoreU(b, d, to[1]);
  hn::StoreU(c, d, to[2]);
  hn::StoreU(e, d, to[3]);
#endif
}

// to[columns][rows] = the transpose of from[rows][columns]. REQUIRES: both are multiples of 4.
HWY_INLINE void Transpose(MatrixRows<const float> from, int rows, int columns,
                          MatrixRows<float> to) {
  constexpr int kBlock = 16;  // rows at a time: rows far apart would share few sets of the cache
  for (int begin = 0; begin < rows; begin += kBlock) {
    const int end = begin + kBlock < rows ? begin + kBlock : rows;
    for (int column = 0; column < columns; column += 4) {
      for (int row = begin; row < end; row += 4) {
        TransposeFour(from.At(row, column), to.At(column, row));
      }
    }
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
