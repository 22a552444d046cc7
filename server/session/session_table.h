// All sessions by id.
//
// Thread-safety: all functions may be called at once. The table's lock is a leaf: nothing else is
// locked under it, so it may be taken with gates and layers held.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "server/base/mutex.h"
#include "server/session/session.h"

namespace oscarkv {

class SessionTable {
 public:
  // Null if there is none.
  std::shared_ptr<Session> Find(std::string_view id) const;
  // The session of that id that was there before, or null after `session` was added.
  std::shared_ptr<Session> Insert(std::shared_ptr<Session> session);
  // Puts `session` in the place of `old`, the one of its id, or null for none. False, and nothing
  // changed, where that is another one by now.
  bool Replace(const std::shared_ptr<Session>& old, std::shared_ptr<Session> session);
  // Does nothing if another one has its place by now.
  void Erase(const Session& session);

  // Sessions with id > after in the order of ids, at most `limit`, of one tenant if given.
  std::vector<std::shared_ptr<Session>> List(std::string_view after, std::size_t limit,
                                             std::optional<std::string_view> tenant) const;
  std::vector<std::shared_ptr<Session>> All() const;
  std::size_t size() const;

 private:
  mutable SharedMutex mutex_;
  absl::btree_map<std::string, std::shared_ptr<Session>, std::less<>> sessions_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace oscarkv
