#include "server/pages/window.h"

#include <cassert>
#include <iterator>
#include <utility>

#include "server/base/reserve.h"

namespace oscarkv {

void Window::Reserve(std::size_t count) {
  ReserveMore(count, &ids_);
  ReserveMore(count, &blocks_);
}

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

void Window::PopFront(std::size_t count, std::vector<BlockRef>* taken) {
  assert(count <= size());
  for (std::size_t i = 0; i < count; ++i) taken->push_back(blocks_[i]);
  DropFront(count);
}

void Window::PushFront(std::vector<BlockRef>* taken) {
  begin_ -= static_cast<std::int64_t>(taken->size()) * kWindowBlockTokens;
  ids_.insert(ids_.begin(), taken->size(), kNoBlock);
  for (std::size_t i = 0; i < taken->size(); ++i) {
    bytes_ += (*taken)[i].bytes();
    ids_[i] = (*taken)[i].id();
  }
  blocks_.insert(blocks_.begin(), std::make_move_iterator(taken->begin()),
                 std::make_move_iterator(taken->end()));
  taken->clear();
}

void Window::DropFront(std::size_t count) noexcept {
  assert(count <= size());
  for (std::size_t i = 0; i < count; ++i) bytes_ -= blocks_[i].bytes();
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(count));
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
  begin_ += static_cast<std::int64_t>(count) * kWindowBlockTokens;
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
