// Attention of a batch: cuts it into units of fixed size, runs them, merges them in order.
#pragma once

#include <span>

#include "kernels/api/backend.h"
#include "kernels/cpu/block_memory.h"
#include "kernels/cpu/executor.h"

namespace oscarkv::cpu {

// Backend::Attend. Thread-safe. An item's results depend on nothing but the item: neither on the
// number of threads nor on the rest of the batch.
KernelStatus Attend(const BlockMemory& memory, Executor& executor,
                    std::span<const AttendItem> items);

}  // namespace oscarkv::cpu
