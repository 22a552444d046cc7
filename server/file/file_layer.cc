#include "server/file/file_layer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace oscarkv {
namespace {

FilePiece PieceOf(const RecordHeader& header) {
  return {.begin = header.begin,
          .tokens = static_cast<std::int32_t>(header.count),
          .blind = (header.flags & kBlindPage) != 0,
          .place = {.offset = header.offset + sizeof(RecordHeader),
                    .bytes = static_cast<std::uint32_t>(header.payload_bytes),
                    .crc = header.payload_crc}};
}

std::uint64_t HeaderOffset(const FilePiece& piece) {
  return piece.place.offset - sizeof(RecordHeader);
}

absl::Status OutOfPlace(std::uint64_t offset, const char* what, std::int64_t begin,
                        std::string_view expected) {
  return FileDamaged(offset, absl::StrCat(what, " record at position ", begin), expected);
}

// The first piece that begins at or after `position`.
std::vector<FilePiece>::const_iterator FirstFrom(const std::vector<FilePiece>& pieces,
                                                 std::int64_t position) {
  return std::lower_bound(
      pieces.begin(), pieces.end(), position,
      [](const FilePiece& piece, std::int64_t limit) { return piece.begin < limit; });
}

// Drops all tokens at positions >= length.
void DropFrom(std::int64_t length, std::vector<FilePiece>& pieces) {
  pieces.erase(FirstFrom(pieces, length), pieces.end());
  if (pieces.empty() || pieces.back().end() <= length) return;
  pieces.back().tokens = static_cast<std::int32_t>(length - pieces.back().begin);
}

void DropBefore(std::int64_t position, std::vector<FilePiece>& pieces) {
  pieces.erase(pieces.begin(), FirstFrom(pieces, position));
}

}  // namespace

std::int64_t FileLayer::window_begin() const {
  return pages_.empty() ? released_to_ : pages_.back().end();
}

std::int64_t FileLayer::length() const {
  if (!blocks_.empty()) return blocks_.back().end();
  return window_begin() > sink_capacity_ ? window_begin() : sink_tokens();
}

absl::Status FileLayer::Apply(const RecordHeader& header) {
  switch (header.type) {
    case RecordType::kSinks:
      sinks_ = PieceOf(header);
      return absl::OkStatus();
    case RecordType::kPage:
      return AddPage(PieceOf(header));
    case RecordType::kBlock:
      return AddBlock(PieceOf(header));
    case RecordType::kQuery:
      return AddQuery(PieceOf(header));
    case RecordType::kDirections:
      directions_ = PieceOf(header);
      return absl::OkStatus();
    case RecordType::kTruncate:
      return Truncate(header.offset, header.begin);
    case RecordType::kRelease:
      return Release(header.offset, header.begin);
    default:
      return FileDamaged(header.offset, NameOf(header.type), "a record of a layer");
  }
}

absl::Status FileLayer::AddPage(const FilePiece& page) {
  if (page.begin != window_begin()) {
    return OutOfPlace(HeaderOffset(page), "page", page.begin, absl::StrCat(window_begin()));
  }
  const auto kept = FirstFrom(blocks_, page.end());
  if (kept != blocks_.end() && kept->begin != page.end()) {
    return OutOfPlace(HeaderOffset(page), "page", page.begin,
                      absl::StrCat("one that ends at a block, as at ", kept->begin));
  }
  blocks_.erase(blocks_.begin(), kept);
  DropBefore(page.end(), queries_);
  pages_.push_back(page);
  return absl::OkStatus();
}

absl::Status FileLayer::AddBlock(const FilePiece& block) {
  const auto replaced = FirstFrom(blocks_, block.begin);
  std::int64_t next = window_begin();
  if (replaced != blocks_.begin()) next = (replaced - 1)->begin + kWindowBlockTokens;
  const bool full = replaced == blocks_.begin() || (replaced - 1)->tokens == kWindowBlockTokens;
  if (block.begin != next || !full) {
    return OutOfPlace(HeaderOffset(block), "block", block.begin,
                      absl::StrCat(next, ", after a full one if any"));
  }
  blocks_.erase(replaced, blocks_.end());
  blocks_.push_back(block);
  return absl::OkStatus();
}

