#include "kernels/codec/principal_axis.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace oscarkv {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

struct Tridiagonal {
  std::vector<double> diagonal;  // [n]
  std::vector<double> off;       // [n], off[i] couples i and i + 1; the last is 0

  int size() const { return static_cast<int>(diagonal.size()); }
};

double Dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns x[n] into the unit vector v whose reflection I - 2 v v^T takes x to (result, 0, ..., 0);
// v is zero, the reflection none, if there is nothing to take away.
double MakeReflection(double* x, int n) {
  const double first = x[0];
  const double rest = Dot(x + 1, x + 1, n - 1);
  if (rest == 0) {
    std::fill_n(x, n, 0.0);
    return first;
  }
  const double result = -std::copysign(std::sqrt(first * first + rest), first);
  x[0] = first - result;
  const double norm = std::sqrt(x[0] * x[0] + rest);
  for (int i = 0; i < n; ++i) x[i] /= norm;
  return result;
}

// Reduces a[n][n]; row k keeps, from column k + 1 on, the unit vector of the k-th reflection.
Tridiagonal Reduce(std::vector<double>& a, int n) {
  Tridiagonal t = {std::vector<double>(n), std::vector<double>(n, 0.0)};
  std::vector<double> w(n);
  for (int k = 0; k < n; ++k) {
    double* const row = &a[static_cast<std::size_t>(k) * n];
    t.diagonal[k] = row[k];
    if (k + 1 == n) break;
    const int m = n - k - 1;
    double* const v = row + k + 1;
    t.off[k] = MakeReflection(v, m);
    // B - v w^T - w v^T with w = 2 B v - 2 (v^T B v) v, for the trailing block B.
    for (int i = 0; i < m; ++i) {
      w[i] = 2 * Dot(&a[static_cast<std::size_t>(k + 1 + i) * n + k + 1], v, m);
    }
    const double along = Dot(w.data(), v, m);
    for (int i = 0; i < m; ++i) w[i] -= along * v[i];
    for (int i = 0; i < m; ++i) {
      double* const b = &a[static_cast<std::size_t>(k + 1 + i) * n + k + 1];
      for (int j = 0; j < m; ++j) b[j] -= v[i] * w[j] + w[i] * v[j];
    }
  }
  return t;
}

// Whether every eigenvalue is below x: the pivots of t - x are all negative.
bool AllBelow(const Tridiagonal& t, double x, double smallest) {
  double pivot = -1;
  for (int i = 0; i < t.size(); ++i) {
    const double coupling = i == 0 ? 0.0 : t.off[i - 1] * t.off[i - 1];
    pivot = t.diagonal[i] - x - coupling / pivot;
    if (pivot >= 0) return false;
    pivot = std::min(pivot, -smallest);
  }
  return true;
}

double LargestEigenvalue(const Tridiagonal& t, double bound) {
  double low = -bound;
  double high = bound;
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (AllBelow(t, middle, kEpsilon * kEpsilon * bound) ? high : low) = middle;
  }
}

// x = (t - lambda)^-1 x by elimination with row exchanges; vanishing pivots become `smallest`.
void SolveShifted(const Tridiagonal& t, double lambda, double smallest, std::vector<double>& x) {
  const int n = t.size();
  std::vector<double> d(n);
  std::vector<double> u(n, 0.0);   // right of the diagonal
  std::vector<double> uu(n, 0.0);  // one further, filled in by exchanges
  for (int i = 0; i < n; ++i) d[i] = t.diagonal[i] - lambda;
  std::copy(t.off.begin(), t.off.end(), u.begin());
  for (int i = 0; i + 1 < n; ++i) {
    double below = t.off[i];
    if (std::abs(below) > std::abs(d[i])) {
      std::swap(d[i], below);
      std::swap(u[i], d[i + 1]);
      uu[i] = std::exchange(u[i + 1], 0.0);
      std::swap(x[i], x[i + 1]);
    }
    if (d[i] == 0) d[i] = smallest;
    const double factor = below / d[i];
    d[i + 1] -= factor * u[i];
    u[i + 1] -= factor * uu[i];
    x[i + 1] -= factor * x[i];
  }
  if (d[n - 1] == 0) d[n - 1] = smallest;
  for (int i = n - 1; i >= 0; --i) {
    if (i + 1 < n) x[i] -= u[i] * x[i + 1];
    if (i + 2 < n) x[i] -= uu[i] * x[i + 2];
    x[i] /= d[i];
  }
}

void Normalize(std::vector<double>& x) {
  double largest = 0;  // taken out first: squares of a solution may overflow
  for (const double value : x) largest = std::max(largest, std::abs(value));
  for (double& value : x) value /= largest;
  const double norm = std::sqrt(Dot(x.data(), x.data(), static_cast<int>(x.size())));
  for (double& value : x) value /= norm;
}

// A start that no eigenvector is likely to be orthogonal to: hashed numbers in (-1, 1).
std::vector<double> Scattered(int n) {
  std::vector<double> x(n);
  std::uint64_t state = 1;
  for (double& value : x) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<double>(static_cast<std::int64_t>(state) >> 11) * 0x1p-52;
  }
  return x;
}

}  // namespace

std::vector<double> PrincipalAxis(std::vector<double>& a, int n) {
  constexpr int kIterations = 4;  // of inverse iteration; one or two do, but for bad luck
  const Tridiagonal t = Reduce(a, n);
  double bound = 0;  // of the magnitude of eigenvalues
  for (int i = 0; i < n; ++i) {
    bound = std::max(bound, std::abs(t.diagonal[i]) + std::abs(t.off[i]) +
                                (i == 0 ? 0.0 : std::abs(t.off[i - 1])));
  }
  std::vector<double> x = Scattered(n);
  Normalize(x);
  if (bound == 0) return x;  // the zero matrix: any vector is as good
  const double lambda = LargestEigenvalue(t, 2 * bound);
  for (int i = 0; i < kIterations; ++i) {
    SolveShifted(t, lambda, kEpsilon * bound, x);
    Normalize(x);
  }
  for (int k = n - 2; k >= 0; --k) {
    const double* const v = &a[static_cast<std::size_t>(k) * n + k + 1];
    const int m = n - k - 1;
    const double along = 2 * Dot(v, &x[k + 1], m);
    for (int i = 0; i < m; ++i) x[k + 1 + i] -= along * v[i];
  }
  return x;
}

}  // namespace oscarkv
