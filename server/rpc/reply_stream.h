// A request that is answered by a stream: each message is made when the one before is on its way.
//
// Thread-safety: a chain of steps, never two at once; gRPC and the queue order them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/queue/work.h"
#include "server/rpc/handlers.h"
#include "server/rpc/rpc_scope.h"

namespace oscarkv {

class ReplyStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>, protected Work {
 public:
  // Hands `stream` over to gRPC, to be returned from the service's method; it deletes itself when
  // it is done.
  static ReplyStream* Start(std::unique_ptr<ReplyStream> stream, grpc::ByteBuffer& request);

 protected:
  // REQUIRES: handlers and queue outlive it.
  ReplyStream(Handlers& handlers, WorkQueue& queue, const char* method,
              const grpc::CallbackServerContext* context)
      : handlers_(handlers), scope_(queue, method, context) {}

  // Parses the request, and sets the facts of the first step.
  virtual absl::Status Prepare(grpc::ByteBuffer& request) = 0;
  // One step: the next message, or none, where there is nothing to send.
  virtual absl::Status Next(grpc::ByteBuffer& message) = 0;
  // Whether Next has made the last message. REQUIRES: it was called.
  virtual bool done() const = 0;

  Handlers& handlers_;

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  void Run() override;  // one step
  bool IsGivenUp() const override { return scope_.IsGivenUp(); }
  void Drop(WhyDropped why) override;
  void End(const absl::Status& status);

  RpcScope scope_;  // holds a place in the queue until the first message is made
  grpc::ByteBuffer message_;
};

}  // namespace oscarkv
