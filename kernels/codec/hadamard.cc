#include "kernels/codec/hadamard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace oscarkv {
namespace {

constexpr int kLanes = 16;

// 1 if n is a nonzero square modulo the prime q, 0 if it is zero, else -1.
constexpr int QuadraticCharacter(int n, int q) {
  n = (n % q + q) % q;
  if (n == 0) return 0;
  for (int root = 1; root < q; ++root) {
    if (root * root % q == n) return 1;
  }
  return -1;
}

// The bordered matrix [[0, 1], [border, Q]] of order q + 1.
constexpr int Bordered(int row, int column, int q, int border) {
  if (row == 0) return column == 0 ? 0 : 1;
  return column == 0 ? border : QuadraticCharacter(row - column, q);
}

constexpr HadamardBase Trivial() {
  HadamardBase h;
  h.sign[0][0] = 1;
  return h;
}

// REQUIRES: q is a prime, 3 modulo 4.
constexpr HadamardBase PaleyOne(int q) {
  HadamardBase h;
  h.order = q + 1;
  for (int row = 0; row < h.order; ++row) {
    for (int column = 0; column < h.order; ++column) {
      h.sign[row][column] = row == column ? 1.0F : static_cast<float>(Bordered(row, column, q, -1));
    }
  }
  return h;
}

// REQUIRES: q is a prime, 1 modulo 4.
constexpr HadamardBase PaleyTwo(int q) {
  constexpr int kOfConference[2][2] = {{1, 1}, {1, -1}};
  constexpr int kOfIdentity[2][2] = {{1, -1}, {-1, -1}};
  HadamardBase h;
  h.order = 2 * (q + 1);
  for (int row = 0; row < h.order; ++row) {
    for (int column = 0; column < h.order; ++column) {
      const int conference = Bordered(row / 2, column / 2, q, 1);
      const int inner_row = row % 2;
      const int inner_column = column % 2;
      h.sign[row][column] = static_cast<float>(
          row / 2 == column / 2 ? kOfIdentity[inner_row][inner_column]
                                : conference * kOfConference[inner_row][inner_column]);
    }
  }
  return h;
}

constexpr HadamardBase kH1 = Trivial();
constexpr HadamardBase kH12 = PaleyOne(11);
constexpr HadamardBase kH20 = PaleyOne(19);
constexpr HadamardBase kH28 = PaleyTwo(13);

// The functions below work on x[dim][lanes], rows `stride` apart.

// x (H_1 (x) H_2^k): butterflies within each run of `run` channels.
template <int lanes>
void Butterflies(float* x, int dim, int run, std::ptrdiff_t stride) {
  for (int half = 1; half < run; half *= 2) {
    for (int begin = 0; begin < dim; begin += 2 * half) {
      for (int j = begin; j < begin + half; ++j) {
        float* a = x + j * stride;
        float* b = a + half * stride;
        for (int lane = 0; lane < lanes; ++lane) {
          const float sum = a[lane] + b[lane];
          b[lane] = a[lane] - b[lane];
          a[lane] = sum;
        }
      }
    }
  }
}

// x (H_m (x) I), or with H_m transposed.
template <int lanes>
void MultiplyBase(const HadamardBase& base, bool transposed, float* x, int run,
                  std::ptrdiff_t stride) {
  float in[HadamardBase::kMaxOrder][lanes];
  for (int j = 0; j < run; ++j) {
    for (int row = 0; row < base.order; ++row) {
      std::copy_n(x + (row * run + j) * stride, lanes, in[row]);
    }
    for (int column = 0; column < base.order; ++column) {
      const auto sign_of = [&](int row) -> float {
        return transposed ? base.sign[column][row] : base.sign[row][column];
      };
      float sum[lanes];
      for (int lane = 0; lane < lanes; ++lane) sum[lane] = sign_of(0) * in[0][lane];
      for (int row = 1; row < base.order; ++row) {
        const float sign = sign_of(row);
        for (int lane = 0; lane < lanes; ++lane) sum[lane] += sign * in[row][lane];
      }
      std::copy_n(sum, lanes, x + (column * run + j) * stride);
    }
  }
}

template <int lanes>
void Multiply(float* x, int dim, std::ptrdiff_t stride, bool transposed) {
  const HadamardBase& base = HadamardBaseOf(dim);
  const int run = dim / base.order;
  Butterflies<lanes>(x, dim, run, stride);
  if (base.order > 1) MultiplyBase<lanes>(base, transposed, x, run, stride);
  const float factor = 1.0F / std::sqrt(static_cast<float>(dim));
  for (int row = 0; row < dim; ++row) {
    for (int lane = 0; lane < lanes; ++lane) x[row * stride + lane] *= factor;
  }
}

void MultiplyColumns(float* x, int dim, int columns, bool transposed) {
  // Copied, since rows a power of two apart would share few sets of the cache.
  float block[kMaxHeadDim][kLanes];
  int column = 0;
  for (; column + kLanes <= columns; column += kLanes) {
    for (int row = 0; row < dim; ++row) {
      std::copy_n(x + static_cast<std::ptrdiff_t>(row) * columns + column, kLanes, block[row]);
    }
    Multiply<kLanes>(&block[0][0], dim, kLanes, transposed);
    for (int row = 0; row < dim; ++row) {
      std::copy_n(block[row], kLanes, x + static_cast<std::ptrdiff_t>(row) * columns + column);
    }
  }
  for (; column < columns; ++column) Multiply<1>(x + column, dim, columns, transposed);
}

void MultiplyRows(float* x, int rows, int dim, bool transposed) {
  float block[kMaxHeadDim][kLanes];
  int row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    float* const tile = x + static_cast<std::ptrdiff_t>(row) * dim;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int c = 0; c < dim; ++c) block[c][lane] = tile[lane * dim + c];
    }
    Multiply<kLanes>(&block[0][0], dim, kLanes, transposed);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int c = 0; c < dim; ++c) tile[lane * dim + c] = block[c][lane];
    }
  }
  for (; row < rows; ++row) {
    Multiply<1>(x + static_cast<std::ptrdiff_t>(row) * dim, dim, 1, transposed);
  }
}

}  // namespace

const HadamardBase& HadamardBaseOf(int dim) {
  switch (dim) {
    case 96:
    case 192:
      return kH12;
    case 80:
      return kH20;
    case 112:
      return kH28;
    default:
      return kH1;
  }
}

bool IsHeadDim(int dim) {
  return std::find(kHeadDims.begin(), kHeadDims.end(), dim) != kHeadDims.end();
}

int HadamardSign(int dim, int row, int column) {
  const HadamardBase& base = HadamardBaseOf(dim);
  const int run = dim / base.order;
  const auto common = static_cast<unsigned>((row % run) & (column % run));
  const int sylvester = std::popcount(common) % 2 == 0 ? 1 : -1;
  return sylvester * static_cast<int>(base.sign[row / run][column / run]);
}

void Rotate(float* x, int dim) { Multiply<1>(x, dim, 1, false); }
void RotateBack(float* x, int dim) { Multiply<1>(x, dim, 1, true); }

void RotateRows(float* x, int rows, int dim) { MultiplyRows(x, rows, dim, false); }
void RotateRowsBack(float* x, int rows, int dim) { MultiplyRows(x, rows, dim, true); }

void RotateColumns(float* x, int dim, int columns) { MultiplyColumns(x, dim, columns, false); }
void RotateColumnsBack(float* x, int dim, int columns) { MultiplyColumns(x, dim, columns, true); }

}  // namespace oscarkv
