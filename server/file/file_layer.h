// Where in a file the tokens of one layer are, by its records so far.
//
// Thread-safety: none.
//
// Invariants (compare server/session/layer_state.h):
//   1. Positions [0, sink_tokens) are in the sinks, [released_to, window_begin()) in pages and
//      [window_begin(), length()) in blocks; those between the sinks and released_to are gone.
//   2. Pages follow each other without gaps, each of 1 to kPageTokens tokens; so do blocks, all of
//      kWindowBlockTokens but the last.
//   3. Queries ascend, at positions >= window_begin().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/layer_spec.h"
#include "server/file/record.h"

namespace oscarkv {

// A record's payload in the file.
struct PayloadPlace {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t crc = 0;  // with the zeros that follow, as RecordHeader::payload_crc

  friend bool operator==(const PayloadPlace&, const PayloadPlace&) = default;
};

// A page, a block or a sampled query.
struct FilePiece {
  std::int64_t begin = 0;
  std::int32_t tokens = 0;  // of a query: 1
  bool blind = false;       // a page that was sealed without the queries that it wanted
  PayloadPlace place;

  std::int64_t end() const { return begin + tokens; }
  friend bool operator==(const FilePiece&, const FilePiece&) = default;
};

class FileLayer {
 public:
  explicit FileLayer(const LayerSpec& spec)
      : sink_capacity_(spec.codec.sinks), released_to_(spec.codec.sinks) {}

  // The records of a layer, in the order of the file. REQUIRES: `header` has passed
  // SessionFileState::Check. DATA_LOSS where it does not follow on what is there; then nothing
  // changes.
  absl::Status Apply(const RecordHeader& header);
  // Whether the layer is whole and `length` long; DATA_LOSS for the commit at `offset` if not.
  absl::Status CheckWhole(std::uint64_t offset, std::int64_t length) const;

  std::int64_t length() const;
  std::int64_t window_begin() const;
  std::int64_t released_to() const { return released_to_; }

  const std::optional<FilePiece>& sinks() const { return sinks_; }
  const std::vector<FilePiece>& pages() const { return pages_; }
  const std::vector<FilePiece>& blocks() const { return blocks_; }
  const std::vector<FilePiece>& queries() const { return queries_; }
  // `begin` is that of the page that found them; no tokens.
  const std::optional<FilePiece>& directions() const { return directions_; }

  // Of the records that are live, with their headers and padding.
  std::uint64_t live_bytes() const;

  friend bool operator==(const FileLayer&, const FileLayer&) = default;

 private:
  absl::Status AddPage(const FilePiece& page);
  absl::Status AddBlock(const FilePiece& block);
  absl::Status AddQuery(const FilePiece& query);
  absl::Status Truncate(std::uint64_t offset, std::int64_t length);
  absl::Status Release(std::uint64_t offset, std::int64_t begin);
  std::int64_t sink_tokens() const { return sinks_ ? sinks_->tokens : 0; }

  std::int64_t sink_capacity_;
  std::int64_t released_to_;  // sink_capacity_ where nothing was released
  std::optional<FilePiece> sinks_;
  std::vector<FilePiece> pages_;
  std::vector<FilePiece> blocks_;
  std::vector<FilePiece> queries_;
  std::optional<FilePiece> directions_;
};

}  // namespace oscarkv
