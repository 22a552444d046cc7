// Sessions as files, whole.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/session/session_store.h"

namespace oscarkv {

// The file of a session, taken `most` bytes at a time.
std::vector<std::byte> ExportAll(SessionStore* store, const std::string& session,
                                 std::size_t most = 1 << 20);
// What becomes of a file that comes in pieces.
absl::StatusOr<SessionInfo> ImportAll(SessionStore* store, const std::vector<std::byte>& file,
                                      ImportOptions options);

}  // namespace oscarkv
