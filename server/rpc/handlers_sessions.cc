// Handlers: the server and its sessions.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/rpc/codec_messages.h"
#include "server/rpc/decode_session.h"
#include "server/rpc/encode_reply.h"
#include "server/rpc/fields.h"
#include "server/rpc/handlers.h"
#include "server/rpc/limits.h"

namespace oscarkv {
namespace {

// Of requests that name a session and a generation, and answer with the session.
template <typename Request, typename Response>
absl::Status Move(SessionStore* store,
                  absl::StatusOr<SessionInfo> (SessionStore::*move)(std::string_view,
                                                                    std::uint64_t),
                  const Request& request, Response& response) {
  if (absl::Status s = CheckId("session", request.session(), /*required=*/true); !s.ok()) return s;
  const absl::StatusOr<SessionInfo> info = (store->*move)(request.session(), request.generation());
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

}  // namespace

absl::Status Handlers::GetServerInfo(const v1::GetServerInfoRequest& /*request*/,
                                     v1::GetServerInfoResponse& response) {
  const StoreTotals totals = store_->Totals();
  response.set_version(facts_.version);
  response.set_boot_epoch(facts_.boot_epoch);
  response.set_backend(facts_.backend.name);
  response.set_device(facts_.backend.device);
  response.set_threads(facts_.backend.threads);
  response.set_default_profile(EncodeProfile(facts_.default_profile));
  response.set_max_receive_message_bytes(facts_.max_message_bytes);
  response.set_max_send_message_bytes(facts_.max_message_bytes);
  response.set_memory_budget_bytes(totals.budget_bytes);
  response.set_resident_bytes(totals.resident_bytes);
  response.set_logical_bytes(totals.logical_bytes);
  response.set_held_bytes(totals.held_bytes);
  response.set_block_bytes(totals.block_bytes);
  response.set_sessions(totals.sessions);
  response.mutable_head_dims()->Assign(kHeadDims.begin(), kHeadDims.end());
  return absl::OkStatus();
}

absl::Status Handlers::CreateSession(const v1::CreateSessionRequest& request,
                                     v1::CreateSessionResponse& response) {
  absl::StatusOr<SessionConfig> config = DecodeCreateSession(request, facts_.default_profile);
  if (!config.ok()) return config.status();
  Retention retention;
  if (request.has_retention()) {
    const absl::StatusOr<Retention> decoded = DecodeRetention("retention", request.retention());
    if (!decoded.ok()) return decoded.status();
    retention = *decoded;
  }
  const absl::StatusOr<std::optional<ParentPrefix>> parent = DecodeParent(request);
  if (!parent.ok()) return parent.status();
  const absl::StatusOr<SessionInfo> info = store_->Create(*std::move(config), retention, *parent);
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

absl::Status Handlers::GetSession(const v1::GetSessionRequest& request,
                                  v1::GetSessionResponse& response) {
  if (absl::Status s = CheckId("session", request.session(), /*required=*/true); !s.ok()) return s;
  const absl::StatusOr<SessionInfo> info = store_->Get(request.session());
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

absl::Status Handlers::ListSessions(const v1::ListSessionsRequest& request,
                                    v1::ListSessionsResponse& response) {
  absl::Status s = CheckId("page_token", request.page_token(), /*required=*/false);
  s.Update(CheckId("tenant", request.tenant(), /*required=*/false));
  if (request.page_size() < 0) {
    s.Update(InvalidField("page_size", absl::StrCat(request.page_size()), "0 or more"));
  }
  if (!s.ok()) return s;
  const int limit = request.page_size() == 0 ? limits::kListDefault
                                             : std::min(request.page_size(), limits::kListMax);
  std::optional<std::string_view> tenant;
  if (request.has_tenant()) tenant = request.tenant();

  // One more than asked for tells whether there is another page. The token is the last id given.
  std::vector<SessionInfo> sessions = store_->List(request.page_token(), limit + 1, tenant);
  if (sessions.size() > static_cast<std::size_t>(limit)) {
    sessions.pop_back();
    response.set_next_page_token(sessions.back().config->id);
  }
  for (const SessionInfo& info : sessions) {
    EncodeSession(info, SessionParts::kWithoutLayers, *response.add_sessions());
  }
  return absl::OkStatus();
}

absl::Status Handlers::DeleteSession(const v1::DeleteSessionRequest& request,
                                     v1::DeleteSessionResponse& /*response*/) {
  if (absl::Status s = CheckId("session", request.session(), /*required=*/true); !s.ok()) return s;
  return store_->Delete(request.session(), request.generation());
}

absl::Status Handlers::ForkSession(const v1::ForkSessionRequest& request,
                                   v1::ForkSessionResponse& response) {
  absl::StatusOr<std::vector<ForkItem>> items = DecodeForks(request);
  if (!items.ok()) return items.status();
  store_->Fork(*items);
  EncodeForks(*items, response);
  return absl::OkStatus();
}

absl::Status Handlers::TruncateSession(const v1::TruncateSessionRequest& request,
                                       v1::TruncateSessionResponse& response) {
  absl::Status s = CheckId("session", request.session(), /*required=*/true);
  if (request.generation() == 0) {
    s.Update(InvalidField("generation", "0", "the session's generation"));
  }
  s.Update(CheckRange("length", request.length(), 0, kPositionLimit));
  s.Update(CheckBytes("request_id", request.request_id(), limits::kRequestIdBytes));
  if (!s.ok()) return s;
  const absl::StatusOr<SessionInfo> info = store_->Truncate(request.session(), request.request_id(),
                                                            request.generation(), request.length());
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

absl::Status Handlers::UpdateSession(const v1::UpdateSessionRequest& request,
                                     v1::UpdateSessionResponse& response) {
  if (absl::Status s = CheckId("session", request.session(), /*required=*/true); !s.ok()) return s;
  if (!request.has_retention()) return InvalidField("retention", "not there", "a retention");
  const absl::StatusOr<Retention> retention = DecodeRetention("retention", request.retention());
  if (!retention.ok()) return retention.status();
  const absl::StatusOr<SessionInfo> info =
      store_->SetRetention(request.session(), request.generation(), *retention);
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

absl::Status Handlers::EvictSession(const v1::EvictSessionRequest& request,
                                    v1::EvictSessionResponse& response) {
  return Move(store_, &SessionStore::Evict, request, response);
}

absl::Status Handlers::RestoreSession(const v1::RestoreSessionRequest& request,
                                      v1::RestoreSessionResponse& response) {
  return Move(store_, &SessionStore::Restore, request, response);
}

absl::Status Handlers::CheckpointSession(const v1::CheckpointSessionRequest& request,
                                         v1::CheckpointSessionResponse& response) {
  return Move(store_, &SessionStore::Checkpoint, request, response);
}

}  // namespace oscarkv