absl::Status FileLayer::AddQuery(const FilePiece& query) {
  if (query.begin < window_begin() || query.begin >= length()) {
    return OutOfPlace(
        HeaderOffset(query), "query", query.begin,
        absl::StrCat("one of a token in the window, from ", window_begin(), " up to ", length()));
  }
  const auto at = FirstFrom(queries_, query.begin);
  if (at != queries_.end() && at->begin == query.begin) {
    queries_[static_cast<std::size_t>(at - queries_.begin())] = query;
  } else {
    queries_.insert(at, query);
  }
  return absl::OkStatus();
}

absl::Status FileLayer::Truncate(std::uint64_t offset, std::int64_t length) {
  if (sink_capacity_ < length && length < released_to_) {
    return OutOfPlace(offset, "truncate", length,
                      absl::StrCat("at least ", released_to_, ": tokens before are gone"));
  }
  if (length >= this->length()) return absl::OkStatus();
  if (length < window_begin()) {
    blocks_.clear();
  } else {
    DropFrom(length, blocks_);
  }
  DropFrom(length, pages_);
  DropFrom(length, queries_);
  if (length <= sink_capacity_) released_to_ = sink_capacity_;
  if (length == 0) sinks_.reset();
  if (sinks_ && length < sinks_->tokens) sinks_->tokens = static_cast<std::int32_t>(length);
  if (directions_ && length <= directions_->begin) directions_.reset();
  return absl::OkStatus();
}

absl::Status FileLayer::Release(std::uint64_t offset, std::int64_t begin) {
  const auto page = FirstFrom(pages_, begin);
  const auto block = FirstFrom(blocks_, begin);
  std::int64_t next = begin;  // where what is kept begins
  if (page != pages_.end()) {
    next = page->begin;
  } else if (block != blocks_.end()) {
    next = block->begin;
  } else if (window_begin() > begin || !blocks_.empty()) {
    next = std::max(begin, length());
  }
  if (begin < released_to_ || begin != next) {
    return OutOfPlace(
        offset, "release", begin,
        absl::StrCat("where a page or a block begins or behind all, not before ", released_to_));
  }
  pages_.erase(pages_.begin(), page);
  if (pages_.empty()) {
    blocks_.erase(blocks_.begin(), block);
    DropBefore(begin, queries_);
  }
  released_to_ = begin;
  return absl::OkStatus();
}

absl::Status FileLayer::CheckWhole(std::uint64_t offset, std::int64_t length) const {
  const auto damaged = [&](std::int64_t found, std::string_view expected) {
    return FileDamaged(offset, absl::StrCat("commit record: a layer with ", found), expected);
  };
  if (this->length() != length) {
    return damaged(this->length(), absl::StrCat(length, " tokens"));
  }
  const std::int64_t sinks = std::min(length, sink_capacity_);
  if (sink_tokens() != sinks) return damaged(sink_tokens(), absl::StrCat(sinks, " sinks"));
  if (!queries_.empty() && queries_.back().begin >= length) {
    return damaged(queries_.back().begin, "queries at positions of tokens");
  }
  if (directions_ && directions_->begin >= window_begin()) {
    return damaged(directions_->begin, "directions of one of its pages");
  }
  return absl::OkStatus();
}

std::uint64_t FileLayer::live_bytes() const {
  std::uint64_t bytes = 0;
  const auto add = [&](const FilePiece& piece) {
    bytes += sizeof(RecordHeader) + PaddedBytes(piece.place.bytes);
  };
  if (sinks_) add(*sinks_);
  if (directions_) add(*directions_);
  for (const auto* pieces : {&pages_, &blocks_, &queries_}) {
    std::for_each(pieces->begin(), pieces->end(), add);
  }
  return bytes;
}

}  // namespace oscarkv
