// Rotation by Hadamard matrices (kernels/codec/hadamard.h), for code that is compiled once per
// instruction set: of columns, where vectors hold one channel of several tokens, and of rows, where
// they hold several channels of one token or query.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_ROTATE_INL_H_
#undef OSCARKV_KERNELS_CPU_ROTATE_INL_H_
#else
#define OSCARKV_KERNELS_CPU_ROTATE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/codec/hadamard.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Leaves numbers as they are.
struct AsTheyAre {
  HWY_INLINE VF operator()(VF x) const { return x; }
};

// Butterflies with the strides `stride`, 2 * stride, ... below radix * stride, on what `first`
// makes of x[rows][width]; then multiplied by `factor`, if that is not 1. REQUIRES: width is a
// multiple of kLanes.
template <int radix, int width, class First>
HWY_INLINE void Butterflies(float* x, int rows, int stride, float factor, const First& first) {
  const F32 d;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(stride) * width;
  for (int begin = 0; begin < rows; begin += radix * stride) {
    float* const block = x + static_cast<std::ptrdiff_t>(begin) * width;
    for (std::ptrdiff_t at = 0; at < row; at += kLanes) {
      VF v[radix];
      for (int i = 0; i < radix; ++i) v[i] = first(hn::LoadU(d, block + i * row + at));
      for (int step = 1; step < radix; step *= 2) {
        for (int i = 0; i < radix; ++i) {
          if ((i & step) != 0) continue;
          const VF sum = hn::Add(v[i], v[i + step]);
          v[i + step] = hn::Sub(v[i], v[i + step]);
          v[i] = sum;
        }
      }
      if (factor != 1) {
        for (VF& value : v) value = hn::Mul(value, hn::Set(d, factor));
      }
      for (int i = 0; i < radix; ++i) hn::StoreU(v[i], d, block + i * row + at);
    }
  }
}

// x (I (x) H_run) on what `first` makes of x[rows][width]. REQUIRES: run is a power of two > 1.
template <int width, class First = AsTheyAre>
HWY_INLINE void MultiplySylvester(float* x, int rows, int run, float factor,
                                  const First& first = {}) {
  const auto step = [&](int stride, const auto& before) HWY_ATTR {
    const int left = run / stride;
    const float last = left <= 8 ? factor : 1.0F;
    if (left >= 8) {
      Butterflies<8, width>(x, rows, stride, last, before);
      return 8 * stride;
    }
    if (left == 4) {
      Butterflies<4, width>(x, rows, stride, last, before);
    } else {
      Butterflies<2, width>(x, rows, stride, last, before);
    }
    return run;
  };
  for (int stride = step(1, first); stride < run;) stride = step(stride, AsTheyAre());
}

// Butterflies between the lanes of a vector, with the strides 1, 2, ... kLanes / 2: 1 and -1
// multiply exactly, so that each is one addition.
class LaneButterflies {
 public:
  HWY_INLINE LaneButterflies() {
    const auto lane = hn::Iota(I32(), 0);
    for (int i = 0; i < kSigns; ++i) {
      const auto second = hn::Ne(hn::And(lane, hn::Set(I32(), 1 << i)), hn::Zero(I32()));
      sign_[i] =
          hn::IfThenElse(hn::RebindMask(F32(), second), hn::Set(F32(), -1), hn::Set(F32(), 1));
    }
  }

  HWY_INLINE VF operator()(VF x) const {
#if HWY_TARGET != HWY_SCALAR
    x = FusedMulAdd(x, sign_[0], hn::Shuffle2301(x));
    x = FusedMulAdd(x, sign_[1], hn::Shuffle1032(x));
    if constexpr (kLanes > 4) x = FusedMulAdd(x, sign_[2], hn::SwapAdjacentBlocks(x));
    if constexpr (kLanes > 8) x = FusedMulAdd(x, sign_[3], hn::ConcatLowerUpper(F32(), x, x));
#endif
    return x;
  }

 private:
  static constexpr int kSigns = kLanes == 1 ? 1 : std::bit_width(static_cast<unsigned>(kLanes)) - 1;
  VF sign_[kSigns];
};

