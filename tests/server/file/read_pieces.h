// Reads a session file that is pushed in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "server/file/session_file_reader.h"

namespace oscarkv {

// `piece`: bytes of each piece.
inline absl::StatusOr<SessionFileContents> ReadPieces(std::span<const std::byte> bytes,
                                                      std::size_t piece = SIZE_MAX) {
  SessionFileReader reader;
  while (!bytes.empty()) {
    const std::size_t taken = std::min(piece, bytes.size());
    if (absl::Status s = reader.Push(bytes.first(taken)); !s.ok()) return s;
    bytes = bytes.subspan(taken);
  }
  return reader.Finish();
}

}  // namespace oscarkv
