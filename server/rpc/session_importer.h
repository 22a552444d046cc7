// Makes a session of a file that comes in messages.
//
// Thread-safety: none.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_import.h"
#include "server/session/session_store.h"

namespace oscarkv {

class SessionImporter {
 public:
  // REQUIRES: store outlives the importer.
  explicit SessionImporter(SessionStore& store) : store_(store) {}

  // The next message. INVALID_ARGUMENT where it is none that may come next; errors of the file.
  // After an error only the destructor may be called.
  absl::Status Take(const v1::ImportSessionRequest& request);
  // There are no more. Errors likewise.
  absl::Status Finish(v1::ImportSessionResponse& response);

 private:
  absl::Status Begin(const v1::ImportSessionHeader& header);

  SessionStore& store_;
  std::unique_ptr<SessionImport> import_;  // null until there is a header
};

}  // namespace oscarkv
