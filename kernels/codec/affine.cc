#include "kernels/codec/affine.h"

#include <algorithm>
#include <cstddef>

#include "kernels/api/dtype.h"

namespace oscarkv {

void DecodeGroups(const std::uint8_t* codes, const AffineFP16* params, int count, int lanes,
                  float* x) {
  constexpr int kWidth = 64;  // lanes at once
  for (int lane = 0; lane < lanes; lane += kWidth) {
    const int width = std::min(kWidth, lanes - lane);
    float scale[kWidth];
    float zero[kWidth];
    for (int l = 0; l < width; ++l) {
      scale[l] = FromFP16(params[lane + l].scale);
      zero[l] = FromFP16(params[lane + l].zero);
    }
    for (int i = 0; i < count; ++i) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * lanes + lane;
      for (int l = 0; l < width; ++l) {
        x[row + l] = scale[l] * static_cast<float>(codes[row + l]) + zero[l];
      }
    }
  }
}

}  // namespace oscarkv
