#include "server/rpc/exchange_stream.h"

namespace oscarkv {

void ExchangeStream::Process(bool more) {
  if (!more) return FinishWith(absl::OkStatus());
  NewScope();
  if (absl::IsUnavailable(scope_->status())) return FinishWith(DrainingError());
  Answer(*scope_, request_);
}

void ExchangeStream::Send(grpc::ByteBuffer reply) {
  reply_.Swap(&reply);
  scope_->EndWork();
  StartWrite(&reply_);
}

void ExchangeStream::OnWriteDone(bool ok) {
  scope_.reset();
  reply_.Clear();
  if (!ok) return FinishWith(absl::CancelledError("the client is gone"));
  ReadNext();
}

}  // namespace oscarkv
