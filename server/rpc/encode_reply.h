// Replies, from what the store tells.
#pragma once

#include <span>

#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

enum class SessionParts { kAll, kWithoutLayers };

void EncodeSession(const SessionInfo& info, SessionParts parts, v1::Session& session);

// One result for each item; fields of errors are put under "items[i].".
void EncodeResults(std::span<const BatchItem> items,
                   google::protobuf::RepeatedPtrField<v1::ItemResult>& results);

}  // namespace oscarkv
