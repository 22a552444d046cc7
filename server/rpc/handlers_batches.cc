// Handlers: append and attend, one request alone.
#include "server/rpc/handlers.h"
#include "server/rpc/prepared_batch.h"

namespace oscarkv {

absl::Status Handlers::Append(const v1::AppendRequest& request, v1::AppendResponse& response) {
  const absl::StatusOr<PreparedBatch> batch =
      PreparedBatch::Prepare(*store_, facts_.max_message_bytes, request, response);
  if (!batch.ok()) return batch.status();
  store_->Append(batch->passed());
  batch->Encode(response);
  return absl::OkStatus();
}

absl::Status Handlers::Attend(const v1::AttendRequest& request, v1::AttendResponse& response) {
  const absl::StatusOr<PreparedBatch> batch =
      PreparedBatch::Prepare(*store_, facts_.max_message_bytes, request, response);
  if (!batch.ok()) return batch.status();
  store_->Attend(batch->passed());
  batch->Encode(response);
  return absl::OkStatus();
}

}  // namespace oscarkv
