// ReadTokens: a stream of runs of tokens, each decoded when the one before is on its way.
//
// Thread-safety: a chain of steps, never two at once; gRPC and the queue order them.
#pragma once

#include <optional>
#include <string>

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/queue/work.h"
#include "server/rpc/handlers.h"
#include "server/rpc/rpc_scope.h"
#include "server/rpc/token_reader.h"

namespace oscarkv {

class ReadTokensStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private Work {
 public:
  // Deletes itself when the stream is done. REQUIRES: handlers and queue outlive it.
  ReadTokensStream(Handlers& handlers, WorkQueue& queue, const grpc::CallbackServerContext* context,
                   grpc::ByteBuffer& request);

 private:
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  absl::Status Prepare(grpc::ByteBuffer& bytes);
  void Run() override;  // one step
  bool IsGivenUp() const override { return scope_.IsGivenUp(); }
  void Drop(WhyDropped why) override;
  absl::Status NextRun();
  void End(const absl::Status& status);

  Handlers& handlers_;
  RpcScope scope_;  // holds a place in the queue until the first run is decoded
  v1::ReadTokensRequest request_;
  std::string tenant_;
  std::optional<TokenReader> reader_;
  grpc::ByteBuffer run_;
};

}  // namespace oscarkv
