// A bidirectional stream with one reply for each request, in order: read, work, write, read again.
// So a client that does not read is not read from.
//
// Thread-safety and invariants: as of RequestStream. There is a scope from a message's arrival
// until its reply is out.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/request_stream.h"

namespace oscarkv {

class ExchangeStream
    : public RequestStream<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 protected:
  using RequestStream::RequestStream;

  // Answers `request`, sooner or later, by Send. scope.status() may be that there is no place for
  // it, which is told in the reply. The scope lasts until Send.
  virtual void Answer(RpcScope& scope, grpc::ByteBuffer& request) = 0;
  void Send(grpc::ByteBuffer reply);

 private:
  void Process(bool more) override;
  void Release(const absl::Status& /*status*/) override { scope_.reset(); }
  void OnWriteDone(bool ok) override;

  grpc::ByteBuffer reply_;
};

}  // namespace oscarkv
