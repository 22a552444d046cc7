#include "server/rpc/work_keys.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "server/base/string_view.h"

namespace oscarkv {

std::uint64_t KeyOfSession(std::string_view session) {
  return absl::Hash<absl::string_view>()(ToAbsl(session));
}

std::vector<std::uint64_t> KeysOfForks(const v1::ForkSessionRequest& request) {
  std::vector<std::uint64_t> keys;
  for (const v1::Fork& fork : request.forks()) {
    keys.push_back(KeyOfSession(fork.source()));
    if (fork.replace()) keys.push_back(KeyOfSession(fork.session()));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

LayerKey KeyOfLayer(std::string_view session, std::int64_t layer) {
  const std::uint64_t key = KeyOfSession(session);
  return {.session = key, .layer = absl::HashOf(key, layer)};
}

}  // namespace oscarkv
