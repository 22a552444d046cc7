// What a request needs alone, as the queue knows it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "oscarkv/v1/kv_cache.pb.h"
#include "server/queue/work.h"

namespace oscarkv {

std::uint64_t KeyOfSession(std::string_view session);
// Of all sources, and of sessions that forks replace; each once.
std::vector<std::uint64_t> KeysOfForks(const v1::ForkSessionRequest& request);
// `layer`: its global id.
LayerKey KeyOfLayer(std::string_view session, std::int64_t layer);

}  // namespace oscarkv
