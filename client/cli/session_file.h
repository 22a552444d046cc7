// Session files as the commands read them (server/file/SESSION_FILE.md), only ever to read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/file/posix_file.h"
#include "server/file/session_file_reader.h"

namespace oscarkv {

struct SessionFile {
  std::unique_ptr<PosixFile> file;
  std::uint64_t bytes = 0;
  SessionFileContents contents;
};

// Errors name the path: NOT_FOUND and the like, INVALID_ARGUMENT where it is no regular file.
absl::StatusOr<std::unique_ptr<PosixFile>> OpenSessionFile(const std::string& path);
// Reads all of a file, with all checks; or, quickly, all but payloads up to the last commit.
// Errors name the path and say what is wrong with it, with details as those of a server: NOT_FOUND
// and the like where it cannot be read, FAILED_PRECONDITION where another version wrote it,
// DATA_LOSS where it is no session file or damaged.
absl::StatusOr<SessionFile> ReadWholeSessionFile(const std::string& path);
absl::StatusOr<SessionFile> ReadSessionFileIndex(const std::string& path);

// The least length of all layers at the last commit.
std::int64_t CommittedLength(const SessionFileState& state);

// What is wrong with what follows the last commit; nullopt: nothing, or nothing follows.
std::optional<std::string> TailDamage(const SessionFileContents& contents);
// "a tail of 64 bytes, which is ignored (what is wrong with it)"; "" where there is none.
std::string DescribeTail(const SessionFileContents& contents);

}  // namespace oscarkv
