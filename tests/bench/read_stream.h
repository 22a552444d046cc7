// The least that any attention must do: read the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/executor.h"

namespace oscarkv::bench {

// Reads all bytes on all threads of the executor, with the widest loads and software prefetch.
// Returns their sum as 64-bit words, so that nothing can be left out.
// REQUIRES: data is 64-byte aligned, bytes a multiple of 64.
std::uint64_t ReadAll(cpu::Executor& executor, const std::byte* data, std::int64_t bytes);

}  // namespace oscarkv::bench
