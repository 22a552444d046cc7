// A session as a file, in pieces as they are asked for, while the session itself goes on.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "server/file/byte_stream.h"
#include "server/file/session_file_writer.h"
#include "server/session/session.h"
#include "server/session/session_saver.h"

namespace oscarkv {

class SessionExport {
 public:
  // `copy`: what is exported, which no one else knows.
  static absl::StatusOr<std::unique_ptr<SessionExport>> Begin(SessionFields fields,
                                                              SessionCommit commit,
                                                              std::shared_ptr<Session> copy,
                                                              Backend* backend);

  // What is exported.
  const SessionCommit& commit() const { return commit_; }
  bool done() const { return !saver_; }
  // The next bytes of the file: about `most`, a record at most beyond it; the last ones may be
  // none. Errors: the backend's. REQUIRES: !done().
  absl::StatusOr<std::vector<std::byte>> Next(std::size_t most);

 private:
  // Collects what is written.
  class Collector : public ByteSink {
   public:
    absl::Status Write(std::span<const std::byte> bytes) override {
      collected.insert(collected.end(), bytes.begin(), bytes.end());
      return absl::OkStatus();
    }
    absl::Status Sync() override { return absl::OkStatus(); }

    std::vector<std::byte> collected;
  };

  SessionExport(SessionCommit commit, std::shared_ptr<Session> copy)
      : commit_(std::move(commit)), copy_(std::move(copy)) {}

  const SessionCommit commit_;
  std::shared_ptr<Session> copy_;
  Collector sink_;
  std::unique_ptr<SessionFileWriter> writer_;
  std::optional<SessionSaver> saver_;
};

}  // namespace oscarkv
