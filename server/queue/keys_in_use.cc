#include "server/queue/keys_in_use.h"

#include <algorithm>

namespace oscarkv {

bool KeysInUse::HasAnyOf(const WorkFacts& facts) const {
  if (facts.whole_session && (sessions_.contains(*facts.whole_session) ||
                              whole_sessions_.contains(*facts.whole_session))) {
    return true;
  }
  return std::any_of(facts.layers.begin(), facts.layers.end(), [this](const LayerKey& key) {
    return layers_.contains(key.layer) || whole_sessions_.contains(key.session);
  });
}

void KeysInUse::Add(const WorkFacts& facts) {
  if (facts.whole_session) whole_sessions_.insert(*facts.whole_session);
  for (const LayerKey& key : facts.layers) {
    layers_.insert(key.layer);
    ++sessions_[key.session];
  }
}

void KeysInUse::Remove(const WorkFacts& facts) {
  if (facts.whole_session) whole_sessions_.erase(*facts.whole_session);
  for (const LayerKey& key : facts.layers) {
    layers_.erase(key.layer);
    const auto session = sessions_.find(key.session);
    if (--session->second == 0) sessions_.erase(session);
  }
}

bool SessionsSeen::HasAnyOf(const WorkFacts& facts) const {
  if (facts.whole_session && sessions_.contains(*facts.whole_session)) return true;
  return std::any_of(facts.layers.begin(), facts.layers.end(),
                     [this](const LayerKey& key) { return sessions_.contains(key.session); });
}

void SessionsSeen::Add(const WorkFacts& facts) {
  if (facts.whole_session) sessions_.insert(*facts.whole_session);
  for (const LayerKey& key : facts.layers) sessions_.insert(key.session);
}

}  // namespace oscarkv
