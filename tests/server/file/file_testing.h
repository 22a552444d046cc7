// What the tests of session files share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/file/session_file_reader.h"
#include "server/file/session_file_writer.h"
#include "tests/server/file/file_model.h"
#include "tests/server/file/memory_file.h"

namespace oscarkv {

using FileBytes = std::vector<std::byte>;

inline constexpr std::uint64_t kTestFileId = 0x1234'5678'9abc'def0;

// Reads bytes pushed in pieces of that size.
absl::StatusOr<SessionFileContents> ReadPieces(std::span<const std::byte> bytes,
                                               std::size_t piece = SIZE_MAX);

// A file and what is known of it.
struct TestFile {
  MemoryFile file;
  struct End {
    std::size_t offset = 0;  // behind a commit record; its confirmation follows
    SessionCommit commit;
  };
  std::vector<End> commits;

  // Where the records begin, in order.
  std::vector<std::size_t> Records() const;
};

// One small layer, three commits with blocks, queries, truncates; about 8 KB. No pages.
TestFile SmallFile();

}  // namespace oscarkv
