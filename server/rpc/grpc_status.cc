#include "server/rpc/grpc_status.h"

#include <string>

#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/error_counts.h"
#include "server/base/string_view.h"
#include "server/rpc/fields.h"

namespace oscarkv {
namespace {

constexpr char kDomain[] = "oscarkv";
constexpr std::size_t kMessageLimit = 1024;
constexpr std::size_t kValueLimit = 256;

google::rpc::ErrorInfo ErrorInfoOf(const absl::Status& status, const ErrorDetails& details) {
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(details.reason.empty() ? absl::StatusCodeToString(status.code())
                                         : details.reason);
  for (const auto& [key, value] : details.metadata) {
    (*info.mutable_metadata())[key] = SafeText(value, kValueLimit);
  }
  return info;
}

google::rpc::RetryInfo RetryInfoOf(absl::Duration retry_after) {
  google::rpc::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(retry_after, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(rest)));
  return info;
}

}  // namespace

google::rpc::Status EncodeStatus(const absl::Status& status) {
  google::rpc::Status encoded;
  encoded.set_code(static_cast<int>(status.code()));
  if (status.ok()) return encoded;
  encoded.set_message(SafeText(ToStd(status.message()), kMessageLimit));
  const ErrorDetails details = DetailsOf(status).value_or(ErrorDetails{});
  ErrorCounter::OfProcess().Count(details.reason);
  encoded.add_details()->PackFrom(ErrorInfoOf(status, details));
  if (details.retry_after > absl::ZeroDuration()) {
    encoded.add_details()->PackFrom(RetryInfoOf(details.retry_after));
  }
  return encoded;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status encoded = EncodeStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(encoded.code()), encoded.message(),
                      encoded.SerializeAsString());
}

}  // namespace oscarkv
