#include "server/rpc/read_tokens_stream.h"

#include <utility>

#include "server/rpc/calls.h"
#include "server/rpc/wire.h"
#include "server/rpc/work_keys.h"

namespace oscarkv {
namespace {

// Of a run of tokens: about its KiB.
constexpr std::int64_t kStepCost = 4096;

}  // namespace

absl::Status ReadTokensStream::Prepare(grpc::ByteBuffer& request) {
  if (absl::Status s = ParseMessage(request, request_); !s.ok()) return s;
  tenant_ = TenantOf(handlers_, request_);
  set_facts({.tenant = tenant_,
             .cost = kStepCost,
             .layers = {KeyOfLayer(request_.session(), request_.layer())}});
  return absl::OkStatus();
}

absl::Status ReadTokensStream::Next(grpc::ByteBuffer& message) {
  if (!reader_.has_value()) {
    absl::StatusOr<TokenReader> reader =
        TokenReader::Open(handlers_.store(), request_, handlers_.facts().max_message_bytes);
    if (!reader.ok()) return reader.status();
    reader_ = *std::move(reader);
  }
  if (reader_->done()) return absl::OkStatus();
  v1::ReadTokensResponse response;
  if (absl::Status s = reader_->Next(response); !s.ok()) return s;
  return SerializeMessage(response, handlers_.facts().max_message_bytes, message);
}

}  // namespace oscarkv
