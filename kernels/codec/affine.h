// Affine codes: code c decodes to scale * c + zero. How scale and zero are found is written in
// kernels/cpu/affine_fit.h.
#pragma once

#include <cstdint>

#include "kernels/api/page_layout.h"

namespace oscarkv {

// x[count][lanes] = scale * code + zero, each product and sum rounded to fp32, for
// params[lanes] and codes[count][lanes].
void DecodeGroups(const std::uint8_t* codes, const AffineFP16* params, int count, int lanes,
                  float* x);

}  // namespace oscarkv
