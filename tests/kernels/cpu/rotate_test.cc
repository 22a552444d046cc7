// Rotations on every instruction set, against the matrices and the portable codec, to the bit.
#include "kernels/cpu/rotate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/codec/hadamard.h"
#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

using ::oscarkv::testing::ForEachTarget;
using ::oscarkv::testing::Random;

std::vector<float> RandomRows(Random& random, int rows, int dim) {
  std::vector<float> x(static_cast<std::size_t>(rows) * dim);
  for (float& value : x) value = random.Normal();
  return x;
}

TEST(Rotate, MultipliesByTheMatrix) {
  ForEachTarget([] {
    Random random(1);
    for (const int dim : kHeadDims) {
      for (const bool back : {false, true}) {
        SCOPED_TRACE(::testing::Message() << dim << " back " << back);
        const std::vector<float> x = RandomRows(random, 5, dim);
        std::vector<float> y = x;
        (back ? RotateRowsBack : RotateRows)(y.data(), 5, dim);
        for (int row = 0; row < 5; ++row) {
          for (int column = 0; column < dim; ++column) {
            double sum = 0;
            for (int c = 0; c < dim; ++c) {
              const int sign = back ? HadamardSign(dim, column, c) : HadamardSign(dim, c, column);
              sum += sign * static_cast<double>(x[row * dim + c]);
            }
            ASSERT_NEAR(y[row * dim + column], sum / std::sqrt(dim), 2e-6);
          }
        }
      }
    }
  });
}

// However many rows there are, each has the bits that it has alone, as in the definition.
TEST(Rotate, AddsInTheOrderOfTheDefinition) {
  ForEachTarget([] {
    Random random(2);
    for (const int dim : kHeadDims) {
      for (const int rows : {0, 1, 3, 4, 15, 16, 17, 38, 128}) {
        for (const bool back : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dim << " x " << rows << " back " << back);
          std::vector<float> expected = RandomRows(random, rows + 1, dim);
          std::vector<float> x = expected;
          for (int row = 0; row < rows; ++row) {
            (back ? ::oscarkv::RotateBack : ::oscarkv::Rotate)(&expected[row * dim], dim);
          }
          (back ? RotateRowsBack : RotateRows)(x.data(), rows, dim);
          ASSERT_EQ(std::memcmp(x.data(), expected.data(), x.size() * sizeof(float)), 0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace oscarkv::cpu