// x (H_m (x) I) on x[dim][kGroup], or with H_m transposed; then times `factor`.
inline void MultiplyBase(const HadamardBase& base, bool transposed, float* x, int run,
                         float factor) {
  const F32 d;
  constexpr int kColumns = 4;  // at once: sums of their own; orders are multiples of 4
  HWY_ALIGN float in[HadamardBase::kMaxOrder][kLanes];
  const auto sign_of = [&](int row, int column) {
    return transposed ? base.sign[column][row] : base.sign[row][column];
  };
  for (std::ptrdiff_t at = 0; at < static_cast<std::ptrdiff_t>(run) * kGroup; at += kLanes) {
    const auto row_of = [&](int row) {
      return x + static_cast<std::ptrdiff_t>(row) * run * kGroup + at;
    };
    for (int row = 0; row < base.order; ++row) {
      std::memcpy(in[row], row_of(row), sizeof(in[row]));
    }
    for (int column = 0; column < base.order; column += kColumns) {
      VF sum[kColumns];
      for (int i = 0; i < kColumns; ++i) {
        sum[i] = hn::Mul(hn::Set(d, sign_of(0, column + i)), hn::Load(d, in[0]));
      }
      for (int row = 1; row < base.order; ++row) {
        const VF value = hn::Load(d, in[row]);
        for (int i = 0; i < kColumns; ++i) {
          sum[i] = hn::Add(sum[i], hn::Mul(hn::Set(d, sign_of(row, column + i)), value));
        }
      }
      for (int i = 0; i < kColumns; ++i) {
        hn::Store(hn::Mul(sum[i], hn::Set(d, factor)), d, row_of(column + i));
      }
    }
  }
}

// Each of the columns of x[dim][kGroup] times H, or times its transpose (`back`), in place.
// REQUIRES: x is aligned.
inline void RotateGroup(float* x, int dim, bool back) {
  const HadamardBase& base = HadamardBaseOf(dim);
  const int run = dim / base.order;
  const float factor = 1.0F / std::sqrt(static_cast<float>(dim));
  if (base.order == 1) return MultiplySylvester<kGroup>(x, dim, run, factor);
  MultiplySylvester<kGroup>(x, dim, run, 1);
  MultiplyBase(base, back, x, run, factor);
}

// Each row of x[rows][dim] times H, which is its own transpose, in place. REQUIRES: dim is a power
// of two.
inline void RotateSylvesterRows(float* x, int rows, int dim) {
  const float factor = 1.0F / std::sqrt(static_cast<float>(dim));
  const LaneButterflies in_vectors;
  const int vectors = dim / kLanes;
  for (int row = 0; row < rows; ++row, x += dim) {
    MultiplySylvester<kLanes>(x, vectors, vectors, factor, in_vectors);
  }
}

// Each row of x[rows][dim] times H, or times its transpose, in place.
inline void RotateRowsOf(float* x, int rows, int dim, bool back) {
  if (HadamardBaseOf(dim).order == 1) return RotateSylvesterRows(x, rows, dim);
  HWY_ALIGN float group[kMaxHeadDim * kGroup];
  for (int row = 0; row < rows; row += kGroup) {
    const int count = std::min(kGroup, rows - row);
    const int whole = count / 4 * 4;  // rows that are transposed by fours
    float* const first = x + static_cast<std::ptrdiff_t>(row) * dim;
    if (count < kGroup) std::memset(group, 0, sizeof(float) * dim * kGroup);
    Transpose({first, dim}, whole, dim, {group, kGroup});
    for (int i = whole; i < count; ++i) {
      for (int c = 0; c < dim; ++c) group[c * kGroup + i] = first[i * dim + c];
    }
    RotateGroup(group, dim, back);
    Transpose({group, kGroup}, dim, whole, {first, dim});
    for (int i = whole; i < count; ++i) {
      for (int c = 0; c < dim; ++c) first[i * dim + c] = group[c * kGroup + i];
    }
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
