// The one place where errors change their type: absl::Status with ErrorDetails to grpc::Status and
// google.rpc.Status, which carry google.rpc.ErrorInfo and RetryInfo.
#pragma once

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace oscarkv {

// Every error gets an ErrorInfo with domain "oscarkv": its own, or one whose reason is the name of
// the code. Texts are clipped, so that the trailers of a reply stay small.
google::rpc::Status EncodeStatus(const absl::Status& status);

grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace oscarkv
