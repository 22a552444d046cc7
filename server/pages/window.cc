#include "server/pages/window.h"

#include <cassert>
#include <iterator>
#include <utility>

namespace oscarkv {

void Window::PushBack(BlockRef block) {
  bytes_ += block.bytes();
  ids_.push_back(block.id());
  blocks_.push_back(std::move(block));
}

BlockRef Window::PopBack() {
  assert(!ids_.empty());
  BlockRef block = std::move(blocks_.back());
  bytes_ -= block.bytes();
  ids_.pop_back();
  blocks_.pop_back();
  return block;
}

BlockRef Window::Replace(std::size_t i, BlockRef block) {
  assert(i < size() && block.bytes() == blocks_[i].bytes());
  ids_[i] = block.id();
  return std::exchange(blocks_[i], std::move(block));
}

std::vector<BlockRef> Window::PopFront(std::size_t count) {
  assert(count <= size());
  const auto end = blocks_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<BlockRef> taken(std::make_move_iterator(blocks_.begin()),
                              std::make_move_iterator(end));
  blocks_.erase(blocks_.begin(), end);
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
  for (const BlockRef& block : taken) bytes_ -= block.bytes();
  begin_ += static_cast<std::int64_t>(count) * kWindowBlockTokens;
  return taken;
}

void Window::PushFront(std::vector<BlockRef> blocks) {
  begin_ -= static_cast<std::int64_t>(blocks.size()) * kWindowBlockTokens;
  std::vector<BlockId> ids;
  for (const BlockRef& block : blocks) {
    bytes_ += block.bytes();
    ids.push_back(block.id());
  }
  ids_.insert(ids_.begin(), ids.begin(), ids.end());
  blocks_.insert(blocks_.begin(), std::make_move_iterator(blocks.begin()),
                 std::make_move_iterator(blocks.end()));
}

void Window::Truncate(std::int64_t length) {
  assert(length >= begin_);
  while (size() > 0 && capacity_end() - kWindowBlockTokens >= length) PopBack();
}

void Window::Restart(std::int64_t begin) {
  ids_.clear();
  blocks_.clear();
  bytes_ = 0;
  begin_ = begin;
}

}  // namespace oscarkv
