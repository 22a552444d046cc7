// Numbers brought by a power of two to where fits neither overflow fp32 nor vanish in fp16.
#pragma once

#include <bit>
#include <cstdint>

namespace oscarkv {

// 2^exponent: what exponents in a page's header stand for.
constexpr float PowerOfTwo(std::int8_t exponent) {
  return exponent >= -126 ? std::bit_cast<float>(std::uint32_t{127U + exponent} << 23)
                          : std::bit_cast<float>(std::uint32_t{1} << (149 + exponent));
}

// The exponent e for which x * 2^-e has its largest magnitude in [2^8, 2^9): clamped to
// [-126, 127], 0 if `largest` is zero.
int ScaleExponent(float largest);

// The largest magnitude of x[count]; 0 if there is none.
float LargestMagnitude(const float* x, std::int64_t count);

inline constexpr float kLargestFP16 = 65504;

// Rounded to fp16, saturating at +-kLargestFP16. REQUIRES: x is not NaN.
std::uint16_t ToFP16Saturated(float x);

}  // namespace oscarkv
