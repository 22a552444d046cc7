#include "server/session/prefix_index.h"

namespace oscarkv {

void PrefixIndex::Add(const std::shared_ptr<Session>& session) {
  const SessionConfig& config = *session->config();
  MutexLock lock(&mutex_);
  for (const PrefixKey& prefix : config.prefix_keys) {
    holders_[{config.tenant, prefix.key}].push_back({session.get(), session});
  }
}

void PrefixIndex::Remove(const Session& session) noexcept {
  const SessionConfig& config = *session.config();
  MutexLock lock(&mutex_);
  for (const PrefixKey& prefix : config.prefix_keys) {
    const auto it = holders_.find(Key(config.tenant, prefix.key));
    if (it == holders_.end()) continue;
    std::erase_if(it->second, [&](const Holder& holder) { return holder.session == &session; });
    if (it->second.empty()) holders_.erase(it);
  }
}

std::vector<std::shared_ptr<Session>> PrefixIndex::Find(const std::string& tenant,
                                                        const std::string& key) const {
  std::vector<std::shared_ptr<Session>> found;
  MutexLock lock(&mutex_);
  const auto it = holders_.find(Key(tenant, key));
  if (it == holders_.end()) return found;
  for (auto holder = it->second.rbegin(); holder != it->second.rend(); ++holder) {
    if (std::shared_ptr<Session> session = holder->reference.lock()) {
      found.push_back(std::move(session));
    }
  }
  return found;
}

}  // namespace oscarkv
