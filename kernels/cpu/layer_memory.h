// A LayerView whose promises have been checked as far as that is cheap, and whose blocks have been
// found.
//
// Thread-safety: read-only once filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/hadamard.h"
#include "kernels/cpu/block_memory.h"

namespace oscarkv::cpu {

// Positions beyond are refused, so that sums of positions never overflow.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 60;

// INVALID_ARGUMENT if the shape or codec is none that the kernels know.
KernelStatus CheckSpec(const LayerSpec* spec);

// Finds `id` and checks that it holds `bytes`; `what` names it in the error.
KernelStatus FindBlock(const BlockMemory& memory, BlockId id, std::int64_t bytes, const char* what,
                       std::byte** data);

struct PageMemory {
  const std::byte* bytes;
  std::int64_t begin;  // position of the first token
  int tokens;          // valid ones
};

struct LayerMemory {
  const LayerSpec* spec = nullptr;
  const float* directions = nullptr;
  const std::byte* sinks = nullptr;
  int sink_tokens = 0;                   // valid ones, from position 0
  std::vector<PageMemory> pages;         // by position
  std::vector<const std::byte*> window;  // blocks of kWindowBlockTokens
  std::int64_t window_begin = 0;
  std::int64_t window_tokens = 0;
  std::int64_t length = 0;
};

KernelStatus ResolveLayer(const BlockMemory& memory, const LayerView& view, LayerMemory* layer);

}  // namespace oscarkv::cpu
