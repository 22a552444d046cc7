// What a session file holds: the session, and where in the file its state is. Writer and reader
// both keep one, so that what a writer lets pass a reader accepts.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/commit.h"
#include "server/file/file_layer.h"
#include "server/file/record.h"
#include "server/file/session_fields.h"

namespace oscarkv {

class SessionFileState {
 public:
  // REQUIRES: CheckSession(fields.config) is OK. `session_bytes`: of the session record's payload.
  SessionFileState(SessionFields fields, std::uint64_t file_id, std::uint64_t session_bytes);

  const SessionFields& fields() const { return fields_; }
  const SessionConfig& config() const { return fields_.config; }
  std::uint64_t file_id() const { return file_id_; }
  const std::vector<FileLayer>& layers() const { return layers_; }  // as config().layers
  const std::optional<SessionCommit>& last_commit() const { return last_commit_; }
  std::uint32_t commits() const { return commits_; }
  // Where the last commit ends, and its confirmation if there is one: appending goes on there.
  std::uint64_t committed_end() const { return committed_end_; }
  // What a new file of the same state would take, but for its commit.
  std::uint64_t live_bytes() const;

  // Whether the header's fields fit the session, all that can be told without the records before
  // it; so the payload's size is what it must be. FAILED_PRECONDITION for an unknown type, else
  // DATA_LOSS. REQUIRES: the header's checksum is right.
  absl::Status Check(const RecordHeader& header) const;
  // Whether the numbers of a payload are such as the service accepts: finite. DATA_LOSS if not.
  // REQUIRES: Check(header) is OK.
  absl::Status CheckPayload(const RecordHeader& header, std::span<const std::byte> payload) const;

  // The records of the file after the first, in their order. DATA_LOSS where one does not follow on
  // what is there; then nothing changes. REQUIRES: Check(header) is OK.
  absl::Status Apply(const RecordHeader& header);  // all but commits
  absl::Status ApplyCommit(const RecordHeader& header, SessionCommit commit);

 private:
  SessionFields fields_;
  std::uint64_t file_id_;
  std::uint64_t session_end_;  // of the session record
  std::vector<FileLayer> layers_;
  std::optional<SessionCommit> last_commit_;
  std::uint32_t commits_ = 0;
  std::uint64_t committed_end_ = 0;
};

}  // namespace oscarkv
