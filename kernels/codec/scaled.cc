#include "kernels/codec/scaled.h"

#include <algorithm>
#include <cmath>

#include "kernels/api/dtype.h"

namespace oscarkv {

int ScaleExponent(float largest) {
  if (largest == 0) return 0;
  return std::clamp(std::ilogb(largest) - 8, -126, 127);
}

float LargestMagnitude(const float* x, std::int64_t count) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

std::uint16_t ToFP16Saturated(float x) {
  return ToFP16(std::min(std::max(x, -kLargestFP16), kLargestFP16));
}

}  // namespace oscarkv
