// CreateSession, ForkSession and the header of ImportSession, decoded and checked.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/profiles.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

// The request with every default filled in, its layers in the order of their ids.
// INVALID_ARGUMENT names the first field that is wrong.
absl::StatusOr<SessionConfig> DecodeCreateSession(const v1::CreateSessionRequest& request,
                                                  Profile default_profile);

// Nullopt where the request names none. INVALID_ARGUMENT names the first field that is wrong.
absl::StatusOr<std::optional<ParentPrefix>> DecodeParent(const v1::CreateSessionRequest& request);

// Forks in their order. INVALID_ARGUMENT names the first field that is wrong.
absl::StatusOr<std::vector<ForkItem>> DecodeForks(const v1::ForkSessionRequest& request);

absl::StatusOr<Retention> DecodeRetention(std::string_view field, const v1::Retention& retention);

// INVALID_ARGUMENT names the first field that is wrong, as a field of the header's message.
absl::StatusOr<ImportOptions> DecodeImportHeader(const v1::ImportSessionHeader& header);

}  // namespace oscarkv
