// The leading eigenvector of a symmetric matrix.
#pragma once

#include <vector>

namespace oscarkv {

// A unit eigenvector of the largest eigenvalue of the symmetric matrix a[n][n], in double:
// Householder tridiagonalization, bisection for the eigenvalue, inverse iteration, and the
// reflections back (Golub and Van Loan, Matrix Computations, chapter 8). About 4/3 n^3 operations,
// deterministic, whatever the gap to the next eigenvalue. `a` is overwritten.
// REQUIRES: n >= 1; entries are finite and below 1e70 in magnitude.
std::vector<double> PrincipalAxis(std::vector<double>& a, int n);

}  // namespace oscarkv
