// Random data that is quick to make in any amount: a block of Gaussian bf16 numbers, repeated.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/executor.h"

namespace oscarkv::bench {

// out[0..count): bf16 numbers of mean 0 and deviation 1, the same for the same seed.
void FillGaussian(std::uint16_t* out, std::int64_t count, int seed);
std::vector<std::uint16_t> GaussianNumbers(std::int64_t count, int seed);

// The same for large memory: repeats a block whose length no shape divides. First touched by the
// threads of the executor.
void FillGaussian(cpu::Executor& executor, std::uint16_t* out, std::int64_t count, int seed);

}  // namespace oscarkv::bench
