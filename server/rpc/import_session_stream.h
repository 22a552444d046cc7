// ImportSession: a stream of the pieces of a session file, and one reply.
//
// Thread-safety and invariants: as of RequestStream. There is a scope from the arrival of the first
// message on: what a stream holds until then is one message, and from there on it has a ticket of
// its tenant's.
#pragma once

#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/queue/work.h"
#include "server/rpc/handlers.h"
#include "server/rpc/request_stream.h"
#include "server/rpc/session_importer.h"

namespace oscarkv {

class ImportSessionStream final : public RequestStream<grpc::ServerReadReactor<grpc::ByteBuffer>>,
                                  private Work {
 public:
  // REQUIRES: handlers and queue outlive it, `reply` the call.
  ImportSessionStream(Handlers& handlers, WorkQueue& queue,
                      const grpc::CallbackServerContext* context, grpc::ByteBuffer& reply)
      : RequestStream(queue, "ImportSession", context),
        handlers_(handlers),
        reply_(reply),
        importer_(std::make_unique<SessionImporter>(handlers.store())) {}

 private:
  void Process(bool more) override;
  void Release(const absl::Status& status) override;

  absl::Status Prepare(bool first);
  absl::Status Step();

  void Run() override;  // one step
  bool IsGivenUp() const override { return scope_->IsGivenUp(); }
  void Drop(WhyDropped why) override;

  Handlers& handlers_;
  grpc::ByteBuffer& reply_;
  std::unique_ptr<SessionImporter> importer_;
  std::string tenant_;
  v1::ImportSessionRequest message_;
  bool more_ = true;  // message_ is one; otherwise all have come
};

}  // namespace oscarkv
