#include "kernels/codec/hadamard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace oscarkv {
namespace {

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

// x (H_1 (x) H_2^k): butterflies within each run of `run` channels.
void Butterflies(float* x, int dim, int run) {
  for (int half = 1; half < run; half *= 2) {
    for (int begin = 0; begin < dim; begin += 2 * half) {
      for (int j = begin; j < begin + half; ++j) {
        const float sum = x[j] + x[j + half];
        x[j + half] = x[j] - x[j + half];
        x[j] = sum;
      }
    }
  }
}

// x (H_m (x) I), or with H_m transposed.
void MultiplyBase(const HadamardBase& base, bool transposed, float* x, int run) {
  float in[HadamardBase::kMaxOrder];
  for (int j = 0; j < run; ++j) {
    for (int row = 0; row < base.order; ++row) in[row] = x[row * run + j];
    for (int column = 0; column < base.order; ++column) {
      const auto sign_of = [&](int row) -> float {
        return transposed ? base.sign[column][row] : base.sign[row][column];
      };
      float sum = sign_of(0) * in[0];
      for (int row = 1; row < base.order; ++row) sum += sign_of(row) * in[row];
      x[column * run + j] = sum;
    }
  }
}

void Multiply(float* x, int dim, bool transposed) {
  const HadamardBase& base = HadamardBaseOf(dim);
  const int run = dim / base.order;
  Butterflies(x, dim, run);
  if (base.order > 1) MultiplyBase(base, transposed, x, run);
  const float factor = 1.0F / std::sqrt(static_cast<float>(dim));
  for (int c = 0; c < dim; ++c) x[c] *= factor;
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

void Rotate(float* x, int dim) { Multiply(x, dim, false); }
void RotateBack(float* x, int dim) { Multiply(x, dim, true); }

}  // namespace oscarkv
