#include "server/rpc/read_tokens_stream.h"

#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/rpc/wire.h"

namespace oscarkv {

ReadTokensStream::ReadTokensStream(Handlers& handlers, WorkQueue& queue,
                                   const grpc::CallbackServerContext* context,
                                   grpc::ByteBuffer& request)
    : handlers_(handlers), scope_(queue, "ReadTokens", context), request_(request) {
  if (scope_.admitted().ok()) {
    queue.Run([this] { Step(); });
  } else {
    End(scope_.admitted());
  }
}

void ReadTokensStream::Step() {
  const absl::Status status = scope_.Run([this] { return NextRun(); });
  if (!status.ok() || !run_.Valid()) return End(status);
  scope_.EndWork();  // a client that reads slowly keeps no one else waiting
  StartWrite(&run_);
}

// Leaves run_ empty at the end.
absl::Status ReadTokensStream::NextRun() {
  if (!reader_.has_value()) {
    v1::ReadTokensRequest request;
    if (absl::Status s = ParseMessage(request_, request); !s.ok()) return s;
    absl::StatusOr<TokenReader> reader =
        TokenReader::Open(handlers_.store(), request, handlers_.facts().max_message_bytes);
    if (!reader.ok()) return reader.status();
    reader_ = *std::move(reader);
  }
  if (reader_->done()) return absl::OkStatus();
  v1::ReadTokensResponse response;
  if (absl::Status s = reader_->Next(response); !s.ok()) return s;
  return SerializeMessage(response, handlers_.facts().max_message_bytes, run_);
}

void ReadTokensStream::OnWriteDone(bool ok) {
  run_.Clear();
  if (!ok) return End(absl::CancelledError("the client is gone"));
  scope_.Resume([this] { Step(); });
}

void ReadTokensStream::End(const absl::Status& status) {
  scope_.EndWork();
  Finish(ToGrpcStatus(status));
}

}  // namespace oscarkv
