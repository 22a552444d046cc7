#include "server/file/token_rows.h"

#include <cassert>
#include <cstdint>
#include <cstring>

#include "kernels/api/page_layout.h"

namespace oscarkv {

int TokenCapacity(const LayerSpec& spec, std::size_t block_bytes) {
  return static_cast<int>(static_cast<std::int64_t>(block_bytes) / TokenBlockLayout(spec, 1).bytes);
}

std::vector<std::byte> WithTokens(const LayerSpec& spec, std::span<const std::byte> block,
                                  int tokens, int capacity) {
  const TokenBlockLayout from(spec, TokenCapacity(spec, block.size()));
  const TokenBlockLayout to(spec, capacity);
  assert(tokens <= from.tokens && tokens <= to.tokens);
  const auto rows = static_cast<std::size_t>(tokens);
  std::vector<std::byte> copy(static_cast<std::size_t>(to.bytes));
  for (int head = 0; head < spec.kv_heads; ++head) {
    const std::byte* const from_head = block.data() + head * from.head_bytes;
    std::byte* const to_head = copy.data() + head * to.head_bytes;
    std::memcpy(to_head, from_head, 2 * rows * static_cast<std::size_t>(spec.key_dim));
    std::memcpy(to_head + to.value_offset, from_head + from.value_offset,
                2 * rows * static_cast<std::size_t>(spec.value_dim));
  }
  return copy;
}

}  // namespace oscarkv
