// ExportSession: a stream of the pieces of a session file.
//
// Thread-safety: as of ReplyStream.
#pragma once

#include <optional>
#include <string>

#include "server/rpc/reply_stream.h"
#include "server/rpc/session_exporter.h"

namespace oscarkv {

class ExportSessionStream final : public ReplyStream {
 public:
  ExportSessionStream(Handlers& handlers, WorkQueue& queue,
                      const grpc::CallbackServerContext* context)
      : ReplyStream(handlers, queue, "ExportSession", context) {}

 private:
  absl::Status Prepare(grpc::ByteBuffer& request) override;
  absl::Status Next(grpc::ByteBuffer& message) override;
  bool done() const override { return exporter_->done(); }

  v1::ExportSessionRequest request_;
  std::string tenant_;
  std::optional<SessionExporter> exporter_;
};

}  // namespace oscarkv
