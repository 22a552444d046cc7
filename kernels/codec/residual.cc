#include "kernels/codec/residual.h"

#include <algorithm>
#include <cmath>

#include "kernels/api/dtype.h"
#include "kernels/codec/scaled.h"

namespace oscarkv {

float ResidualScale::Step() const { return FromFP16(step) * PowerOfTwo(exponent); }

ResidualScale EncodeResiduals(const double* c, int count, std::int8_t* codes) {
  double largest = 0;
  for (int t = 0; t < count; ++t) largest = std::max(largest, std::abs(c[t]));
  ResidualScale scale;
  if (largest > 0) {
    const double exact = largest / 127;
    scale.exponent = static_cast<std::int8_t>(std::clamp(std::ilogb(exact), -126, 127));
    scale.step = ToFP16(static_cast<float>(std::ldexp(exact, -scale.exponent)));
  }
  const double step = scale.Step();
  constexpr double kToWhole = 0x1.8p52;  // adding it rounds to a whole number, nearest even
  for (int t = 0; t < count; ++t) {
    // A rounded step may be a little short: 127.06 rounds to 127.
    codes[t] = step == 0 ? std::int8_t{0}
                         : static_cast<std::int8_t>(
                               std::clamp((c[t] / step + kToWhole) - kToWhole, -127.0, 127.0));
  }
  return scale;
}

}  // namespace oscarkv
