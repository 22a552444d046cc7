#include "client/error_info.h"

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "absl/strings/cord.h"

namespace oscarkv {
namespace {

// The first payload of the message type M, if there is one and it can be parsed.
template <typename M>
std::optional<M> Payload(const absl::Status& status) {
  const std::string url = "type.googleapis.com/" + std::string(M::descriptor()->full_name());
  const auto payload = status.GetPayload(url);
  M message;
  if (!payload.has_value() || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

void AddDetails(const google::rpc::Status& source, absl::Status& status) {
  for (const google::protobuf::Any& detail : source.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
}

absl::StatusCode ToCode(int code) {
  // Both number the codes alike; one that neither knows is UNKNOWN.
  const bool known = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

absl::Status StatusFromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(ToCode(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) AddDetails(details, result);
  return result;
}

absl::Status StatusFromProto(const google::rpc::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  absl::Status result(ToCode(status.code()), status.message());
  AddDetails(status, result);
  return result;
}

absl::Status StatusOf(const v1::ItemResult& result) { return StatusFromProto(result.status()); }

absl::Status StatusOf(const v1::ForkResult& result) { return StatusFromProto(result.status()); }

std::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  return Payload<google::rpc::ErrorInfo>(status);
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto info = Payload<google::rpc::RetryInfo>(status);
  if (!info.has_value()) return std::nullopt;
  const absl::Duration delay =
      absl::Seconds(info->retry_delay().seconds()) + absl::Nanoseconds(info->retry_delay().nanos());
  return std::max(delay, absl::ZeroDuration());
}

}  // namespace oscarkv
