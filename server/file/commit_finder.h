// Looks behind damage in a session file for what shows that a crash does not explain it: a commit,
// or a record that was written after a commit which was not seen.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/file/record.h"

namespace oscarkv {

class CommitFinder {
 public:
  CommitFinder() = default;
  // What is pushed begins at byte `offset` of the file; `commits` were seen in it.
  CommitFinder(std::uint64_t file_id, std::uint32_t commits, std::uint64_t offset)
      : file_id_(file_id), commits_(commits), offset_(offset) {}

  // The next bytes. `damage`, with what was found, where a header of this file with the right
  // checksum shows a commit, at whatever place it is. REQUIRES: damage is not OK.
  absl::Status Push(std::span<const std::byte> bytes, const absl::Status& damage);

 private:
  std::uint64_t file_id_ = 0;
  std::uint32_t commits_ = 0;
  std::uint64_t offset_ = 0;       // of the buffer
  std::vector<std::byte> buffer_;  // bytes that a header may begin with
};

}  // namespace oscarkv
