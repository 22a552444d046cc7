#include "kernels/codec/token_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/api/dtype.h"

namespace oscarkv {

std::uint16_t TokenNorm(double sum_of_squares, std::int64_t count) {
  // A mean square is at most the square of the largest bf16, so the root rounds to a finite one.
  const double rms = std::sqrt(sum_of_squares / static_cast<double>(count));
  const std::uint16_t norm = ToBF16(static_cast<float>(rms));
  return norm == 0 ? ToBF16(1.0F) : norm;
}

float NormImbalance(const std::uint16_t* norms, int tokens) {
  std::vector<float> sorted(tokens);
  ToFloats(DType::kBF16, norms, sorted.size(), sorted.data());
  std::sort(sorted.begin(), sorted.end());
  const double median = (static_cast<double>(sorted[tokens / 2 - 1]) + sorted[tokens / 2]) / 2;
  return static_cast<float>(sorted[tokens - 1] / median);
}

}  // namespace oscarkv
