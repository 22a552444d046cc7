// Which sessions were told to hold the tokens of a content key.
//
// Thread-safety: all functions may be called at once. The lock is a leaf.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "server/base/mutex.h"
#include "server/session/session.h"

namespace oscarkv {

class PrefixIndex {
 public:
  // From now on Find tells of the session by its prefix keys; once for each session. If it throws
  // bad_alloc, Find tells of it by some of them.
  void Add(const std::shared_ptr<Session>& session);
  void Remove(const Session& session) noexcept;

  // Sessions of a tenant that were added under the key, the latest first. Whether they have the
  // tokens, they tell themselves.
  std::vector<std::shared_ptr<Session>> Find(const std::string& tenant,
                                             const std::string& key) const;

 private:
  struct Holder {
    const Session* session = nullptr;
    std::weak_ptr<Session> reference;
  };
  using Key = std::pair<std::string, std::string>;  // tenant, key

  mutable Mutex mutex_;
  absl::btree_map<Key, std::vector<Holder>> holders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oscarkv
