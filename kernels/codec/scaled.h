// Numbers brought by a power of two to where fits neither overflow fp32 nor vanish in fp16.
#pragma once

#include <vector>

namespace oscarkv {

// Stands for x * 2^exponent.
struct Scaled {
  std::vector<float> x;
  int exponent = 0;
};

// Brings the largest magnitude of x into [2^8, 2^9) (smaller only where the exponent would leave
// [-126, 127]); what it stands for stays. All zero: unchanged.
void Rescale(Scaled& scaled);

}  // namespace oscarkv
