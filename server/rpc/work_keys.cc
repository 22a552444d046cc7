#include "server/rpc/work_keys.h"

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "server/base/string_view.h"

namespace oscarkv {

std::uint64_t KeyOfSession(std::string_view session) {
  return absl::Hash<absl::string_view>()(ToAbsl(session));
}

LayerKey KeyOfLayer(std::string_view session, std::int64_t layer) {
  const std::uint64_t key = KeyOfSession(session);
  return {.session = key, .layer = absl::HashOf(key, layer)};
}

}  // namespace oscarkv
