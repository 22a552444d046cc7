#include "tests/server/rpc/received_status.h"

#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"

namespace oscarkv::testing {

absl::Status DecodeStatus(const google::rpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.code());
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  ErrorDetails details;
  google::rpc::ErrorInfo error;
  google::rpc::RetryInfo retry;
  for (const google::protobuf::Any& any : status.details()) {
    if (any.UnpackTo(&error)) {
      details.reason = error.reason();
      details.metadata.assign(error.metadata().begin(), error.metadata().end());
    } else if (any.UnpackTo(&retry)) {
      details.retry_after = absl::Seconds(retry.retry_delay().seconds()) +
                            absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  if (details.reason.empty()) return absl::Status(code, status.message());
  return MakeError(code, status.message(), details);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status encoded;
  if (!status.error_details().empty() && encoded.ParseFromString(status.error_details())) {
    return DecodeStatus(encoded);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace oscarkv::testing
