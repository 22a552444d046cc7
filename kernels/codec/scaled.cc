#include "kernels/codec/scaled.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/affine_fit.h"

namespace oscarkv {

void Rescale(Scaled& scaled) {
  const float largest = LargestMagnitude(scaled.x.data(), std::ssize(scaled.x));
  const int exponent =
      std::clamp(ScaleExponent(largest), -126 - scaled.exponent, 127 - scaled.exponent);
  const float factor = std::ldexp(1.0F, -exponent);
  for (float& value : scaled.x) value *= factor;
  scaled.exponent += exponent;
}

}  // namespace oscarkv
