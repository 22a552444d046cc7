#include "kernels/api/query_directions.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/codec/principal_axis.h"
#include "kernels/codec/scaled.h"

namespace oscarkv {
namespace {

// [rows][dim]: the queries of one kv head's query heads, times a power of two that keeps their
// squares in range; all zero if they are.
std::vector<double> QueriesOfHead(const LayerSpec& spec, const std::uint16_t* queries,
                                  int num_queries, int head) {
  const int dim = spec.key_dim;
  const int heads = spec.queries_per_kv_head();
  const std::size_t per_token = static_cast<std::size_t>(heads) * dim;
  std::vector<float> rows(num_queries * per_token);
  for (int i = 0; i < num_queries; ++i) {
    const std::size_t from = static_cast<std::size_t>(i) * spec.query_heads * dim;
    ToFloats(spec.storage, queries + from + head * per_token, per_token, &rows[i * per_token]);
  }
  const int exponent = ScaleExponent(LargestMagnitude(rows.data(), std::ssize(rows)));
  std::vector<double> scaled(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    scaled[i] = std::ldexp(static_cast<double>(rows[i]), -exponent);
  }
  return scaled;
}

// a[i][j] = the product of rows i and j of x[n][m].
std::vector<double> Gram(const std::vector<double>& x, int n, int m) {
  std::vector<double> a(static_cast<std::size_t>(n) * n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      const double* const row_i = &x[static_cast<std::size_t>(i) * m];
      const double* const row_j = &x[static_cast<std::size_t>(j) * m];
      double sum = 0;
      for (int c = 0; c < m; ++c) sum += row_i[c] * row_j[c];
      a[static_cast<std::size_t>(i) * n + j] = sum;
      a[static_cast<std::size_t>(j) * n + i] = sum;
    }
  }
  return a;
}

std::vector<double> Transposed(const std::vector<double>& x, int n, int m) {
  std::vector<double> y(x.size());
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < m; ++c) {
      y[static_cast<std::size_t>(c) * n + i] = x[static_cast<std::size_t>(i) * m + c];
    }
  }
  return y;
}

// The first eigenvector of x^T x for x[rows][dim], not normalized. Fewer rows than columns: from
// the eigenvector y of the smaller x x^T, as x^T y.
std::vector<double> LeadingDirection(const std::vector<double>& x, int rows, int dim) {
  if (rows >= dim) {
    std::vector<double> moment = Gram(Transposed(x, rows, dim), dim, rows);
    return PrincipalAxis(moment, dim);
  }
  std::vector<double> gram = Gram(x, rows, dim);
  const std::vector<double> y = PrincipalAxis(gram, rows);
  std::vector<double> direction(dim, 0.0);
  for (int i = 0; i < rows; ++i) {
    for (int c = 0; c < dim; ++c) direction[c] += y[i] * x[static_cast<std::size_t>(i) * dim + c];
  }
  return direction;
}

// Writes the unit vector along `direction` whose largest component (the first of equals) is
// positive.
void WriteUnit(const std::vector<double>& direction, float* out) {
  double squares = 0;
  double largest = 0;
  for (const double value : direction) {
    squares += value * value;
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  const double factor = std::copysign(1 / std::sqrt(squares), largest);
  for (std::size_t c = 0; c < direction.size(); ++c) {
    out[c] = static_cast<float>(direction[c] * factor);
  }
}

}  // namespace

std::vector<float> PrincipalDirections(const LayerSpec& spec, const std::uint16_t* queries,
                                       int num_queries) {
  const int dim = spec.key_dim;
  std::vector<float> directions(static_cast<std::size_t>(spec.kv_heads) * dim, 0.0F);
  for (int head = 0; head < spec.kv_heads; ++head) {
    const std::vector<double> x = QueriesOfHead(spec, queries, num_queries, head);
    if (std::all_of(x.begin(), x.end(), [](double value) { return value == 0; })) continue;
    WriteUnit(LeadingDirection(x, num_queries * spec.queries_per_kv_head(), dim),
              &directions[static_cast<std::size_t>(head) * dim]);
  }
  return directions;
}

}  // namespace oscarkv
