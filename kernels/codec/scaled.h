// Numbers brought by a power of two to where fits neither overflow fp32 nor vanish in fp16.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace oscarkv {

// 2^exponent: what exponents in a page's header stand for.
constexpr float PowerOfTwo(std::int8_t exponent) {
  return exponent >= -126 ? std::bit_cast<float>(std::uint32_t{127U + exponent} << 23)
                          : std::bit_cast<float>(std::uint32_t{1} << (149 + exponent));
}

// Stands for x * 2^exponent.
struct Scaled {
  std::vector<float> x;
  int exponent = 0;
};

// Brings the largest magnitude of x into [2^8, 2^9) (smaller only where the exponent would leave
// [-126, 127]); what it stands for stays. All zero: unchanged.
void Rescale(Scaled& scaled);

}  // namespace oscarkv
