#include "client/replay/positions.h"

namespace oscarkv {

std::vector<std::int64_t> ReplayPositions(std::int64_t tokens, int count) {
  const std::int64_t begin = tokens / 2;
  const std::int64_t end = tokens - 1;
  if (end <= begin || count == 1) return {begin};
  const auto low = static_cast<float>(begin);
  const auto high = static_cast<float>(end);
  const float step = (high - low) / static_cast<float>(count - 1);
  std::vector<std::int64_t> positions;
  for (int i = 0; i < count; ++i) {
    // From the nearer end, so that both ends are met exactly.
    const float x = i < count / 2 ? low + step * static_cast<float>(i)
                                  : high - step * static_cast<float>(count - 1 - i);
    const auto position = static_cast<std::int64_t>(x);
    if (positions.empty() || position > positions.back()) positions.push_back(position);
  }
  return positions;
}

}  // namespace oscarkv
