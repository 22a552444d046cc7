// What each RPC does, from message to message. Knows nothing of gRPC's transport:
// kv_cache_service.h calls it, and so do tests.
//
// Thread-safety: all functions may be called at once.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "kernels/api/profiles.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

// What a server knows of itself.
struct ServerFacts {
  std::string version{};
  std::uint64_t boot_epoch = 0;  // time of start, microseconds since 1970
  BackendInfo backend{};
  Profile default_profile = Profile::kDense;
  std::int64_t max_message_bytes = 0;  // in each direction
};

class Handlers {
 public:
  // REQUIRES: store outlives this.
  Handlers(SessionStore* store, ServerFacts facts) : store_(store), facts_(std::move(facts)) {}

  absl::Status GetServerInfo(const v1::GetServerInfoRequest& request,
                             v1::GetServerInfoResponse& response);
  absl::Status CreateSession(const v1::CreateSessionRequest& request,
                             v1::CreateSessionResponse& response);
  absl::Status GetSession(const v1::GetSessionRequest& request, v1::GetSessionResponse& response);
  absl::Status ListSessions(const v1::ListSessionsRequest& request,
                            v1::ListSessionsResponse& response);
  absl::Status DeleteSession(const v1::DeleteSessionRequest& request,
                             v1::DeleteSessionResponse& response);
  absl::Status ForkSession(const v1::ForkSessionRequest& request,
                           v1::ForkSessionResponse& response);
  absl::Status TruncateSession(const v1::TruncateSessionRequest& request,
                               v1::TruncateSessionResponse& response);
  absl::Status UpdateSession(const v1::UpdateSessionRequest& request,
                             v1::UpdateSessionResponse& response);
  absl::Status EvictSession(const v1::EvictSessionRequest& request,
                            v1::EvictSessionResponse& response);
  absl::Status RestoreSession(const v1::RestoreSessionRequest& request,
                              v1::RestoreSessionResponse& response);
  absl::Status CheckpointSession(const v1::CheckpointSessionRequest& request,
                                 v1::CheckpointSessionResponse& response);
  absl::Status Append(const v1::AppendRequest& request, v1::AppendResponse& response);
  absl::Status Attend(const v1::AttendRequest& request, v1::AttendResponse& response);

  SessionStore& store() const { return *store_; }
  const ServerFacts& facts() const { return facts_; }

 private:
  SessionStore* store_;
  ServerFacts facts_;
};

}  // namespace oscarkv
