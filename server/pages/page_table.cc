#include "server/pages/page_table.h"

#include <cassert>
#include <utility>

#include "server/base/reserve.h"

namespace oscarkv {

void PageTable::Reserve(std::size_t count) {
  ReserveMore(count, &refs_);
  ReserveMore(count, &blocks_);
  ReserveMore(count, &blind_);
}

void PageTable::Push(BlockRef block, std::int64_t begin, bool blind) {
  assert(refs_.empty() || begin == end());
  refs_.push_back({.block = block.id(), .begin = begin, .tokens = kPageTokens});
  tokens_ += kPageTokens;
  blind_pages_ += blind ? 1 : 0;
  bytes_ += block.bytes();
  blind_.push_back(blind);
  blocks_.push_back(std::move(block));
}

void PageTable::Pop(std::size_t count) {
  assert(count <= refs_.size());
  for (; count > 0; --count) {
    tokens_ -= refs_.back().tokens;
    blind_pages_ -= blind_.back() ? 1 : 0;
    bytes_ -= blocks_.back().bytes();
    refs_.pop_back();
    blind_.pop_back();
    blocks_.pop_back();
  }
}

void PageTable::Truncate(std::int64_t length) {
  while (!refs_.empty() && refs_.back().begin >= length) Pop(1);
  if (refs_.empty() || end() <= length) return;
  const auto kept = static_cast<std::int32_t>(length - refs_.back().begin);
  tokens_ -= refs_.back().tokens - kept;
  refs_.back().tokens = kept;
}

}  // namespace oscarkv
