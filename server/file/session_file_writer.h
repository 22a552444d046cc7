// Writes a session file: a new one, or more records behind the last commit of one that is there.
// A commit makes what was added since the last one count. What to add is the difference between
// the session and state(): so a checkpoint costs what is new.
//
// Thread-safety: none.
//
// After an error of the sink a writer only repeats that error: what was added since the last commit
// is lost, and parts of it may be in the file. To go on, read the file, cut it where its last
// commit ends and begin with what was read. Other errors refuse what no reader would accept, and
// change nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/byte_stream.h"
#include "server/file/durability.h"
#include "server/file/file_state.h"

namespace oscarkv {

class SessionFileWriter {
 public:
  // Begins a new file. `file_id`: any number that no other file on the same disk has or had, so
  // that bytes which a crash leaves from another file are not taken for this one's.
  // INVALID_ARGUMENT where CreateSession would not accept the session.
  // REQUIRES: sink outlives the writer.
  static absl::StatusOr<std::unique_ptr<SessionFileWriter>> Create(SessionFields fields,
                                                                   std::uint64_t file_id,
                                                                   ByteSink* sink);
  // Goes on with a file. REQUIRES: `state` is that of its last commit, and what is written to
  // `sink` comes to lie at state.committed_end().
  SessionFileWriter(SessionFileState state, ByteSink* sink);
  SessionFileWriter(const SessionFileWriter&) = delete;
  SessionFileWriter& operator=(const SessionFileWriter&) = delete;

  // With all that was added, also what is not committed yet.
  const SessionFileState& state() const { return state_; }
  // Only the destructor may be called then.
  SessionFileState TakeState() && { return std::move(state_); }
  // Bytes of the file, also those that the sink does not have yet.
  std::uint64_t size() const { return size_; }

  // Each adds a record to layer `layer`, an index in the session's layers. Payloads have the sizes
  // that kernels/api/page_layout.h tells, rows the storage dtype.

  // The layer's first tokens, all that there are of them up to codec.sinks. `block`:
  // TokenBlockLayout(spec, tokens). Takes the place of what was there.
  absl::Status AddSinks(std::size_t layer, int tokens, std::span<const std::byte> block);
  // The page behind the last one, with its first `tokens` tokens valid; blocks and queries that it
  // covers go. `blind`: it was sealed without the queries that it wanted.
  absl::Status AddPage(std::size_t layer, std::int64_t begin, int tokens, bool blind,
                       std::span<const std::byte> page);
  // Tokens [begin, begin + tokens) of the window, at most kWindowBlockTokens: those behind the
  // last, full, block, or in the place of a block and all after it. TokenBlockLayout(spec, tokens).
  absl::Status AddBlock(std::size_t layer, std::int64_t begin, int tokens,
                        std::span<const std::byte> block);
  // A row of the query sample, [query_heads][key_dim], at the position of a token in the window;
  // takes the place of one of that position.
  absl::Status AddQuery(std::size_t layer, std::int64_t position, std::span<const std::byte> row);
  // Residual directions [kv_heads][key_dim], fp32, found by the page at `begin`.
  absl::Status AddDirections(std::size_t layer, std::int64_t begin,
                             std::span<const std::byte> directions);
  // Drops tokens, queries and directions as truncating the layer to `length` does.
  absl::Status Truncate(std::size_t layer, std::int64_t length);
  // Frees what is between the sinks and `begin`: where a page or a block begins, or behind all that
  // is there, so that the next page or block begins there.
  absl::Status Release(std::size_t layer, std::int64_t begin);

  // Hands all to the sink. INVALID_ARGUMENT or DATA_LOSS if the commit is not what was added.
  absl::Status Commit(const SessionCommit& commit, Durability durability);

 private:
  RecordHeader HeaderOf(RecordType type, std::span<const std::byte> payload) const;
  absl::Status AddToLayer(RecordType type, std::size_t layer, std::int64_t begin,
                          std::int64_t count, std::span<const std::byte> payload,
                          std::uint16_t flags = 0);
  void Buffer(const RecordHeader& header, std::span<const std::byte> payload);
  absl::Status Flush();
  absl::Status Sync();

  SessionFileState state_;
  ByteSink* const sink_;
  std::vector<std::byte> buffer_;  // what the sink does not have yet
  std::uint64_t size_;
  absl::Status broken_;
};

}  // namespace oscarkv
