// What a request needs alone, as the queue knows it.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/queue/work.h"

namespace oscarkv {

std::uint64_t KeyOfSession(std::string_view session);
// `layer`: its global id.
LayerKey KeyOfLayer(std::string_view session, std::int64_t layer);

}  // namespace oscarkv
