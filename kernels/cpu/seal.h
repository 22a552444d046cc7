// Sealing: the oldest tokens of a window become a page.
#pragma once

#include <span>

#include "kernels/api/backend.h"
#include "kernels/cpu/block_memory.h"
#include "kernels/cpu/executor.h"

namespace oscarkv::cpu {

// Backend::Seal. Thread-safe for items on different pages.
KernelStatus Seal(const BlockMemory& memory, Executor& executor, std::span<SealItem> items);

}  // namespace oscarkv::cpu
