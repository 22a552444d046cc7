#include "server/pages/page_table.h"

#include <algorithm>
#include <cassert>
#include <iterator>
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
  other.parts_ = parts_;
  other.runs_ = runs_;
  other.size_ = size_;
  other.tokens_ = tokens_;
  other.blind_pages_ = blind_pages_;
  other.bytes_ = bytes_;
  for (Part& part : parts_) part.shared = true;
  for (Part& part : other.parts_) part.shared = true;
  return other;
}

void PageTable::OwnFrom(std::size_t part) {
  std::vector<std::shared_ptr<Chunk>> copies(parts_.size());
  for (std::size_t i = part; i < parts_.size(); ++i) {
    if (parts_[i].shared) copies[i] = std::make_shared<Chunk>(*parts_[i].chunk);
  }
  for (std::size_t i = part; i < parts_.size(); ++i) {
    if (!parts_[i].shared) continue;
    parts_[i] = {.chunk = std::move(copies[i])};
    runs_[i] = parts_[i].chunk->refs;
  }
}

void PageTable::Reserve(std::size_t count) {
  spare_.clear();
  std::size_t room = 0;
  if (!parts_.empty() && runs_.back().size() < kChunkPages) {
    OwnFrom(parts_.size() - 1);
    Chunk& last = *parts_.back().chunk;
    room = std::min(count, kChunkPages - last.refs.size());
    last.Reserve(room);
    runs_.back() = last.refs;  // they may have moved
  }
  // The one that is filled last may have room for a few pages only.
  for (std::size_t left = count - room; left > 0;) {
    const std::size_t some = left % kChunkPages == 0 ? kChunkPages : left % kChunkPages;
    spare_.push_back(std::make_shared<Chunk>());
    spare_.back()->Reserve(some);
    left -= some;
  }
  ReserveMore(spare_.size(), &parts_);
  ReserveMore(spare_.size(), &runs_);
}

void PageTable::Push(BlockRef block, std::int64_t begin, bool blind) {
  assert(empty() || begin == end());
  if (parts_.empty() || runs_.back().size() == kChunkPages) {
    parts_.push_back({.chunk = std::move(spare_.back())});
    spare_.pop_back();
    runs_.emplace_back();
  }
  assert(!parts_.back().shared);
  Chunk& chunk = *parts_.back().chunk;
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

void PageTable::Uncount(const Chunk& chunk) {
  for (std::size_t page = 0; page < chunk.refs.size(); ++page) Count(chunk, page, -1);
}

void PageTable::Pop(std::size_t count) {
  for (; count > 0; --count) {
    if (runs_.back().size() == 1) {
      PopChunk();
      continue;
    }
    assert(!parts_.back().shared);
    Chunk& chunk = *parts_.back().chunk;
    Count(chunk, chunk.refs.size() - 1, -1);
    chunk.refs.pop_back();
    chunk.blind.pop_back();
    chunk.blocks.pop_back();
    runs_.back() = chunk.refs;
  }
}

void PageTable::PopChunk() {
  Uncount(*parts_.back().chunk);
  parts_.pop_back();
  runs_.pop_back();
}

void PageTable::PrepareTruncate(std::int64_t length) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (length >= EndOf(runs_[i].back())) continue;
    // It and those after it lose pages; all of them, unless it keeps some.
    if (length > runs_[i].front().begin) OwnFrom(i);
    return;
  }
}

void PageTable::Truncate(std::int64_t length) {
  while (!empty() && runs_.back().front().begin >= length) PopChunk();
  if (end() <= length) return;
  assert(!parts_.back().shared);
  std::vector<PageRef>& refs = parts_.back().chunk->refs;
  while (refs.back().begin >= length) Pop(1);
  const auto kept = static_cast<std::int32_t>(
      std::min<std::int64_t>(refs.back().tokens, length - refs.back().begin));
  tokens_ -= refs.back().tokens - kept;
  refs.back().tokens = kept;
}

void PageTable::DropBefore(std::int64_t position) noexcept {
  const auto unseen = [&](const PageRef& page) { return EndOf(page) <= position; };
  std::ptrdiff_t whole = 0;  // chunks of which nothing is left
  for (; whole < std::ssize(parts_) && unseen(runs_[whole].back()); ++whole) {
    Uncount(*parts_[whole].chunk);
  }
  parts_.erase(parts_.begin(), parts_.begin() + whole);
  runs_.erase(runs_.begin(), runs_.begin() + whole);
  if (parts_.empty() || parts_.front().shared) return;
  Chunk& chunk = *parts_.front().chunk;
  std::ptrdiff_t pages = 0;
  for (; unseen(chunk.refs[pages]); ++pages) Count(chunk, pages, -1);
  chunk.refs.erase(chunk.refs.begin(), chunk.refs.begin() + pages);
  chunk.blocks.erase(chunk.blocks.begin(), chunk.blocks.begin() + pages);
  chunk.blind.erase(chunk.blind.begin(), chunk.blind.begin() + pages);
  runs_.front() = chunk.refs;
}

std::vector<PageTable::Page> PageTable::PagesFrom(std::int64_t position) const {
  std::vector<Page> pages;
  for (const Part& part : parts_) {
    const std::vector<PageRef>& refs = part.chunk->refs;
    if (refs.back().begin < position) continue;
    for (std::size_t i = 0; i < refs.size(); ++i) {
      if (refs[i].begin >= position) {
        pages.push_back({.ref = refs[i], .blind = part.chunk->blind[i]});
      }
    }
  }
  return pages;
}

}  // namespace oscarkv
