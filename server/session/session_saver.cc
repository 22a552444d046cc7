#include "server/session/session_saver.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/api/page_layout.h"
#include "server/base/heartbeat.h"
#include "server/base/kernel_status.h"
#include "server/file/token_rows.h"

namespace oscarkv {

SessionSaver::SessionSaver(std::vector<const LayerState*> layers, std::int64_t unchanged_to,
                           Backend* backend, SessionFileWriter* writer)
    : layers_(std::move(layers)), unchanged_to_(unchanged_to), backend_(backend), writer_(writer) {}

absl::Status SessionSaver::All() {
  while (!done()) {
    Heartbeat::BeatThisThread();
    if (absl::Status s = Step(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SessionSaver::Step() {
  if (!begun_) {
    begun_ = true;
    return Begin();
  }
  if (next_ < pieces_.size()) return Write(pieces_[next_++]);
  if (absl::Status s = End(); !s.ok()) return s;
  ++layer_;
  begun_ = false;
  return absl::OkStatus();
}

absl::Status SessionSaver::Begin() {
  if (absl::Status s = Drop(); !s.ok()) return s;
  const std::int64_t sinks = std::min<std::int64_t>(layer().length(), layer().spec().codec.sinks);
  if (sinks > 0 && (!file().sinks() || file().sinks()->tokens != sinks)) {
    const int tokens = static_cast<int>(sinks);
    if (absl::Status s = ReadTokensOf(layer().sinks(), tokens); !s.ok()) return s;
    if (absl::Status s = writer_->AddSinks(layer_, tokens, buffer_); !s.ok()) return s;
  }
  ListPieces();
  return absl::OkStatus();
}

// Of what the file has, all that the layer has not.
absl::Status SessionSaver::Drop() {
  const std::int64_t common = std::min(unchanged_to_, layer().length());
  if (file().length() > common) {
    if (absl::Status s = writer_->Truncate(layer_, common); !s.ok()) return s;
  }
  // A page that the file has only a part of is written anew.
  if (!file().pages().empty()) {
    const FilePiece last = file().pages().back();
    const auto pages = layer().pages().PagesFrom(last.begin);
    if (!pages.empty() && pages.front().ref.tokens != last.tokens) {
      if (absl::Status s = writer_->Truncate(layer_, last.begin); !s.ok()) return s;
    }
  }
  const std::int64_t kept_from = layer().kept_from();
  if (kept_from <= file().released_to()) return absl::OkStatus();
  return writer_->Release(layer_, kept_from);
}

void SessionSaver::ListPieces() {
  pieces_.clear();
  next_ = 0;
  for (const PageTable::Page& page : layer().pages().PagesFrom(file().window_begin())) {
    pieces_.push_back({.block = page.ref.block,
                       .begin = page.ref.begin,
                       .tokens = page.ref.tokens,
                       .is_page = true,
                       .blind = page.blind});
  }
  const Window& window = layer().window();
  const std::vector<FilePiece>& written = file().blocks();
  bool differs = false;
  for (std::size_t i = 0; i < window.size(); ++i) {
    Piece piece{.block = window.ids()[i],
                .begin = window.begin() + static_cast<std::int64_t>(i) * kWindowBlockTokens};
    piece.tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(layer().length() - piece.begin, kWindowBlockTokens));
    const auto same = [&piece](const FilePiece& block) {
      return block.begin == piece.begin && block.tokens == piece.tokens;
    };
    differs = differs || std::none_of(written.begin(), written.end(), same);
    if (differs) pieces_.push_back(piece);
  }
}

absl::Status SessionSaver::Write(const Piece& piece) {
  if (piece.is_page) {
    if (absl::Status s = Read(piece.block, PageLayout(layer().spec()).bytes); !s.ok()) return s;
    return writer_->AddPage(layer_, piece.begin, piece.tokens, piece.blind, buffer_);
  }
  const std::int64_t index = (piece.begin - layer().window().begin()) / kWindowBlockTokens;
  const BlockRef& block = layer().window().block(static_cast<std::size_t>(index));
  if (absl::Status s = ReadTokensOf(block, piece.tokens); !s.ok()) return s;
  return writer_->AddBlock(layer_, piece.begin, piece.tokens, buffer_);
}

absl::Status SessionSaver::End() {
  const QuerySample& sample = layer().sample();
  for (const std::int64_t position : sample.positions()) {
    const auto& written = file().queries();
    const auto at = std::lower_bound(
        written.begin(), written.end(), position,
        [](const FilePiece& query, std::int64_t wanted) { return query.begin < wanted; });
    if (at != written.end() && at->begin == position) continue;
    const QuerySample::Slice row = sample.Range(position, position + 1);
    const std::span<const std::uint16_t> values(
        row.rows, static_cast<std::size_t>(sample.row_bytes()) / sizeof(std::uint16_t));
    if (absl::Status s = writer_->AddQuery(layer_, position, std::as_bytes(values)); !s.ok()) {
      return s;
    }
  }
  const std::span<const float> directions = layer().found_directions();
  const std::int64_t begin = layer().directions_begin();
  if (directions.empty() || (file().directions() && file().directions()->begin == begin)) {
    return absl::OkStatus();
  }
  return writer_->AddDirections(layer_, begin, std::as_bytes(directions));
}

// Leaves the first tokens of a block in buffer_.
absl::Status SessionSaver::ReadTokensOf(const BlockRef& block, int tokens) {
  if (absl::Status s = Read(block.id(), block.bytes()); !s.ok()) return s;
  buffer_ = WithTokens(layer().spec(), buffer_, tokens, tokens);
  return absl::OkStatus();
}

absl::Status SessionSaver::Read(BlockId block, std::int64_t bytes) {
  buffer_.resize(static_cast<std::size_t>(bytes));
  return FromKernelStatus(backend_->ReadBlock(block, buffer_));
}

}  // namespace oscarkv
