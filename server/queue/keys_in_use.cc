#include "server/queue/keys_in_use.h"

#include <algorithm>
#include <new>

namespace oscarkv {

bool KeysInUse::HasAnyOf(const WorkFacts& facts) const {
  const auto session_taken = [this](std::uint64_t session) {
    return sessions_.contains(session) || whole_sessions_.contains(session);
  };
  const auto layer_taken = [this](const LayerKey& key) {
    return layers_.contains(key.layer) || whole_sessions_.contains(key.session);
  };
  return std::any_of(facts.whole_sessions.begin(), facts.whole_sessions.end(), session_taken) ||
         std::any_of(facts.layers.begin(), facts.layers.end(), layer_taken);
}

void KeysInUse::Add(const WorkFacts& facts) {
  std::size_t counted = 0;
  try {
    whole_sessions_.insert(facts.whole_sessions.begin(), facts.whole_sessions.end());
    for (const LayerKey& key : facts.layers) {
      layers_.insert(key.layer);
      ++sessions_[key.session];
      ++counted;
    }
  } catch (const std::bad_alloc&) {
    Remove(facts, counted);
    throw;
  }
}

void KeysInUse::Remove(const WorkFacts& facts) { Remove(facts, facts.layers.size()); }

void KeysInUse::Remove(const WorkFacts& facts, std::size_t counted) {
  for (const std::uint64_t session : facts.whole_sessions) whole_sessions_.erase(session);
  for (std::size_t i = 0; i < facts.layers.size(); ++i) {
    layers_.erase(facts.layers[i].layer);
    if (i >= counted) continue;
    const auto session = sessions_.find(facts.layers[i].session);
    if (--session->second == 0) sessions_.erase(session);
  }
}

bool SessionsSeen::HasAnyOf(const WorkFacts& facts) const {
  return std::any_of(facts.whole_sessions.begin(), facts.whole_sessions.end(),
                     [this](std::uint64_t session) { return sessions_.contains(session); }) ||
         std::any_of(facts.layers.begin(), facts.layers.end(),
                     [this](const LayerKey& key) { return sessions_.contains(key.session); });
}

void SessionsSeen::Add(const WorkFacts& facts) {
  sessions_.insert(facts.whole_sessions.begin(), facts.whole_sessions.end());
  for (const LayerKey& key : facts.layers) sessions_.insert(key.session);
}

}  // namespace oscarkv
