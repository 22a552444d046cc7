// At which positions a replay compares.
#pragma once

#include <cstdint>
#include <vector>

namespace oscarkv {

// Up to `count` positions, evenly spaced over the second half of `tokens` tokens, ascending and
// without repeats: floor(linspace(tokens / 2, tokens - 1, count)), computed in fp32 as PyTorch
// does. REQUIRES: tokens >= 1, count >= 1.
std::vector<std::int64_t> ReplayPositions(std::int64_t tokens, int count);

}  // namespace oscarkv
