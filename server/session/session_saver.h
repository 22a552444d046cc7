// Writes the layers of a session to its file: what differs from what the file has. Of an empty file
// that is all; of one that was written before, what is new.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/file/session_file_writer.h"
#include "server/session/layer_state.h"

namespace oscarkv {

class SessionSaver {
 public:
  // `layers`: as the session's. `unchanged_to`: tokens before it are the ones that the file has, as
  // far as it has them. REQUIRES: all outlive the saver, and the layers stay as they are.
  SessionSaver(std::vector<const LayerState*> layers, std::int64_t unchanged_to, Backend* backend,
               SessionFileWriter* writer);
  SessionSaver(const SessionSaver&) = delete;
  SessionSaver& operator=(const SessionSaver&) = delete;

  // Whether all is written, but for a commit.
  bool done() const { return layer_ == layers_.size(); }
  // Writes a piece more. Errors: the sink's, the backend's; DATA_LOSS where the file is not of an
  // earlier state of the session. REQUIRES: !done().
  absl::Status Step();
  absl::Status All();

 private:
  // A page or a block of the window.
  struct Piece {
    BlockId block = kNoBlock;
    std::int64_t begin = 0;
    std::int32_t tokens = 0;
    bool is_page = false;
    bool blind = false;
  };

  absl::Status Begin();
  absl::Status Drop();
  void ListPieces();
  absl::Status Write(const Piece& piece);
  absl::Status End();
  absl::Status ReadTokensOf(const BlockRef& block, int tokens);
  absl::Status Read(BlockId block, std::int64_t bytes);

  const LayerState& layer() const { return *layers_[layer_]; }
  const FileLayer& file() const { return writer_->state().layers()[layer_]; }

  const std::vector<const LayerState*> layers_;
  const std::int64_t unchanged_to_;
  Backend* const backend_;
  SessionFileWriter* const writer_;

  std::size_t layer_ = 0;
  bool begun_ = false;         // the layer
  std::vector<Piece> pieces_;  // of the layer, in the order of the file
  std::size_t next_ = 0;
  std::vector<std::byte> buffer_;  // what was read last
};

}  // namespace oscarkv
