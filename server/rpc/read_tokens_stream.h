// ReadTokens: a stream of runs of tokens.
//
// Thread-safety: as of ReplyStream.
#pragma once

#include <optional>
#include <string>

#include "server/rpc/reply_stream.h"
#include "server/rpc/token_reader.h"

namespace oscarkv {

class ReadTokensStream final : public ReplyStream {
 public:
  ReadTokensStream(Handlers& handlers, WorkQueue& queue, const grpc::CallbackServerContext* context)
      : ReplyStream(handlers, queue, "ReadTokens", context) {}

 private:
  absl::Status Prepare(grpc::ByteBuffer& request) override;
  absl::Status Next(grpc::ByteBuffer& message) override;
  bool done() const override { return reader_->done(); }

  v1::ReadTokensRequest request_;
  std::string tenant_;
  std::optional<TokenReader> reader_;
};

}  // namespace oscarkv
