// Makes the layers of a session from its file: takes payloads as they come, in whatever order the
// file has them, and puts those that count together in the end.
//
// What it holds is in the memory budget. Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "kernels/api/layer_spec.h"
#include "server/file/byte_stream.h"
#include "server/file/file_state.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/layer_state.h"

namespace oscarkv {

class SessionLoader {
 public:
  // REQUIRES: all outlive the loader.
  SessionLoader(Backend* backend, BlockPool* pool, MemoryBudget* budget);
  SessionLoader(const SessionLoader&) = delete;
  SessionLoader& operator=(const SessionLoader&) = delete;

  // Takes the payload that is at `offset` of the file, of a record of that type of a layer.
  // RESOURCE_EXHAUSTED where memory has no room for it. REQUIRES: it is whole and checked.
  absl::Status Take(const LayerSpec& spec, RecordType type, std::uint64_t offset,
                    std::span<const std::byte> payload);
  // How many it holds.
  std::size_t payloads() const { return blocks_.size() + rows_.size(); }
  // Forgets payloads that do not count at `state`.
  void KeepOnly(const SessionFileState& state);
  // Takes all that count. Errors of the file too.
  absl::Status TakeAll(const ByteSource& file, const SessionFileState& state);

  // Makes the layers. If it fails, some of them have been made. REQUIRES: `layers` are the
  // session's, empty; all payloads that count at `state` were taken.
  absl::Status Load(const SessionFileState& state, std::span<LayerState* const> layers);

 private:
  absl::Status TakeBlock(MemoryKind kind, std::uint64_t offset, std::span<const std::byte> bytes);
  LayerState::Parts PartsOf(const FileLayer& layer) const;

  Backend* const backend_;
  BlockPool* const pool_;
  absl::btree_map<std::uint64_t, BlockRef> blocks_;              // by offset in the file
  absl::btree_map<std::uint64_t, std::vector<std::byte>> rows_;  // queries and directions
  MemoryReservation rows_memory_;
};

}  // namespace oscarkv
