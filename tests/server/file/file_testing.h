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
#include "tests/server/file/read_pieces.h"

namespace oscarkv {

using FileBytes = std::vector<std::byte>;

inline constexpr std::uint64_t kTestFileId = 0x1234'5678'9abc'def0;

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
