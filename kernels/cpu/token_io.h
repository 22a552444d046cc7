// Tokens in and out of blocks: append to 16-bit blocks, and read back, decoded where sealed.
#pragma once

#include <span>

#include "kernels/api/backend.h"
#include "kernels/cpu/block_memory.h"
#include "kernels/cpu/executor.h"

namespace oscarkv::cpu {

// Backend::Append. Thread-safe for items on different blocks.
KernelStatus Append(const BlockMemory& memory, Executor& executor,
                    std::span<const AppendItem> items);

// Backend::ReadTokens. Thread-safe.
KernelStatus ReadTokens(const BlockMemory& memory, Executor& executor,
                        std::span<const ReadItem> items);

}  // namespace oscarkv::cpu
