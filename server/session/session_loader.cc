#include "server/session/session_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/btree_set.h"
#include "server/base/kernel_status.h"
#include "server/file/session_file_reader.h"
#include "server/file/token_rows.h"
#include "server/session/item_check.h"

namespace oscarkv {
namespace {

void AppendRows(const std::vector<std::byte>& bytes, std::vector<std::uint16_t>& rows) {
  const std::size_t before = rows.size();
  rows.resize(before + bytes.size() / sizeof(std::uint16_t));
  std::memcpy(rows.data() + before, bytes.data(), bytes.size());
}

// Calls `use` with the type and the place of each payload that counts.
template <typename Use>
absl::Status ForEachPayload(const FileLayer& layer, Use use) {
  absl::Status s;
  if (layer.sinks()) s.Update(use(RecordType::kSinks, layer.sinks()->place));
  for (const auto& [type, pieces] : {std::pair(RecordType::kPage, &layer.pages()),
                                     std::pair(RecordType::kBlock, &layer.blocks()),
                                     std::pair(RecordType::kQuery, &layer.queries())}) {
    for (const FilePiece& piece : *pieces) {
      if (!s.ok()) return s;
      s = use(type, piece.place);
    }
  }
  if (s.ok() && layer.directions()) s = use(RecordType::kDirections, layer.directions()->place);
  return s;
}

}  // namespace

SessionLoader::SessionLoader(Backend* backend, BlockPool* pool, MemoryBudget* budget)
    : backend_(backend), pool_(pool), rows_memory_(budget, MemoryKind::kWindow) {}

absl::Status SessionLoader::Take(const LayerSpec& spec, RecordType type, std::uint64_t offset,
                                 std::span<const std::byte> payload) {
  switch (type) {
    case RecordType::kPage:
      return TakeBlock(MemoryKind::kPages, offset, payload);
    case RecordType::kSinks:
    case RecordType::kBlock: {
      const int capacity = type == RecordType::kSinks ? spec.codec.sinks : kWindowBlockTokens;
      const int tokens = TokenCapacity(spec, payload.size());
      return TakeBlock(MemoryKind::kWindow, offset, WithTokens(spec, payload, tokens, capacity));
    }
    case RecordType::kQuery:
    case RecordType::kDirections:
      if (!rows_memory_.Grow(static_cast<std::int64_t>(payload.size()))) {
        return OutOfMemory("no memory left for the sampled queries of a session");
      }
      rows_[offset].assign(payload.begin(), payload.end());
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

absl::Status SessionLoader::TakeBlock(MemoryKind kind, std::uint64_t offset,
                                      std::span<const std::byte> bytes) {
  std::vector<BlockRef> block;
  absl::Status s = pool_->Allocate(kind, static_cast<std::int64_t>(bytes.size()), 1, &block);
  if (!s.ok()) return s;
  s = FromKernelStatus(backend_->WriteBlock(block[0].id(), bytes));
  if (s.ok()) blocks_[offset] = std::move(block[0]);
  return s;
}

void SessionLoader::KeepOnly(const SessionFileState& state) {
  absl::btree_set<std::uint64_t> live;
  for (const FileLayer& layer : state.layers()) {
    ForEachPayload(layer, [&live](RecordType /*type*/, const PayloadPlace& place) {
      live.insert(place.offset);
      return absl::OkStatus();
    }).IgnoreError();
  }
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    at = live.contains(at->first) ? std::next(at) : blocks_.erase(at);
  }
  for (auto at = rows_.begin(); at != rows_.end();) {
    if (live.contains(at->first)) {
      ++at;
      continue;
    }
    rows_memory_.Shrink(static_cast<std::int64_t>(at->second.size()));
    at = rows_.erase(at);
  }
}

absl::Status SessionLoader::TakeAll(const ByteSource& file, const SessionFileState& state) {
  std::vector<std::byte> payload;
  for (std::size_t i = 0; i < state.layers().size(); ++i) {
    const LayerSpec& spec = state.config().layers[i];
    const auto take = [&](RecordType type, const PayloadPlace& place) {
      payload.resize(place.bytes);
      absl::Status s = ReadPayload(file, place, payload);
      return s.ok() ? Take(spec, type, place.offset, payload) : s;
    };
    if (absl::Status s = ForEachPayload(state.layers()[i], take); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SessionLoader::Load(const SessionFileState& state,
                                 std::span<LayerState* const> layers) {
  // All that may throw comes before a layer is touched.
  std::vector<LayerState::Parts> parts;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    parts.push_back(PartsOf(state.layers()[i]));
    parts.back().last_append = state.last_commit()->layers[i].last_append;
  }
  // The layers count their rows themselves.
  rows_memory_.Shrink(rows_memory_.bytes());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (absl::Status s = layers[i]->Load(std::move(parts[i])); !s.ok()) return s;
  }
  return absl::OkStatus();
}

LayerState::Parts SessionLoader::PartsOf(const FileLayer& layer) const {
  LayerState::Parts parts{.sinks = {},
                          .pages = {},
                          .window = Window(layer.window_begin()),
                          .sample = {},
                          .directions = {},
                          .length = layer.length(),
                          .last_append = {}};
  if (layer.sinks()) parts.sinks = blocks_.at(layer.sinks()->place.offset);
  for (const FilePiece& page : layer.pages()) {
    // Only after a page that a truncate has shortened does another begin before kPageTokens.
    parts.pages.Reserve(1);
    parts.pages.Push(blocks_.at(page.place.offset), page.begin, page.blind);
    if (page.tokens == kPageTokens) continue;
    parts.pages.PrepareTruncate(page.end());
    parts.pages.Truncate(page.end());
  }
  parts.window.Reserve(layer.blocks().size());
  for (const FilePiece& block : layer.blocks()) {
    parts.window.PushBack(blocks_.at(block.place.offset));
  }
  for (const FilePiece& query : layer.queries()) {
    parts.sample.positions.push_back(query.begin);
    AppendRows(rows_.at(query.place.offset), parts.sample.rows);
  }
  if (const auto& found = layer.directions()) {
    const std::vector<std::byte>& bytes = rows_.at(found->place.offset);
    parts.directions.resize(bytes.size() / sizeof(float));
    std::memcpy(parts.directions.data(), bytes.data(), bytes.size());
    parts.directions_begin = found->begin;
  }
  return parts;
}

}  // namespace oscarkv
