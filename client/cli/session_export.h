// Exports of a session of a server into a file, one function for each format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/new_file.h"
#include "client/client.h"

namespace oscarkv {

struct ExportRequest {
  std::string session;
  // The first tokens alone, that many; otherwise all that every layer has.
  std::optional<std::int64_t> length;
  // Called often; true: stop and return CANCELLED.
  std::function<bool()> cancelled = [] { return false; };
  // Called as work goes on with how much of how much is done.
  std::function<void(std::int64_t, std::int64_t)> on_progress = [](std::int64_t, std::int64_t) {};
};

struct ExportReport {
  std::uint64_t generation = 0;  // of the session
  std::int64_t length = 0;
  int layers = 0;
  std::uint64_t bytes = 0;  // of the file
};

// A session file (server/file/SESSION_FILE.md), as the server sends it: the session as it was when
// the export began. REQUIRES: no `length`.
absl::StatusOr<ExportReport> ExportSessionFile(Client& client, const ExportRequest& request,
                                               NewFile& file);

// A recording without queries (client/recording/recording.h): keys and values of every layer,
// decoded to 16 bits. Of layers that have freed tokens, what is left. Holds one message of the
// server at a time in memory. OUT_OF_RANGE where the session is shorter than asked, or has no
// tokens on some layer; FAILED_PRECONDITION or NOT_FOUND where it changes meanwhile.
absl::StatusOr<ExportReport> ExportRecording(Client& client, const ExportRequest& request,
                                             NewFile& file);

}  // namespace oscarkv
