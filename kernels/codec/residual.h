// The residual direction: the error of each key along one unit vector u, kept in int8.
// c = u . (k - k^), k the stored key, k^ as decoded; attention adds (q . u) c to the logit.
#pragma once

#include <cstdint>

namespace oscarkv {

// One fp16 step per page and kv head: c^ = Step() * code.
struct ResidualScale {
  std::uint16_t step = 0;    // fp16 in [1, 2]; 0 if every c is zero
  std::int8_t exponent = 0;  // the step is step * 2^exponent

  float Step() const;
};

// Quantizes c[count]: step = max|c| / 127, rounded first. REQUIRES: c is finite.
ResidualScale EncodeResiduals(const double* c, int count, std::int8_t* codes);

}  // namespace oscarkv
