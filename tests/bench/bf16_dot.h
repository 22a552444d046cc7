// The dpbf16 kernels, each in a file of its own that is built for AVX512_BF16.
#pragma once

#include "tests/bench/bf16_kernels.h"

namespace oscarkv::bench {

void DecodeByDot(const DecodeUnit& unit);
void PrefillByDot(const PrefillUnit& unit);

}  // namespace oscarkv::bench
