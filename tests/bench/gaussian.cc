#include "tests/bench/gaussian.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/api/dtype.h"

namespace oscarkv::bench {
namespace {

constexpr std::int64_t kBlock = 1'000'003;  // a prime

}  // namespace

void FillGaussian(std::uint16_t* out, std::int64_t count, int seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) out[i] = ToBF16(normal(random));
}

std::vector<std::uint16_t> GaussianNumbers(std::int64_t count, int seed) {
  std::vector<std::uint16_t> numbers(count);
  FillGaussian(numbers.data(), count, seed);
  return numbers;
}

void FillGaussian(cpu::Executor& executor, std::uint16_t* out, std::int64_t count, int seed) {
  const std::vector<std::uint16_t> block = GaussianNumbers(std::min(count, kBlock), seed);
  executor.ParallelFor((count + kBlock - 1) / kBlock, [&](std::int64_t i) {
    std::memcpy(out + i * kBlock, block.data(), 2 * std::min(kBlock, count - i * kBlock));
  });
}

}  // namespace oscarkv::bench
