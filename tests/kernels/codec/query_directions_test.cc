#include "kernels/api/query_directions.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec/principal_axis.h"

namespace oscarkv {
namespace {

using Matrix = std::vector<double>;

double Rayleigh(const Matrix& a, const std::vector<double>& v) {
  const std::size_t n = v.size();
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) sum += v[i] * a[i * n + j] * v[j];
  }
  return sum;
}

// |a v - lambda v| for the unit vector v.
double EigenError(const Matrix& a, const std::vector<double>& v) {
  const std::size_t n = v.size();
  const double lambda = Rayleigh(a, v);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double row = -lambda * v[i];
    for (std::size_t j = 0; j < n; ++j) row += a[i * n + j] * v[j];
    squares += row * row;
  }
  return std::sqrt(squares);
}

// Q diag(eigenvalues) Q^T for a random orthogonal Q.
Matrix WithEigenvalues(const std::vector<double>& eigenvalues, unsigned seed) {
  const std::size_t n = eigenvalues.size();
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> q(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (double& x : q[i]) x = normal(random);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t k = 0; k < i; ++k) {
        double dot = 0;
        for (std::size_t j = 0; j < n; ++j) dot += q[i][j] * q[k][j];
        for (std::size_t j = 0; j < n; ++j) q[i][j] -= dot * q[k][j];
      }
    }
    double squares = 0;
    for (const double x : q[i]) squares += x * x;
    for (double& x : q[i]) x /= std::sqrt(squares);
  }
  Matrix a(n * n, 0.0);
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) a[i * n + j] += eigenvalues[k] * q[k][i] * q[k][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) a[j * n + i] = a[i * n + j];
  }
  return a;
}

void ExpectPrincipal(const Matrix& a, int n, double largest) {
  Matrix scratch = a;
  const std::vector<double> v = PrincipalAxis(scratch, n);
  double squares = 0;
  for (const double x : v) squares += x * x;
  EXPECT_NEAR(squares, 1, 1e-12);
  const double size = std::max(1e-300, std::abs(largest));
  EXPECT_NEAR(Rayleigh(a, v) / size, largest / size, 1e-12) << n;
  EXPECT_LE(EigenError(a, v) / size, 1e-11) << n;
}

TEST(PrincipalAxisTest, FindsTheLargestEigenvalue) {
  for (const int n : {1, 2, 3, 5, 32, 64, 128}) {
    std::vector<double> eigenvalues(n);
    for (int i = 0; i < n; ++i) eigenvalues[i] = 1 + i % 17;
    eigenvalues[n / 2] = 30;
    ExpectPrincipal(WithEigenvalues(eigenvalues, n), n, 30);
  }
}

TEST(PrincipalAxisTest, CloseAndEqualEigenvalues) {
  std::vector<double> eigenvalues(40, 1.0);
  ExpectPrincipal(WithEigenvalues(eigenvalues, 1), 40, 1);
  eigenvalues[7] = eigenvalues[8] = 2;
  ExpectPrincipal(WithEigenvalues(eigenvalues, 2), 40, 2);
  eigenvalues[7] = 2 + 1e-9;
  ExpectPrincipal(WithEigenvalues(eigenvalues, 3), 40, 2 + 1e-9);
}

TEST(PrincipalAxisTest, LowRankNegativeAndLargeMatrices) {
  std::vector<double> eigenvalues(24, 0.0);
  eigenvalues[3] = 5;
  ExpectPrincipal(WithEigenvalues(eigenvalues, 4), 24, 5);
  for (int i = 0; i < 24; ++i) eigenvalues[i] = -3 - i;
  const Matrix negative = WithEigenvalues(eigenvalues, 5);
  Matrix scratch = negative;
  EXPECT_NEAR(Rayleigh(negative, PrincipalAxis(scratch, 24)), -3, 1e-11);
  for (double& x : eigenvalues) x = 1e60 * (1 + std::abs(x));
  ExpectPrincipal(WithEigenvalues(eigenvalues, 6), 24, 1e60 * 27);
}

TEST(PrincipalAxisTest, SparseMatrices) {
  Matrix diagonal(36, 0.0);
  for (int i = 0; i < 6; ++i) diagonal[i * 7] = i == 4 ? 10 : i;
  ExpectPrincipal(diagonal, 6, 10);
  // An eigenvector with a sum of zero, which a start of ones would miss.
  ExpectPrincipal({2, -1, 0, -1, 2, 0, 0, 0, 1}, 3, 3);
  Matrix zero(16, 0.0);
  EXPECT_EQ(PrincipalAxis(zero, 4).size(), 4U);
}

struct Shape {
  int kv_heads, queries_per_head, dim, tokens;
};

