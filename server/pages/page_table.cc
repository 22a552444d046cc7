#include "server/pages/page_table.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/base/reserve.h"

namespace oscarkv {

void PageTable::Chunk::Reserve(std::size_t count) {
  ReserveMore(count, &refs);
  ReserveMore(count, &blocks);
  ReserveMore(count, &blind);
}

PageTable PageTable::Share() {
  PageTable other;
  other.chunks_ = chunks_;
  other.runs_ = runs_;
  other.size_ = size_;
  other.tokens_ = tokens_;
  other.blind_pages_ = blind_pages_;
  other.bytes_ = bytes_;
  other.shared_chunks_ = shared_chunks_ = chunks_.size();
  return other;
}

void PageTable::OwnFrom(std::size_t chunk) {
  if (!IsShared(chunk)) return;
  std::vector<std::shared_ptr<Chunk>> own;
  own.reserve(chunks_.size() - chunk);
  for (std::size_t i = chunk; i < chunks_.size(); ++i) {
    own.push_back(std::make_shared<Chunk>(*chunks_[i]));
  }
  for (std::size_t i = chunk; i < chunks_.size(); ++i) {
    chunks_[i] = std::move(own[i - chunk]);
    runs_[i] = chunks_[i]->refs;
  }
  shared_chunks_ = chunk;
}

void PageTable::Reserve(std::size_t count) {
  spare_.clear();
  std::size_t room = 0;
  if (!chunks_.empty() && chunks_.back()->refs.size() < kChunkPages) {
    OwnFrom(chunks_.size() - 1);
    room = std::min(count, kChunkPages - chunks_.back()->refs.size());
    chunks_.back()->Reserve(room);
    runs_.back() = chunks_.back()->refs;  // they may have moved
  }
  // The one that is filled last may have room for a few pages only.
  for (std::size_t left = count - room; left > 0;) {
    const std::size_t some = left % kChunkPages == 0 ? kChunkPages : left % kChunkPages;
    spare_.push_back(std::make_shared<Chunk>());
    spare_.back()->Reserve(some);
    left -= some;
  }
  ReserveMore(spare_.size(), &chunks_);
  ReserveMore(spare_.size(), &runs_);
}

void PageTable::Push(BlockRef block, std::int64_t begin, bool blind) {
  assert(empty() || begin == end());
  if (chunks_.empty() || chunks_.back()->refs.size() == kChunkPages) {
    chunks_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    runs_.emplace_back();
  }
  assert(!IsShared(chunks_.size() - 1));
  Chunk& chunk = *chunks_.back();
  chunk.refs.push_back({.block = block.id(), .begin = begin, .tokens = kPageTokens});
  chunk.blind.push_back(blind);
  chunk.blocks.push_back(std::move(block));
  runs_.back() = chunk.refs;
  Count(chunk, chunk.refs.size() - 1, 1);
}

void PageTable::Count(const Chunk& chunk, std::size_t page, int sign) {
  size_ += static_cast<std::size_t>(sign);
  tokens_ += sign * chunk.refs[page].tokens;
  blind_pages_ += chunk.blind[page] ? sign : 0;
  bytes_ += sign * chunk.blocks[page].bytes();
}

void PageTable::Pop(std::size_t count) {
  for (; count > 0; --count) {
    Chunk& chunk = *chunks_.back();
    if (chunk.refs.size() == 1) {
      PopChunk();
      continue;
    }
    assert(!IsShared(chunks_.size() - 1));
    Count(chunk, chunk.refs.size() - 1, -1);
    chunk.refs.pop_back();
    chunk.blind.pop_back();
    chunk.blocks.pop_back();
    runs_.back() = chunk.refs;
  }
}

void PageTable::PopChunk() {
  for (std::size_t page = 0; page < chunks_.back()->refs.size(); ++page) {
    Count(*chunks_.back(), page, -1);
  }
  chunks_.pop_back();
  runs_.pop_back();
  shared_chunks_ = std::min(shared_chunks_, chunks_.size());
}

void PageTable::PrepareTruncate(std::int64_t length) {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const PageRef& last = runs_[i].back();
    if (length >= last.begin + last.tokens) continue;
    // It and those after it lose pages; those go whole unless it keeps some.
    if (length > runs_[i].front().begin) OwnFrom(i);
    return;
  }
}

void PageTable::Truncate(std::int64_t length) {
  while (!empty() && runs_.back().front().begin >= length) PopChunk();
  if (empty() || end() <= length) return;
  assert(!IsShared(chunks_.size() - 1));
  std::vector<PageRef>& refs = chunks_.back()->refs;
  while (refs.back().begin >= length) Pop(1);
  const auto kept = static_cast<std::int32_t>(
      std::min<std::int64_t>(refs.back().tokens, length - refs.back().begin));
  tokens_ -= refs.back().tokens - kept;
  refs.back().tokens = kept;
}

std::int64_t PageTable::end() const {
  return empty() ? 0 : runs_.back().back().begin + runs_.back().back().tokens;
}

}  // namespace oscarkv
