#include "server/rpc/reply_stream.h"

#include "server/rpc/grpc_status.h"

namespace oscarkv {

ReplyStream* ReplyStream::Start(std::unique_ptr<ReplyStream> stream, grpc::ByteBuffer& request) {
  ReplyStream* const started = stream.release();
  RpcScope& scope = started->scope_;
  if (scope.status().ok()) scope.Guard([&] { return started->Prepare(request); }).IgnoreError();
  if (!scope.status().ok() || !scope.Submit(started)) started->End(scope.status());
  return started;
}

void ReplyStream::Run() {
  const absl::Status status = scope_.Run([this] { return Next(message_); });
  if (!status.ok() || !message_.Valid()) return End(status);
  scope_.EndWork();  // a client that reads slowly keeps no one else waiting
  StartWrite(&message_);
}

void ReplyStream::Drop(WhyDropped why) {
  scope_.Drop(why);
  End(scope_.status());
}

void ReplyStream::OnWriteDone(bool ok) {
  message_.Clear();
  if (!ok) return End(absl::CancelledError("the client is gone"));
  if (done()) return End(absl::OkStatus());
  if (!scope_.Resume(this)) End(scope_.status());
}

void ReplyStream::End(const absl::Status& status) {
  scope_.EndWork();
  Finish(ToGrpcStatus(status));
}

}  // namespace oscarkv
