// Exports a session as a file, in messages.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_export.h"
#include "server/session/session_store.h"

namespace oscarkv {

class SessionExporter {
 public:
  // Checks the request, and begins. REQUIRES: store outlives the exporter.
  static absl::StatusOr<SessionExporter> Open(SessionStore& store,
                                              const v1::ExportSessionRequest& request,
                                              std::int64_t max_message_bytes);

  bool done() const { return export_->done() && taken_ == bytes_.size(); }

  // The next message. REQUIRES: !done(); the response is empty.
  absl::Status Next(v1::ExportSessionResponse& response);

 private:
  SessionExporter(std::unique_ptr<SessionExport> made, std::size_t piece)
      : export_(std::move(made)), piece_(piece) {}

  std::unique_ptr<SessionExport> export_;
  std::size_t piece_;             // bytes of a message, at most
  bool began_ = false;            // the header has been given
  std::vector<std::byte> bytes_;  // of the file, of which the first taken_ have been given
  std::size_t taken_ = 0;
};

}  // namespace oscarkv
