// Replies, from what the store tells.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

enum class SessionParts { kAll, kWithoutLayers };

void EncodeSession(const SessionInfo& info, SessionParts parts, v1::Session& session);

// One result for each item; fields of errors are put under "items[i].".
void EncodeResults(std::span<const BatchItem> items,
                   google::protobuf::RepeatedPtrField<v1::ItemResult>& results);

// Likewise, "forks[i].".
void EncodeForks(std::span<const ForkItem> items, v1::ForkSessionResponse& response);

// RESOURCE_EXHAUSTED, REPLY_TOO_LARGE: a reply that has, or may have, `bytes`. `field`: of the
// request, that makes it so large; "" if none does.
absl::Status ReplyTooLarge(std::string_view field, std::int64_t bytes, std::int64_t limit);

}  // namespace oscarkv
