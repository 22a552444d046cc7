// Errors as a client receives them, turned back into absl::Status with ErrorDetails.
#pragma once

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace oscarkv::testing {

absl::Status DecodeStatus(const google::rpc::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace oscarkv::testing