class QueryDirectionsTest : public testing::TestWithParam<Shape> {
 protected:
  QueryDirectionsTest() {
    const Shape shape = GetParam();
    spec_.kv_heads = shape.kv_heads;
    spec_.query_heads = shape.kv_heads * shape.queries_per_head;
    spec_.key_dim = shape.dim;
    spec_.value_dim = shape.dim;
  }

  std::size_t Index(int token, int query_head, int c) const {
    return (static_cast<std::size_t>(token) * spec_.query_heads + query_head) * spec_.key_dim + c;
  }

  std::vector<std::uint16_t> RandomQueries() const {
    std::mt19937 random(spec_.key_dim + spec_.kv_heads);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> queries(Index(GetParam().tokens, 0, 0));
    for (auto& q : queries) q = ToBits16(spec_.storage, normal(random));
    return queries;
  }

  // The second moment of the queries of a kv head, from its definition.
  Matrix Moment(const std::vector<std::uint16_t>& queries, int head) const {
    const int dim = spec_.key_dim;
    Matrix m(static_cast<std::size_t>(dim) * dim, 0.0);
    for (int t = 0; t < GetParam().tokens; ++t) {
      for (int h = 0; h < spec_.query_heads; ++h) {
        if (h / spec_.queries_per_kv_head() != head) continue;
        for (int i = 0; i < dim; ++i) {
          for (int j = 0; j < dim; ++j) {
            m[i * dim + j] += double{FromBits16(spec_.storage, queries[Index(t, h, i)])} *
                              FromBits16(spec_.storage, queries[Index(t, h, j)]);
          }
        }
      }
    }
    return m;
  }

  LayerSpec spec_;
};

INSTANTIATE_TEST_SUITE_P(Shapes, QueryDirectionsTest,
                         testing::Values(Shape{1, 1, 64, 1}, Shape{2, 3, 64, 11},
                                         Shape{3, 1, 80, 200}, Shape{1, 16, 128, 2},
                                         Shape{2, 4, 96, 40}));

TEST_P(QueryDirectionsTest, AreFirstEigenvectorsOfTheSecondMoment) {
  const std::vector<std::uint16_t> queries = RandomQueries();
  const std::vector<float> directions =
      PrincipalDirections(spec_, queries.data(), GetParam().tokens);
  ASSERT_EQ(directions.size(), static_cast<std::size_t>(spec_.kv_heads) * spec_.key_dim);
  for (int head = 0; head < spec_.kv_heads; ++head) {
    const Matrix moment = Moment(queries, head);
    const auto first = directions.begin() + head * spec_.key_dim;
    const std::vector<double> u(first, first + spec_.key_dim);
    double squares = 0;
    double largest = 0;
    for (const double x : u) {
      squares += x * x;
      if (std::abs(x) > std::abs(largest)) largest = x;
    }
    EXPECT_NEAR(squares, 1, 1e-6);
    EXPECT_GT(largest, 0);
    EXPECT_LE(EigenError(moment, u) / Rayleigh(moment, u), 1e-6);
    // No other direction carries more: power iteration from here finds nothing above.
    Matrix scratch = moment;
    EXPECT_GE(Rayleigh(moment, u) * (1 + 1e-6),
              Rayleigh(moment, PrincipalAxis(scratch, spec_.key_dim)));
  }
}

TEST_P(QueryDirectionsTest, HeadsWithoutQueriesHaveNone) {
  std::vector<std::uint16_t> queries = RandomQueries();
  const int last = spec_.kv_heads - 1;
  for (int t = 0; t < GetParam().tokens; ++t) {
    for (int h = last * spec_.queries_per_kv_head(); h < spec_.query_heads; ++h) {
      for (int c = 0; c < spec_.key_dim; ++c) queries[Index(t, h, c)] = c % 2 == 0 ? 0 : 0x8000;
    }
  }
  const std::vector<float> directions =
      PrincipalDirections(spec_, queries.data(), GetParam().tokens);
  for (int c = 0; c < spec_.key_dim; ++c) EXPECT_EQ(directions[last * spec_.key_dim + c], 0);
}

TEST_P(QueryDirectionsTest, SizeDoesNotMatter) {
  const std::vector<std::uint16_t> queries = RandomQueries();
  const std::vector<float> expected = PrincipalDirections(spec_, queries.data(), GetParam().tokens);
  for (const int exponent : {-100, 120}) {
    std::vector<std::uint16_t> scaled;
    for (const std::uint16_t q : queries) {
      scaled.push_back(ToBF16(std::ldexp(FromBF16(q), exponent)));
    }
    const std::vector<float> directions =
        PrincipalDirections(spec_, scaled.data(), GetParam().tokens);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(directions[i], expected[i], 1e-5) << exponent;
    }
  }
}

}  // namespace
}  // namespace oscarkv
