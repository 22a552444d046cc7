#include "kernels/codec/hadamard.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace oscarkv {
namespace {

constexpr int kDims[] = {64, 80, 96, 112, 128, 192, 256};

std::vector<float> Random(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

class HadamardTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Dims, HadamardTest, testing::ValuesIn(kDims));

TEST_P(HadamardTest, RowsAndColumnsAreOrthogonal) {
  const int dim = GetParam();
  std::vector<std::vector<int>> h(dim, std::vector<int>(dim));
  for (int a = 0; a < dim; ++a) {
    for (int b = 0; b < dim; ++b) ASSERT_EQ(std::abs(h[a][b] = HadamardSign(dim, a, b)), 1);
  }
  for (int a = 0; a < dim; ++a) {
    for (int b = 0; b < dim; ++b) {
      int rows = 0;
      int columns = 0;
      for (int i = 0; i < dim; ++i) {
        rows += h[a][i] * h[b][i];
        columns += h[i][a] * h[i][b];
      }
      ASSERT_EQ(rows, a == b ? dim : 0) << a << " " << b;
      ASSERT_EQ(columns, a == b ? dim : 0) << a << " " << b;
    }
  }
}

// H_m (x) H_2^k, with each factor found by its own definition.
TEST_P(HadamardTest, IsTheProductOfPaleyAndSylvester) {
  const int dim = GetParam();
  const int order = dim == 80 ? 20 : dim == 112 ? 28 : dim % 3 == 0 ? 12 : 1;
  const int run = dim / order;
  const auto character = [](int n, int q) {
    n = ((n % q) + q) % q;
    int power = n == 0 ? 0 : 1;  // Euler's criterion
    for (int i = 0; i < (q - 1) / 2; ++i) power = power * n % q;
    return power == q - 1 ? -1 : power;
  };
  const auto sylvester = [](int row, int column) {
    int sign = 1;
    for (; row > 0 && column > 0; row /= 2, column /= 2) {
      if (row % 2 == 1 && column % 2 == 1) sign = -sign;
    }
    return sign;
  };
  const auto paley = [&](int row, int column) {
    if (order == 1) return 1;
    if (order != 28) {
      const int q = order - 1;
      if (row == column) return 1;
      if (row == 0) return 1;
      if (column == 0) return -1;
      return character(row - column, q);
    }
    const int a = row / 2;
    const int b = column / 2;
    const bool both_odd = row % 2 == 1 && column % 2 == 1;
    if (a == b) return row % 2 == 0 && column % 2 == 0 ? 1 : -1;
    const int c = a == 0 || b == 0 ? 1 : character(a - b, 13);
    return both_odd ? -c : c;
  };
  for (int row = 0; row < dim; ++row) {
    for (int column = 0; column < dim; ++column) {
      ASSERT_EQ(HadamardSign(dim, row, column),
                paley(row / run, column / run) * sylvester(row % run, column % run))
          << row << " " << column;
    }
  }
}

TEST_P(HadamardTest, RotatesByTheMatrix) {
  const int dim = GetParam();
  const std::vector<float> x = Random(dim, 1);
  std::vector<float> rotated = x;
  Rotate(rotated.data(), dim);
  std::vector<float> back = x;
  RotateBack(back.data(), dim);
  for (int c = 0; c < dim; ++c) {
    double forth = 0;
    double transposed = 0;
    for (int r = 0; r < dim; ++r) {
      forth += HadamardSign(dim, r, c) * static_cast<double>(x[r]);
      transposed += HadamardSign(dim, c, r) * static_cast<double>(x[r]);
    }
    EXPECT_NEAR(rotated[c], forth / std::sqrt(dim), 1e-5);
    EXPECT_NEAR(back[c], transposed / std::sqrt(dim), 1e-5);
  }
}

TEST_P(HadamardTest, BackUndoesIt) {
  const int dim = GetParam();
  const std::vector<float> x = Random(dim, 2);
  std::vector<float> y = x;
  Rotate(y.data(), dim);
  RotateBack(y.data(), dim);
  for (int c = 0; c < dim; ++c) EXPECT_NEAR(y[c], x[c], 1e-5);
  // Orders 12 and 20 are not symmetric, so that a second rotation is not the way back.
  y = x;
  Rotate(y.data(), dim);
  Rotate(y.data(), dim);
  double distance = 0;
  for (int c = 0; c < dim; ++c) distance = std::max(distance, std::abs(double{y[c]} - x[c]));
  const bool symmetric = dim != 80 && dim != 96 && dim != 192;
  EXPECT_EQ(distance < 1e-4, symmetric) << distance;
}

TEST(HadamardDimsTest, Known) {
  int known = 0;
  for (int dim = -1; dim <= 512; ++dim) known += IsHeadDim(dim) ? 1 : 0;
  EXPECT_EQ(known, 7);
  for (const int dim : kDims) EXPECT_TRUE(IsHeadDim(dim));
}

}  // namespace
}  // namespace oscarkv
