#include "server/rpc/read_tokens_stream.h"

#include <utility>

#include "server/rpc/calls.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/wire.h"
#include "server/rpc/work_keys.h"

namespace oscarkv {
namespace {

// Of a run of tokens: about its KiB.
constexpr std::int64_t kStepCost = 4096;

}  // namespace

ReadTokensStream::ReadTokensStream(Handlers& handlers, WorkQueue& queue,
                                   const grpc::CallbackServerContext* context,
                                   grpc::ByteBuffer& request)
    : handlers_(handlers), scope_(queue, "ReadTokens", context) {
  if (scope_.status().ok()) scope_.Guard([&] { return Prepare(request); }).IgnoreError();
  if (scope_.status().ok() && scope_.Submit(this)) return;
  End(scope_.status());
}

absl::Status ReadTokensStream::Prepare(grpc::ByteBuffer& bytes) {
  if (absl::Status s = ParseMessage(bytes, request_); !s.ok()) return s;
  tenant_ = TenantOf(handlers_, request_);
  set_facts({.tenant = tenant_,
             .cost = kStepCost,
             .layers = {KeyOfLayer(request_.session(), request_.layer())}});
  return absl::OkStatus();
}

void ReadTokensStream::Run() {
  const absl::Status status = scope_.Run([this] { return NextRun(); });
  if (!status.ok() || !run_.Valid()) return End(status);
  scope_.EndWork();  // a client that reads slowly keeps no one else waiting
  StartWrite(&run_);
}

void ReadTokensStream::Drop(WhyDropped why) {
  scope_.Drop(why);
  End(scope_.status());
}

// Leaves run_ empty if there are no tokens to read.
absl::Status ReadTokensStream::NextRun() {
  if (!reader_.has_value()) {
    absl::StatusOr<TokenReader> reader =
        TokenReader::Open(handlers_.store(), request_, handlers_.facts().max_message_bytes);
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
  if (reader_->done()) return End(absl::OkStatus());
  if (!scope_.Resume(this)) End(scope_.status());
}

void ReadTokensStream::End(const absl::Status& status) {
  scope_.EndWork();
  Finish(ToGrpcStatus(status));
}

}  // namespace oscarkv
