// Makes a session of a file that comes in pieces. Until all of it is there and right, nobody finds
// the session; what was taken is in the memory budget, and freed if it comes to nothing.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/session_file_reader.h"
#include "server/session/session_loader.h"
#include "server/session/session_store.h"

namespace oscarkv {

class SessionImport : private SessionFileVisitor {
 public:
  // Puts the session that a file has into its place; errors as SessionStore::Create's.
  using Put = std::function<absl::StatusOr<SessionInfo>(
      SessionConfig config, const SessionFileState& state, SessionLoader* loader)>;

  // Does what may be refused memory; again, where room can be made for it.
  using WithRoom = std::function<absl::Status(absl::FunctionRef<absl::Status()> attempt)>;

  SessionImport(ImportOptions options, std::unique_ptr<SessionLoader> loader, WithRoom with_room,
                Put put);
  SessionImport(const SessionImport&) = delete;
  SessionImport& operator=(const SessionImport&) = delete;

  // The next bytes, any number of them. DATA_LOSS, FAILED_PRECONDITION as SessionFileReader's;
  // FAILED_PRECONDITION, FILE_MISMATCH, where the file is not of what the options name;
  // RESOURCE_EXHAUSTED. After an error only the destructor may be called.
  absl::Status Push(std::span<const std::byte> bytes);
  // All bytes were pushed. The session has a new generation. A repeat (the same request_id, session
  // and bytes) changes nothing. DATA_LOSS also where the file does not end with its last commit:
  // a part of it is missing; ALREADY_EXISTS.
  absl::StatusOr<SessionInfo> Finish();

 private:
  absl::Status OnSession(const SessionFields& fields) override;
  absl::Status OnRecord(const RecordHeader& header, std::span<const std::byte> payload) override;
  absl::Status OnCommit(const SessionFileState& state) override;

  ImportOptions options_;
  const std::unique_ptr<SessionLoader> loader_;
  const WithRoom with_room_;
  const Put put_;
  SessionConfig config_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
  std::size_t sweep_at_ = 1024;  // payloads
  SessionFileReader reader_;
};

}  // namespace oscarkv
