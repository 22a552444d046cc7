#include "server/rpc/export_session_stream.h"

#include <utility>

#include "server/rpc/calls.h"
#include "server/rpc/wire.h"
#include "server/rpc/work_keys.h"

namespace oscarkv {
namespace {

// Of a message: its KiB.
constexpr std::int64_t kStepCost = 1024;

}  // namespace

absl::Status ExportSessionStream::Prepare(grpc::ByteBuffer& request) {
  if (absl::Status s = ParseMessage(request, request_); !s.ok()) return s;
  tenant_ = TenantOf(handlers_, request_);
  // The store begins an export as it makes a fork.
  set_facts(
      {.tenant = tenant_, .cost = kStepCost, .whole_sessions = {KeyOfSession(request_.session())}});
  return absl::OkStatus();
}

absl::Status ExportSessionStream::Next(grpc::ByteBuffer& message) {
  if (!exporter_.has_value()) {
    absl::StatusOr<SessionExporter> exporter =
        SessionExporter::Open(handlers_.store(), request_, handlers_.facts().max_message_bytes);
    if (!exporter.ok()) return exporter.status();
    exporter_.emplace(*std::move(exporter));
    set_facts({.tenant = tenant_, .cost = kStepCost});
  }
  v1::ExportSessionResponse response;
  if (absl::Status s = exporter_->Next(response); !s.ok()) return s;
  return SerializeMessage(response, handlers_.facts().max_message_bytes, message);
}

}  // namespace oscarkv
