#include "server/session/session_table.h"

#include <utility>

namespace oscarkv {

std::shared_ptr<Session> SessionTable::Find(std::string_view id) const {
  ReaderLock lock(&mutex_);
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second;
}

std::shared_ptr<Session> SessionTable::Insert(std::shared_ptr<Session> session) {
  const std::string& id = session->config()->id;
  WriterLock lock(&mutex_);
  const auto [it, inserted] = sessions_.try_emplace(id, session);
  return inserted ? nullptr : it->second;
}

bool SessionTable::Replace(const std::shared_ptr<Session>& old, std::shared_ptr<Session> session) {
  const std::string& id = session->config()->id;
  WriterLock lock(&mutex_);
  const auto it = sessions_.find(id);
  if ((it == sessions_.end() ? nullptr : it->second) != old) return false;
  if (old) {
    it->second = std::move(session);
  } else {
    sessions_.emplace(id, session);
  }
  return true;
}

void SessionTable::Erase(const Session& session) {
  WriterLock lock(&mutex_);
  const auto it = sessions_.find(session.config()->id);
  if (it != sessions_.end() && it->second.get() == &session) sessions_.erase(it);
}

std::vector<std::shared_ptr<Session>> SessionTable::List(
    std::string_view after, std::size_t limit, std::optional<std::string_view> tenant) const {
  std::vector<std::shared_ptr<Session>> found;
  ReaderLock lock(&mutex_);
  for (auto it = sessions_.upper_bound(after); it != sessions_.end() && found.size() < limit;
       ++it) {
    if (!tenant || it->second->config()->tenant == *tenant) found.push_back(it->second);
  }
  return found;
}

std::vector<std::shared_ptr<Session>> SessionTable::All() const {
  std::vector<std::shared_ptr<Session>> all;
  ReaderLock lock(&mutex_);
  all.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) all.push_back(session);
  return all;
}

std::size_t SessionTable::size() const {
  ReaderLock lock(&mutex_);
  return sessions_.size();
}

}  // namespace oscarkv
