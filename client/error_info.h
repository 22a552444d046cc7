// Errors of the service as absl::Status. What the server says beyond code and message travels in
// the status's payloads, keyed by type URL, and is read back here.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace grpc {
class Status;
}

namespace oscarkv {

// With the code, message and details of `status`; OK for OK.
absl::Status StatusFromGrpc(const grpc::Status& status);
absl::Status StatusFromProto(const google::rpc::Status& status);

// What became of one item, or fork; OK if it was applied.
absl::Status StatusOf(const v1::ItemResult& result);
absl::Status StatusOf(const v1::ForkResult& result);

// The first error among a response's results, or OK.
template <typename Response>
absl::Status FirstItemError(const Response& response) {
  for (const auto& result : response.results()) {
    if (absl::Status status = StatusOf(result); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Reason ("LENGTH_MISMATCH"), domain ("oscarkv") and metadata ("field", "expected", ...) of an
// error of the server. nullopt for OK, and for errors of the transport, which have none.
std::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status);

// The time after which the server thinks that another try may succeed, if it gave one.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace oscarkv
