// Reads a session file: as a stream of bytes in pieces of any size, with all checks, or by jumping
// over payloads in a file that can be read at any place.
//
// What counts is the state at the last whole commit. Behind it a file may end anywhere, as a crash
// leaves it: that tail is ignored and told of. But where any later record shows that a commit is
// damaged or gone, or that one lies behind damage, the file is refused with DATA_LOSS: it never
// passes for an older state of itself.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/byte_stream.h"
#include "server/file/commit_finder.h"
#include "server/file/file_state.h"

namespace oscarkv {

// Is told of what a file holds, in its order. An error of a visitor ends the reading.
class SessionFileVisitor {
 public:
  virtual ~SessionFileVisitor() = default;
  virtual absl::Status OnSession(const SessionFields& fields) = 0;
  // A record of a layer, whole and checked; whether it counts, only a commit tells.
  virtual absl::Status OnRecord(const RecordHeader& header, std::span<const std::byte> payload) = 0;
  // Of the payloads so far, those that `state` names count.
  virtual absl::Status OnCommit(const SessionFileState& state) = 0;
};

struct SessionFileContents {
  SessionFileState state;        // at the last commit
  std::uint64_t tail_bytes = 0;  // behind it, ignored
  absl::Status damage;           // DATA_LOSS where the tail is not made of whole records
};

// Memory: a record, and a few dozen bytes for each record of the file.
class SessionFileReader {
 public:
  // REQUIRES: visitor, if not null, outlives the reader.
  explicit SessionFileReader(SessionFileVisitor* visitor = nullptr) : visitor_(visitor) {}
  // Goes on behind the last commit of a file. REQUIRES: `state` is that of it.
  explicit SessionFileReader(SessionFileState state);
  SessionFileReader(const SessionFileReader&) = delete;
  SessionFileReader& operator=(const SessionFileReader&) = delete;

  // The next bytes of the file. DATA_LOSS where they are damaged beyond what a crash explains or
  // are nothing that a writer writes; FAILED_PRECONDITION where another version wrote them. After
  // an error, the reader only repeats it.
  absl::Status Push(std::span<const std::byte> bytes);
  // All bytes were pushed. DATA_LOSS as of Push, and where there is no whole commit.
  // REQUIRES: called once, at the end.
  absl::StatusOr<SessionFileContents> Finish();

  // How many bytes come next that need not be read, but by who wants them: a payload. 0: none.
  std::uint64_t Skippable() const;
  // In place of pushing these. REQUIRES: Skippable() > 0.
  void Skip();
  // How many bytes are read next with a purpose; more are welcome. > 0.
  std::uint64_t Wanted() const;

 private:
  enum class Stage : std::uint8_t { kStart, kHeader, kPayload, kDamage };

  absl::Status Consume(std::span<const std::byte> whole);
  absl::Status ConsumeHeader(std::span<const std::byte> bytes);
  absl::Status ConsumePayload(std::span<const std::byte> padded);
  absl::Status ConsumeSession(std::span<const std::byte> payload);
  absl::Status ConsumeCommit(std::span<const std::byte> payload);
  void NextRecord();
  absl::Status Damage(std::string_view found, std::string_view expected,
                      std::span<const std::byte> bytes);

  SessionFileVisitor* const visitor_;
  Stage stage_ = Stage::kStart;
  std::uint64_t received_ = 0;  // bytes of the file
  std::uint64_t offset_ = 0;    // of the record under way
  std::uint64_t file_id_ = 0;
  RecordHeader header_;                    // in stage kPayload
  std::vector<std::byte> buffer_;          // of the stage, until there is enough
  std::optional<SessionFileState> state_;  // at the last commit
  std::vector<RecordHeader> pending_;      // records since
  absl::Status damage_;                    // behind the last commit; OK: none seen
  CommitFinder finder_;                    // in stage kDamage
  absl::Status status_;
};

// Reads all of a file, with all checks.
absl::StatusOr<SessionFileContents> ReadSessionFile(const ByteSource& file,
                                                    SessionFileVisitor* visitor);
// The same without payloads up to the last commit: whoever uses one reads it with ReadPayload.
absl::StatusOr<SessionFileContents> IndexSessionFile(const ByteSource& file);
// DATA_LOSS where its checksum is wrong. REQUIRES: payload.size() == place.bytes.
absl::Status ReadPayload(const ByteSource& file, const PayloadPlace& place,
                         std::span<std::byte> payload);

}  // namespace oscarkv
